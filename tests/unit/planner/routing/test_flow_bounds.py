"""When gateways hold requests back: bounds from the objectives, one gateway's share, and no plan for noise."""

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pointsman.planner.core.routing.flow_bounds import flow_bounds, in_words, queue_limit
from pointsman.planner.core.sizing.operating_point import OperatingPoint
from pointsman.planner.core.types import Observation, Policy, RoutingNumbers, Service
from pointsman.serving.flow_control import UNBOUNDED, FlowBounds
from unit.planner.operating_points import point
from unit.planner.scenes import observed

POLICY = Policy()
ROUTING = RoutingNumbers(512, 32)


def seen(flow: FlowBounds = UNBOUNDED, gateways: int = 1) -> Observation:
    return replace(observed(0, None), routing=replace(ROUTING, flow=flow), gateways=gateways)


def test_what_is_ahead_leaves_time_for_the_prompt_itself() -> None:
    at = point()
    tokens = flow_bounds(seen(), POLICY, at, 1.0).pending_tokens_per_prefill_worker
    assert tokens is not None
    ahead_s = tokens / at.queued_tokens * at.prefill_s
    assert at.prefill_s <= ahead_s
    assert ahead_s + at.prefill_alone_s == pytest.approx(at.ttft_s, rel=0.2)


def test_requests_in_flight_are_those_that_keep_the_token_objective() -> None:
    at = point()
    assert flow_bounds(seen(), POLICY, at, 1.0).decoding_per_decode_worker == round(at.batch)


def test_a_decode_worker_that_also_prefills_may_have_fewer() -> None:
    remote, local = point(400, 100, threshold=0), point(400, 100, threshold=512)
    with_prefills = flow_bounds(seen(), POLICY, local, 10.0).decoding_per_decode_worker
    without = flow_bounds(seen(), POLICY, remote, 10.0).decoding_per_decode_worker
    assert with_prefills is not None
    assert without is not None
    assert with_prefills < without


def test_prefills_that_leave_no_time_for_a_step_do_not_take_the_bound_away() -> None:
    shares = ((0.2, 0.5, 0.02), (0.6, 8.0, 0.03))
    busy = replace(point(400, 100, threshold=512), local_s=0.1, beside_local=lambda: shares)
    some, many = (flow_bounds(seen(), POLICY, busy, rate).decoding_per_decode_worker for rate in (4.0, 28.0))
    assert some == 8
    assert many == round(busy.batch)  # fewer sequences do not help against prompts


@pytest.mark.parametrize("prefill", [1, 3, 12])
@pytest.mark.parametrize("ttft_s", [0.5, 1.5, 60.0])
def test_what_gateways_let_through_never_fills_the_prefill_queue(prefill: int, ttft_s: float) -> None:
    """What finds it full is prefilled where it decodes, and all who decode there pay for it."""
    at = replace(point(), ttft_s=ttft_s)
    now = replace(observed(0, None, prefill=prefill), routing=ROUTING, gateways=1)
    tokens = flow_bounds(now, POLICY, at, 1.0).pending_tokens_per_prefill_worker
    assert tokens is not None
    computed = at.first_step_s / at.prefill_s  # they have left the queue, and wait for their first token
    let_through = prefill * (tokens / at.queued_tokens - computed)
    limit = queue_limit(now, POLICY, at)
    assert let_through <= 0.9 * limit
    assert let_through >= 0.6 * limit, "nor are prompts that can be in time kept from the queue"


def mixed(threshold: int) -> OperatingPoint:
    """Four prompts in five have 400 tokens, the others 4000."""
    kinds = [replace(point(tokens).prompts[0], share=share) for tokens, share in ((400, 0.8), (4000, 0.2))]
    return replace(point(), prompts=tuple(kinds)).at_threshold(threshold)


@pytest.mark.parametrize("decode", [1, 10])
def test_prompts_that_decode_workers_prefill_have_room_beside_those_of_prefill_workers(decode: int) -> None:
    """Gateways count all prompts without a first token, also those that prefill workers never see."""
    at, none = mixed(1000), replace(mixed(1000), local_s=0.0)
    now = replace(observed(0, None, prefill=2, decode=decode), routing=ROUTING, gateways=1)
    some, remote = (flow_bounds(now, POLICY, each, 1.0).pending_tokens_per_prefill_worker for each in (at, none))
    assert some is not None
    assert remote is not None
    assert at.local_tokens == pytest.approx(400)
    own_s = at.local_s / 0.8
    computed = decode / 2 * (own_s + at.first_step_s) / own_s  # prompts, while each decode worker computes one
    arrive = 4 * (own_s + at.first_step_s) / at.prefill_s  # while prefill workers are never idle
    assert some - remote == pytest.approx(400 * min(computed, arrive), abs=1)


def test_where_decode_workers_compute_all_prompts_the_bound_grows_with_them() -> None:
    """Without a bound, no request that waits could be told from one that is late."""
    at, bounds = mixed(8000), dict[tuple[int, int], int]()
    for prefill, decode in ((1, 2), (1, 12), (0, 12)):
        now = replace(observed(0, None, prefill=prefill, decode=decode), routing=ROUTING, gateways=1)
        found = flow_bounds(now, POLICY, at, 1.0)
        assert found.slack_ms is not None and found.pending_tokens_per_prefill_worker is not None
        bounds[prefill, decode] = found.pending_tokens_per_prefill_worker
    of_one = (at.local_s + at.first_step_s) / at.local_s * at.local_tokens  # of a decode worker
    assert bounds[1, 12] - bounds[1, 2] == pytest.approx(10 * of_one, abs=1)
    # Without a prefill worker gateways multiply the bound by the decode workers.
    assert bounds[1, 2] - bounds[0, 12] == pytest.approx(of_one, abs=1)


def test_while_a_gateway_is_unread_no_bound_is_raised_or_taken_away() -> None:
    before = FlowBounds(1000, 10, 500)
    unread = replace(seen(before), new_gateways=1)
    found = flow_bounds(unread, POLICY, point(), 1.0)
    assert (found.pending_tokens_per_prefill_worker, found.decoding_per_decode_worker) == (1000, 10)
    assert found.slack_ms == flow_bounds(seen(before), POLICY, point(), 1.0).slack_ms, "it follows"
    impossible = point(prompt=200_000)
    assert flow_bounds(seen(before), POLICY, impossible, 1.0).pending_tokens_per_prefill_worker is None
    found = flow_bounds(unread, POLICY, impossible, 1.0)
    assert (found.pending_tokens_per_prefill_worker, found.slack_ms) == (1000, 500)
    high = replace(unread, routing=replace(ROUTING, flow=FlowBounds(10**9, 10**6, 500)))
    lowered = flow_bounds(high, POLICY, point(), 1.0)
    assert lowered == replace(flow_bounds(seen(), POLICY, point(), 1.0), slack_ms=lowered.slack_ms), "but lowered"


def test_prompts_that_wait_for_their_first_step_do_not_keep_others_from_prefill_workers() -> None:
    """Steps of 130 ms and prefills of 57 ms: while one is prefilled, more than three wait for their first token."""
    at = replace(point(), ttft_s=0.3, step_s=0.13, prefill_s=0.057, reachable_s=0.06)
    tokens = flow_bounds(seen(), POLICY, at, 1.0).pending_tokens_per_prefill_worker
    assert tokens is not None
    assert tokens / at.queued_tokens == pytest.approx(1 + 1.5 * 0.13 / 0.057, rel=0.01)


def test_the_queue_is_as_long_as_what_its_workers_compute_in_time() -> None:
    """32 prompts of a thousand tokens take two fast workers half a second: with three seconds to wait, they are few."""
    at = point()
    short, long = (queue_limit(seen(), POLICY, replace(at, ttft_s=ttft_s)) for ttft_s in (3.0, 30.0))
    assert long > 8 * short
    two, four = (
        queue_limit(replace(observed(0, None, prefill=n), routing=ROUTING, gateways=3), POLICY, at) for n in (2, 4)
    )
    assert four == pytest.approx(2 * two, abs=1), "it is one queue, whatever gateways there are"


def test_a_limit_of_the_queue_that_hardly_moves_is_left() -> None:
    at = point()
    limit = queue_limit(seen(), POLICY, at)
    near = replace(seen(), routing=replace(ROUTING, max_prefill_queue_size=round(1.1 * limit)))
    assert queue_limit(near, POLICY, at) == round(1.1 * limit)


def test_each_gateway_gets_its_share() -> None:
    one, four = (flow_bounds(seen(gateways=n), POLICY, point(), 1.0) for n in (1, 4))
    assert one.pending_tokens_per_prefill_worker is not None
    assert four.pending_tokens_per_prefill_worker == round(one.pending_tokens_per_prefill_worker / 4)


def test_an_objective_that_an_idle_worker_misses_bounds_nothing() -> None:
    # Its tokens alone take longer than the TTFT objective; holding anything back would help nobody.
    assert flow_bounds(seen(), POLICY, point(prompt=200_000), 1.0).pending_tokens_per_prefill_worker is None
    hopeless = replace(point(), batch=0.5)
    assert flow_bounds(seen(), POLICY, hopeless, 1.0).decoding_per_decode_worker is None


def test_a_policy_can_forbid_it() -> None:
    assert flow_bounds(seen(FlowBounds(8000, 20)), replace(POLICY, flow_control=False), point(), 1.0) == UNBOUNDED


def test_a_bound_moves_only_where_it_differs_clearly() -> None:
    now = flow_bounds(seen(), POLICY, point(), 1.0)
    assert flow_bounds(seen(now), POLICY, point(prompt=4200), 1.0) == now
    assert flow_bounds(seen(now), POLICY, point(prompt=8000), 1.0) != now


@pytest.mark.parametrize(
    ("within", "settled"), [(None, 30), (0.96, 30), (0.9, 27)], ids=["unknown", "enough", "too few"]
)
def test_answers_that_are_too_slow_bound_the_batch_at_once(within: float | None, settled: int) -> None:
    """A tenth of a batch is within the dead band, and enough to make every answer late."""
    served = replace(seen(FlowBounds(8000, 30)), service=Service(tpot_attainment=within))
    found = flow_bounds(served, POLICY, replace(point(), batch=27.0), 1.0)
    assert found.decoding_per_decode_worker == settled
    for near in (29.0, 33.0):
        assert flow_bounds(served, POLICY, replace(point(), batch=near), 1.0).decoding_per_decode_worker == 30


@given(prompt=st.floats(1, 200_000), output=st.floats(1, 4000), rate=st.floats(0, 500), gateways=st.integers(1, 100))
def test_a_worker_is_never_bound_to_idleness(prompt: float, output: float, rate: float, gateways: int) -> None:
    found = flow_bounds(seen(gateways=gateways), POLICY, point(prompt, output), rate)
    for bound in (found.pending_tokens_per_prefill_worker, found.decoding_per_decode_worker):
        assert bound is None or bound >= 1


def test_it_is_said_in_words() -> None:
    assert in_words(UNBOUNDED) == "gateways queue no requests"
    assert in_words(FlowBounds(8000, 20)) == (
        "gateways queue new requests while more than 8000 prompt tokens per prefill worker are pending or "
        "20 requests per decode worker are being decoded"
    )
