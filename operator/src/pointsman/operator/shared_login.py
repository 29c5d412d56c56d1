"""Ends the shared NATS login of earlier versions by itself, once no pod of any service or group may use it any more.

The NATS server's Secret says whether the login is accepted; the server reads it when its pod starts. What was done
stands there as an annotation with its time, so a restarted operator finishes what it began and repeats nothing.
"""

import base64
import logging
from collections.abc import Callable
from datetime import UTC, datetime
from typing import Any, Final

from pointsman.api.protocol import names
from pointsman.kube import resources
from pointsman.kube.client import Kube, Object
from pointsman.kube.clock import SYSTEM_CLOCK, Clock
from pointsman.kube.errors import Conflict, Forbidden, NotFound
from pointsman.kube.events import EventRecorder, Reference
from pointsman.kube.mirror import Mirror
from pointsman.kube.pods import Pod
from pointsman.operator.core.naming import secret_name
from pointsman.operator.core.nats_logins import ServiceUser
from pointsman.operator.core.shared_login import PodLogin, may_use_shared_login
from pointsman.operator.errors import NotLeading
from pointsman.operator.observe import is_of_group
from pointsman.operator.pods import ServiceKey

log = logging.getLogger(__name__)

ENDED_ANNOTATION: Final = f"{names.GROUP}/shared-login-ended"
_STATE: Final = "nats-earlier-versions"
_SERVICE_KEY: Final = "nats-service-key"
_OPEN: Final = ("", "accepted")  # "kept": accepted until a person says otherwise
_NOTE: Final = (
    "no pod uses the shared NATS login of earlier versions any more: it is refused from now on, and NATS restarts once"
)


class SharedLogin:
    """Looks now and then. ``server``: the NATS StatefulSet of the chart; its Secret's name ends with ``-services``."""

    def __init__(
        self,
        *,
        kube: Kube,
        pods: Mirror[Pod],
        events: EventRecorder,
        namespace: str,
        server: str,
        watched: str | None,
        leads: Callable[[], bool],
        clock: Clock = SYSTEM_CLOCK,
    ) -> None:
        """``namespace``: of the server. ``watched``: that of all services; None: they are anywhere."""
        self._kube = kube
        self._pods = pods
        self._events = events
        self._namespace = namespace
        self._server = server
        self._watched = watched
        self._leads = leads
        self._known_user: str | None = None  # as logged last
        self._clock = clock

    async def check(self) -> None:
        """End the shared login if nothing may use it. Raises KubeError."""
        try:
            await self._check()
        except Forbidden as error:
            log.warning("the shared NATS login is not ended: %s", error)

    async def _check(self) -> None:
        name = f"{self._server}-services"
        secret = await self._kube.find(resources.SECRETS, name, self._namespace)
        if secret is None or not _value(secret, _SERVICE_KEY):
            return
        if _value(secret, _STATE) in _OPEN:
            used_by = await self._used_by()
            if used_by not in (None, self._known_user):
                log.info("the shared NATS login stays: %s may use it", used_by)
            self._known_user = used_by
            if used_by is not None:
                return
            secret = await self._refuse(secret)
        ended = (secret["metadata"].get("annotations") or {}).get(ENDED_ANNOTATION)
        if ended is not None and _value(secret, _STATE) == "refused":
            await self._restart_server(datetime.fromisoformat(ended))

    def _fence(self) -> None:
        if not self._leads():
            raise NotLeading("the Lease is lost: no write is made")

    async def _refuse(self, secret: Object) -> Object:
        meta = secret["metadata"]
        body: dict[str, Any] = {
            "metadata": {"annotations": {ENDED_ANNOTATION: self._clock.now().astimezone(UTC).isoformat()}},
            "data": {_STATE: base64.b64encode(b"refused").decode()},
        }
        version = meta["resourceVersion"]
        self._fence()
        done = await self._kube.patch(
            resources.SECRETS, meta["name"], self._namespace, body, resource_version=version, uid=meta["uid"]
        )
        log.info("reason=SharedLoginEnded %s", _NOTE)
        self._events.record(Reference.of(resources.SECRETS, done), "SharedLoginEnded", _NOTE)
        return done

    async def _restart_server(self, ended: datetime) -> None:
        """A server pod that is older than the end still accepts the login. Its StatefulSet makes another one."""
        name = f"{self._server}-0"
        pod = await self._kube.find(resources.PODS, name, self._namespace)
        if pod is None or pod["metadata"].get("deletionTimestamp"):
            return
        if datetime.fromisoformat(pod["metadata"]["creationTimestamp"]) < ended.replace(microsecond=0):
            self._fence()
            try:
                await self._kube.delete(resources.PODS, name, self._namespace, uid=pod["metadata"]["uid"])
            except (NotFound, Conflict):
                return  # it is another one already

    async def _used_by(self) -> str | None:
        """Something that may use the shared login; None: nothing does."""
        if unreadable := self._pods.unreadable():
            return f"pod {unreadable[0].metadata.name}"
        pods: dict[ServiceKey, list[Pod]] = {}
        for pod in self._pods.objects():
            key = (pod.metadata.namespace, pod.metadata.labels.get(names.SERVICE_LABEL, ""))
            pods.setdefault(key, []).append(pod)
        # A service without pods has its Secret for those to come.
        for key in sorted({*pods, *await self._services()}):
            secret = await self._kube.find(resources.SECRETS, secret_name(key[1]), key[0])
            since_s = None if secret is None else own_login_since_s(secret, key[0])
            if secret is not None and since_s is None:
                return f"service {key[0]}/{key[1]}"
            for pod in pods.get(key, ()):
                if may_use_shared_login(_login_of(pod), since_s):
                    return f"pod {key[0]}/{pod.metadata.name}"
        return None

    async def _services(self) -> list[ServiceKey]:
        found: list[ServiceKey] = []
        for kind in (resources.LLM_SERVICES, resources.ELASTIC_GROUPS):
            try:
                listing = await self._kube.list(kind, self._watched)
            except NotFound:  # a cluster may not have that kind
                continue
            found += [(item["metadata"]["namespace"], item["metadata"]["name"]) for item in listing.items]
        return found


def own_login_since_s(secret: Object, namespace: str) -> float | None:
    """When a service's Secret got its NATS login; None: that is not the login of a service there. Unix time.

    0: the Secret was made with it, and no pod of the service starts without its Secret.
    """
    user = ServiceUser.parse(_value(secret, names.SECRET_NATS_USER))
    if user is None or user.namespace != namespace:
        return None
    written = [
        datetime.fromisoformat(entry["time"]).timestamp()
        for entry in secret["metadata"].get("managedFields") or ()
        if "time" in entry and f"f:{names.SECRET_NATS_USER}" in (entry.get("fieldsV1") or {}).get("f:data", {})
    ]
    made = datetime.fromisoformat(secret["metadata"]["creationTimestamp"]).timestamp()
    last = max(written, default=None)
    return 0.0 if last == made else last


def _login_of(pod: Pod) -> PodLogin:
    meta = pod.metadata
    return PodLogin(
        created_s=meta.creation_timestamp.timestamp() if meta.creation_timestamp else None,
        is_worker=meta.labels.get(names.COMPONENT_LABEL) == names.COMPONENT_WORKER and not is_of_group(pod),
        reports_metrics_port=names.METRICS_PORT_LABEL in meta.labels,
        finished=pod.finished,
    )


def _value(secret: Object, key: str) -> str:
    return base64.b64decode((secret.get("data") or {}).get(key, "")).decode(errors="replace")
