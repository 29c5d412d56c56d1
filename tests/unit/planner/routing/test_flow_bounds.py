"""When gateways hold requests back: bounds from the objectives, one gateway's share, and no plan for noise."""

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pointsman.planner.core.routing.flow_bounds import flow_bounds, in_words
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
    tokens = flow_bounds(seen(), replace(POLICY, max_queue_size=1000), at, 1.0).pending_tokens_per_prefill_worker
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
def test_no_more_prompts_are_let_through_than_the_prefill_queue_takes(prefill: int) -> None:
    """What finds it full is prefilled where it decodes: a long TTFT objective would let hundreds through."""
    patient = replace(point(), ttft_s=60.0)
    at = replace(observed(0, None, prefill=prefill), routing=ROUTING, gateways=1)
    tokens = flow_bounds(at, POLICY, patient, 1.0).pending_tokens_per_prefill_worker
    assert tokens is not None
    waiting = prefill * (tokens / patient.queued_tokens - 1)
    assert 0.7 * POLICY.max_queue_size <= waiting <= POLICY.max_queue_size


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
        "gateways queue new requests above 8000 pending prompt tokens per prefill worker or "
        "20 decoding requests per decode worker"
    )
