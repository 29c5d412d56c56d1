"""Messages of the conditions and Events of an elastic group."""

from collections.abc import Sequence

from pointsman.serving.words import do, names_of, quantity, were


def summary(existing: int, groups: str) -> str:
    return f"{quantity(existing, 'instance')}, {groups}"


def groups_unknown() -> str:
    return "groups not known"


def no_groups() -> str:
    return "idle"


def groups(count: int, kinds: Sequence[tuple[int, int, str]]) -> str:
    """``kinds``: (count, instances of each, phase), for example 1x2 Prefill."""
    listed = ", ".join(f"{number}x{degree} {phase}" for number, degree, phase in kinds)
    return f"{quantity(count, 'group')} ({listed})"


def working(joined: int | None, desired: int) -> str:
    """``joined`` None: the manager does not answer."""
    return f"{'an unknown number' if joined is None else joined} of {quantity(desired, 'instance')} joined"


def failed(have: str, cause: str) -> str:
    return f"{have}; {cause}"


def manager_silent(have: str) -> str:
    return f"{have}; the manager does not answer"


def loading(have: str, instances: Sequence[str]) -> str:
    return f"{have}; {names_of(instances)} {do(len(instances), 'load')} the model"


def no_gateway() -> str:
    return "no gateway is ready"


def manager_not_ready() -> str:
    return "the manager is not ready"


def no_instance() -> str:
    return "no instance has joined the manager"


def answered() -> str:
    return "requests are answered"


def paused() -> str:
    return "spec.paused is true: the operator reports and changes nothing"


def draining(count: int) -> str:
    return f"{quantity(count, 'instance')} draining"


def scaling(existing: int, desired: int) -> str:
    return f"{existing} of {quantity(desired, 'instance')} {do(desired, 'exist')}"


def starting(count: int, existing: int) -> str:
    return f"{count} of {quantity(existing, 'instance')} loading the model"


def nothing_to_do() -> str:
    return "nothing to do"


def plan_refused(group: str, error: str) -> str:
    return f"plan of {group}: {error}"


def port_label_refused(pod: str, error: str) -> str:
    return f"metrics port label of pod {pod}: {error}"


# --- Events ---


def manager_restarted() -> str:
    return "the manager restarted and released all KV"


def joined(instance: str, tokens: int) -> str:
    return f"{instance} joined the manager and has room for {quantity(tokens, 'token')} of KV"


def drained(instance: str) -> str:
    return f"{instance} handed over its requests and stopped"


def lost(instance: str, tokens: int) -> str:
    return f"{instance} was lost; it had {quantity(tokens, 'token')} of KV when last seen"


def _moved(nbytes: int | None) -> str:
    """None: the manager, of an earlier version, does not count bytes."""
    return "" if nbytes is None else f"; {quantity(nbytes, 'byte')} of KV {were(nbytes)} moved"


def scaled_down(count: int, nbytes: int | None) -> str:
    return f"{quantity(count, 'group')} shrank after a prefill{_moved(nbytes)}"


def scaled_up(count: int, nbytes: int | None) -> str:
    return f"{quantity(count, 'group')} grew by one instance{_moved(nbytes)}"


def recomputed(count: int) -> str:
    return f"{quantity(count, 'request')} lost KV, so the prompt was computed again"
