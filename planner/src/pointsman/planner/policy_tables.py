"""The performance table that a policy names: a shipped one, or one of its own in a ConfigMap."""

from dataclasses import dataclass
from typing import Final

from pointsman.api.v1alpha1.plannerpolicy import PlannerPolicy
from pointsman.kube import resources
from pointsman.kube.client import Kube
from pointsman.planner.core.engine.performance_model import GridModel
from pointsman.planner.core.messages import health
from pointsman.planner.errors import TableError, UnknownTable
from pointsman.planner.performance_tables import ENGINE, performance_table
from pointsman.planner.table_files import parse_table
from pointsman.process.clock import SYSTEM_CLOCK, Clock

LOOK_AGAIN_S: Final = 30.0  # a ConfigMap that was changed is used within this time
TABLE_ENTRY: Final = "table.json"  # of a ConfigMap with several
_Key = tuple[str, str]


@dataclass(frozen=True, slots=True)
class _Known:
    read_s: float
    text: str | None
    base: GridModel | None
    problem: str | None


class PolicyTables:
    """Looks ConfigMaps up, and again now and then."""

    def __init__(self, kube: Kube, clock: Clock = SYSTEM_CLOCK) -> None:
        self._kube = kube
        self._clock = clock
        self._known: dict[_Key, _Known] = {}

    async def base(self, policy: PlannerPolicy) -> tuple[GridModel | None, str | None]:
        """(the table or None, what is wrong with it or None). Without a table speed is learned. Raises KubeError."""
        performance = policy.spec.performance
        if performance.table is not None:
            table = performance.table
            try:
                return performance_table(table.model, table.gpu, ENGINE, table.tp), None
            except UnknownTable as error:
                return None, str(error)
        if performance.config_map is None:
            return None, None
        named = performance.config_map
        key = (policy.metadata.namespace, named.name)
        known = self._known.get(key)
        now_s = self._clock.monotonic_s()
        if known is None or now_s - known.read_s >= LOOK_AGAIN_S:
            known = self._known[key] = await self._read(key, now_s, known)
        return known.base, known.problem

    async def _read(self, key: _Key, now_s: float, before: _Known | None) -> _Known:
        namespace, name = key
        found = await self._kube.find(resources.CONFIG_MAPS, name, namespace)
        if found is None:
            return _Known(now_s, None, None, health.no_table_config_map(name, namespace))
        data: dict[str, str] = found.get("data") or {}
        entry = next(iter(data)) if len(data) == 1 else TABLE_ENTRY
        text = data.get(entry)
        if text is None:
            return _Known(now_s, None, None, health.no_table_in_config_map(name, sorted(data), TABLE_ENTRY))
        where = health.table_entry(name, entry)
        if before is not None and before.text == text:
            return _Known(now_s, text, before.base, before.problem)
        try:
            return _Known(now_s, text, parse_table(text, where).performance, None)
        except TableError as error:
            return _Known(now_s, text, None, str(error))
