"""Which prefills are measured before a degree is used."""

from collections.abc import Callable, Sequence

import pytest

from pointsman.serving.elastic.iterations import Prompt
from pointsman.serving.elastic.latency_model import PrefillTime
from pointsman.workers.elastic.manager.profiling import ENOUGH_S, REPEATS, measure_degree

SLOTS = 1_000_000


def on_a_gpu(tokens: int, squared: int) -> float:
    """Seconds, about those of Llama 3.1 8B's shape on an H200: below 1 000 tokens the GPU waits for the host."""
    return max(0.03, 0.002 + 2.75e-5 * tokens + 7e-10 * squared)


def on_a_core(tokens: int, squared: int) -> float:
    """Seconds of a small model."""
    return 0.002 + 1e-4 * tokens + 5e-8 * squared


async def measured(seconds: Callable[[int, int], float], longest: int) -> tuple[PrefillTime, list[tuple[int, ...]]]:
    """The model, and the lengths of each batch that was computed for it."""
    found: list[tuple[int, ...]] = []

    async def measure(prompts: Sequence[Prompt]) -> float:
        lengths = tuple(len(each.token_ids) for each in prompts)
        found.append(lengths)
        return seconds(sum(lengths), sum(length**2 for length in lengths))

    return await measure_degree(measure, 1, SLOTS, longest), found


@pytest.mark.parametrize(("longest", "measured_tokens"), [(131_072, 32_768), (32_768, 8192), (4096, 1024), (40, 40)])
async def test_long_prompts_are_measured_where_the_longest_is_far_longer(longest: int, measured_tokens: int) -> None:
    model, found = await measured(on_a_gpu, longest)
    assert measured_tokens / 2 < max(map(sum, found)) <= measured_tokens
    if longest == 131_072:
        for tokens in (2048, 8192, 32_768):
            assert model.seconds(tokens, tokens**2) == pytest.approx(on_a_gpu(tokens, tokens**2), rel=0.25)


async def test_no_longer_prompt_is_measured_than_one_that_takes_long_and_that_one_only_once() -> None:
    _, found = await measured(on_a_core, 131_072)
    longest = max(map(sum, found))
    assert on_a_core(longest // 2, (longest // 2) ** 2) < ENOUGH_S < on_a_core(longest, longest**2)
    assert found.count((longest,)) == 1
    assert found.count((32,)) == REPEATS
