"""The blocks a simulated worker holds."""

import time

from pointsman.planner.simulator.prefix_cache import PrefixBlocks


def test_who_was_used_longest_ago_goes_first_and_the_end_of_a_prompt_before_its_begin() -> None:
    cache = PrefixBlocks(4)
    cache.hold((1, 2, 3))
    cache.hold((4, 5))
    assert [cache.matched((block,)) for block in (1, 2, 3, 4, 5)] == [1, 1, 0, 1, 1]
    cache.hold((1, 2))  # used again: now 4 and 5 are the oldest
    cache.hold((6,))
    assert [cache.matched((block,)) for block in (1, 2, 4, 5, 6)] == [1, 1, 1, 0, 1]
    assert cache.matched((1, 2, 7, 4)) == 2


def test_eviction_takes_time_by_the_block_and_not_by_the_square() -> None:
    def took_s(blocks: int) -> float:
        cache = PrefixBlocks(10)
        begin = time.process_time()
        cache.hold(range(blocks))
        return time.process_time() - begin

    few, many = min(took_s(5_000) for _ in range(3)), min(took_s(80_000) for _ in range(3))
    assert many < 64 * few  # 16 times as many blocks; by the square it would be 256 times
