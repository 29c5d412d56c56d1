"""What has happened in an elastic group between two looks at its manager, as Events."""

from collections.abc import Iterator
from dataclasses import dataclass

from pointsman.api.protocol.elastic import ElasticState
from pointsman.serving.elastic.types import quantity


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
        yield News("ManagerRestarted", "the manager was started again and released all KV", warning=True)
    old = {} if again else {each.name: each for each in before.instances}
    new = {each.name: each for each in now.instances}
    for name in () if again else sorted(new.keys() - old.keys()):
        yield News("InstanceJoined", f"{name}: the manager works with it; it keeps {new[name].slots} tokens of KV")
    for name in sorted(old.keys() - new.keys()):
        if old[name].draining:
            yield News("InstanceDrained", f"{name}: it handed over what it had, and left")
        else:
            held = quantity(old[name].used_slots, "token")
            yield News("InstanceLost", f"{name}: it is gone; it had {held} of KV when last seen", warning=True)
    then, totals = before.totals, now.totals

    def since(count: int, earlier: int) -> int:
        return count if again else count - earlier

    def moved(reason: str) -> str:
        """Nothing where the manager, of an earlier version, does not count bytes."""
        if reason not in totals.moved_bytes:
            return ""
        return f"; {since(totals.moved_bytes[reason], then.moved_bytes.get(reason, 0))} bytes were moved"

    if count := since(totals.scaled_down, then.scaled_down):
        yield News("GroupScaledDown", f"{quantity(count, 'group')} shrank after a prefill{moved('scale_down')}")
    if count := since(totals.scaled_up, then.scaled_up):
        yield News("GroupScaledUp", f"{quantity(count, 'group')} got a further instance{moved('scale_up')}")
    if count := since(totals.recomputed, then.recomputed):
        lost = f"{quantity(count, 'request')} lost KV and had the prompt computed again"
        yield News("RequestRecomputed", lost, warning=True)
