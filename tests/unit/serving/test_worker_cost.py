"""The cost of a decode worker: prompts to compute, context to read, and a KV cache that is nearly full."""

from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from pointsman.serving.worker_cost import token_load

tokens = st.integers(0, 100_000)


def cost(**differs: Any) -> float:
    idle: dict[str, Any] = {"cached_tokens": 0, "pending_tokens": 0, "context_tokens": 0, "kv_usage": 0.0}
    return token_load(prompt_tokens=4000, **{"prefilled_elsewhere": True, **idle, **differs})


def test_an_idle_worker_costs_the_prompt_and_one_that_has_it_all_nothing() -> None:
    assert cost() == 4000
    assert cost(cached_tokens=4000) == cost(cached_tokens=5000) == 0


def test_a_cached_prefix_draws_until_contexts_of_many_times_its_length_are_there() -> None:
    assert cost(cached_tokens=1000, context_tokens=3000) < cost()
    assert cost(cached_tokens=1000, context_tokens=5000) > cost()


def test_a_prompt_that_comes_from_a_prefill_worker_counts_as_the_context_it_will_be() -> None:
    assert cost(pending_tokens=8000) == cost(context_tokens=8000)
    assert cost(pending_tokens=8000, prefilled_elsewhere=False) == 4000 + 8000


@given(tokens, tokens, tokens, st.floats(0, 1), st.booleans())
def test_more_of_anything_but_a_cached_prefix_never_makes_it_cheaper(
    cached: int, pending: int, context: int, usage: float, elsewhere: bool
) -> None:
    seen: dict[str, Any] = {
        "cached_tokens": cached,
        "pending_tokens": pending,
        "context_tokens": context,
        "kv_usage": usage,
        "prefilled_elsewhere": elsewhere,
    }
    here = cost(**seen)
    assert cost(**{**seen, "pending_tokens": pending + 1}) > here
    assert cost(**{**seen, "context_tokens": context + 1}) > here
    assert cost(**{**seen, "kv_usage": 1.0}) >= here
    assert cost(**{**seen, "cached_tokens": cached + 1}) <= here
