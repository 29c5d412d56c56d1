"""Who waits: unknown is not zero, and nobody is counted twice."""

from dataclasses import replace

from pointsman.api.protocol.names import Role
from pointsman.planner.core.sizing.backlog import most_queued, prefill_wait_ms, waiting
from pointsman.planner.core.types import Observation, RoutingNumbers, Service
from pointsman.serving.flow_control import FlowBounds
from unit.planner.operating_points import point
from unit.planner.scenes import observed

AT = replace(point(), batch=10.0)


def seen(prefill: list[int | None], decode: list[int | None], queue: float | None = 0.0) -> Observation:
    found = observed(0, None, len(prefill), len(decode), service=Service(prefill_queue_depth=queue))
    counts = {Role.PREFILL: iter(prefill), Role.DECODE: iter(decode)}
    workers = tuple(replace(w, in_flight=next(counts[w.role])) for w in found.workers)
    return replace(found, workers=workers)


def test_the_queue_and_what_decodes_beyond_a_good_batch_wait() -> None:
    assert waiting(seen([2, 2], [15, 15], queue=6.0), AT) == 6 + (30 - 6 - 4 - 20)
    assert waiting(seen([2, 2], [25, 25], queue=6.0), AT) == 6 + (50 - 6 - 4 - 20)


def test_an_unread_prefill_worker_is_not_empty() -> None:
    known, unread = seen([8, 8], [20, 20]), seen([8, None], [20, 20])
    assert waiting(unread, AT) == waiting(known, AT) == 4
    assert waiting(seen([None, None], [20, 20], queue=3.0), AT) == 3  # nothing can be said of the others


def test_what_waits_in_the_engine_of_a_prefill_worker_is_counted_once() -> None:
    """Nine wait there, of ten in flight; 25 are with two decode workers, five of which are a good batch for each."""
    found = seen([10], [13, 12], queue=9.0)
    workers = tuple(replace(w, queued=9) if w.role is Role.PREFILL else w for w in found.workers)
    assert waiting(replace(found, workers=workers), replace(AT, batch=5.0)) == 9 + (25 - 10 - 10)


def test_an_unread_decode_worker_changes_nothing_for_the_others() -> None:
    assert waiting(seen([0], [15, None]), AT) == waiting(seen([0], [15]), AT) == 5


def test_a_full_queue_limits_what_new_prefill_workers_help_unless_the_rest_is_held() -> None:
    full = seen([2], [2], queue=5.0)
    assert most_queued(full) == full.routing.max_prefill_queue_size
    held = replace(full, routing=RoutingNumbers(512, 32, FlowBounds(8000, 20)))
    assert most_queued(held) == float("inf")
    assert most_queued(seen([2], [2], queue=None)) == float("inf")


def test_a_wait_of_unknown_length_is_unknown() -> None:
    assert prefill_wait_ms(seen([2], [2], queue=None), AT) is None
    assert prefill_wait_ms(seen([2, 2], [2], queue=4.0), AT) == 2 * AT.prefill_alone_s * 1000
