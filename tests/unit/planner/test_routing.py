"""The published threshold by itself: it settles."""

from dataclasses import replace

from hypothesis import example, given
from hypothesis import strategies as st

from pointsman.planner.core.routing import threshold
from pointsman.planner.core.sizing import Prompts
from pointsman.planner.core.types import Policy, RoutingNumbers, Service
from unit.planner.test_decide import observed
from unit.planner.test_sizing import point

FINE = Service(ttft_attainment=1.0, tpot_attainment=1.0, prefill_queue_depth=0.0)
BESIDE_LOCAL = tuple((n / 20, 1.5 * n, 0.03) for n in range(1, 20))  # share of time left for steps, batch, seconds


@given(
    shortest=st.floats(100, 2000), share=st.floats(0, 1), rate=st.floats(0.5, 40), decode=st.integers(1, 4),
    transfer_s_per_token=st.floats(0, 3e-4), start=st.integers(0, 16), wait_ms=st.sampled_from([0.0, 1e6]),
)  # fmt: skip
@example(shortest=520.0, share=0.44, rate=20.0, decode=2, transfer_s_per_token=1e-4, start=7, wait_ms=0.0)
@example(shortest=720.97, share=0.7831, rate=29.91, decode=3, transfer_s_per_token=6.23e-5, start=4, wait_ms=0.0)
def test_a_threshold_settles_also_where_decode_workers_are_too_few_whatever_it_is(
    shortest: float, share: float, rate: float, decode: int, transfer_s_per_token: float, start: int, wait_ms: float
) -> None:
    """Prompts of three lengths; what arrives and what clients get stay the same."""
    prompts = tuple(
        Prompts(shortest * times, of_all, *(3 * (shortest * times * 1e-4,)))
        for times, of_all in ((1, share), (4, 0.7 * (1 - share)), (8, 0.3 * (1 - share)))
    )
    at = replace(point(400, 100), prompts=prompts, transfer_s_per_token=transfer_s_per_token, beside_local=BESIDE_LOCAL)
    tokens = [64 * start]
    for _ in range(200):  # by 128 tokens a look to the highest that may be had, where a queue waits
        seen = observed(0, None, 2, decode, service=FINE, routing=RoutingNumbers(tokens[-1], 32))
        tokens.append(threshold(seen, Policy(), at, rate, 1.0, wait_ms).max_local_prefill_tokens)
    assert len(set(tokens[-20:])) == 1, tokens
