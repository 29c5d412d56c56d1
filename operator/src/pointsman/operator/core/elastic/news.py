"""What has happened in an elastic group between two looks at its manager, as Events."""

from collections.abc import Iterator
from dataclasses import dataclass

from pointsman.api.protocol.elastic import ElasticState
from pointsman.operator.core.messages import groups as text


@dataclass(frozen=True, slots=True)
class News:
    """One Event: its reason and its sentence."""

    reason: str
    note: str
    warning: bool = False


def news(before: ElasticState, now: ElasticState) -> Iterator[News]:
    """In the order in which it is told. A manager that was started again counts from 0."""
    again = before.manager != now.manager
    if again:  # it finds its instances again, which is no news
        yield News("ManagerRestarted", text.manager_restarted(), warning=True)
    old = {} if again else {each.name: each for each in before.instances}
    new = {each.name: each for each in now.instances}
    for name in () if again else sorted(new.keys() - old.keys()):
        yield News("InstanceJoined", text.joined(name, new[name].slots))
    for name in sorted(old.keys() - new.keys()):
        if old[name].draining:
            yield News("InstanceDrained", text.drained(name))
        else:
            yield News("InstanceLost", text.lost(name, old[name].used_slots), warning=True)
    then, totals = before.totals, now.totals

    def since(count: int, earlier: int) -> int:
        return count if again else count - earlier

    def moved(reason: str) -> int | None:
        """None where the manager, of an earlier version, does not count bytes."""
        if reason not in totals.moved_bytes:
            return None
        return since(totals.moved_bytes[reason], then.moved_bytes.get(reason, 0))

    if count := since(totals.scaled_down, then.scaled_down):
        yield News("GroupScaledDown", text.scaled_down(count, moved("scale_down")))
    if count := since(totals.scaled_up, then.scaled_up):
        yield News("GroupScaledUp", text.scaled_up(count, moved("scale_up")))
    if count := since(totals.recomputed, then.recomputed):
        yield News("RequestRecomputed", text.recomputed(count), warning=True)
