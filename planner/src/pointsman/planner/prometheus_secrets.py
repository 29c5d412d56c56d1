"""The Secret that a policy names for its Prometheus, read again now and then: a rotation needs no restart."""

from dataclasses import dataclass
from typing import Final

from pointsman.api.v1alpha1.plannerpolicy import Metrics
from pointsman.kube import resources
from pointsman.kube.client import Kube
from pointsman.kube.errors import Forbidden, KubeError
from pointsman.planner.errors import PrometheusFailed
from pointsman.planner.prometheus_access import Access, access_of
from pointsman.process.clock import SYSTEM_CLOCK, Clock

LOOK_AGAIN_S: Final = 10.0


@dataclass(frozen=True, slots=True)
class _Known:
    read_s: float
    data: dict[str, str] | None


class PrometheusSecrets:
    """Reads Secrets in the namespace of the policy that names them, and nowhere else."""

    def __init__(self, kube: Kube, clock: Clock = SYSTEM_CLOCK) -> None:
        self._kube = kube
        self._clock = clock
        self._known: dict[tuple[str, str], _Known] = {}

    async def access(self, namespace: str, metrics: Metrics) -> Access | None:
        """How to reach ``prometheusUrl``; None: without credentials. Raises PrometheusFailed, and for a Secret that
        was never read KubeError."""
        if metrics.prometheus_secret_ref is None:
            return None
        name = metrics.prometheus_secret_ref.name
        where = f"Secret '{name}' (metrics.prometheusSecretRef)"
        data = await self._data(namespace, name, where)
        if data is None:
            raise PrometheusFailed(f"there is no {where} in namespace '{namespace}'; create it")
        return access_of(data, where, str(metrics.prometheus_url))

    async def _data(self, namespace: str, name: str, where: str) -> dict[str, str] | None:
        known, now_s = self._known.get((namespace, name)), self._clock.monotonic_s()
        if known is not None and now_s - known.read_s < LOOK_AGAIN_S:
            return known.data
        try:
            found = await self._kube.find(resources.SECRETS, name, namespace)
        except Forbidden:
            self._known.pop((namespace, name), None)
            raise PrometheusFailed(
                f"the planner may not read {where}; add its name to the chart's planner.prometheusSecrets"
            ) from None
        except KubeError:
            if known is None:
                raise
            return known.data
        data = None if found is None else dict(found.get("data") or {})
        self._known[namespace, name] = _Known(now_s, data)
        return data
