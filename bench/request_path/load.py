"""What the index benchmarks of ours and of the peer share: the load, and figures. Standard library only."""

import random
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import cycle, islice
from typing import Any


@dataclass(frozen=True)
class Load:
    """``prompts`` of ``blocks`` blocks, each on ``holders`` of ``workers`` workers; ``finds`` searches of each kind."""

    workers: int = 64
    prompts_per_worker: int = 78
    blocks: int = 128
    holders: int = 4
    finds: int = 100_000

    def prompts(self) -> list[tuple[list[int], list[int]]]:
        """Chained hashes (63 bits, which the peer takes too) and the workers that hold them, from a fixed seed."""
        rng = random.Random(1)
        count = self.workers * self.prompts_per_worker // self.holders
        return [
            ([rng.getrandbits(63) for _ in range(self.blocks)], rng.sample(range(self.workers), self.holders))
            for _ in range(count)
        ]

    def half_hits(self) -> list[list[int]]:
        """The prompts with another second half."""
        rng = random.Random(2)
        half = self.blocks // 2
        return [chain[:half] + [rng.getrandbits(63) for _ in range(self.blocks - half)] for chain, _ in self.prompts()]

    def events(self, per_event: int) -> Iterator[tuple[int, list[int], range]]:
        """What each worker stores: which blocks of which chain."""
        for chain, holders in self.prompts():
            for worker in holders:
                for start in range(0, len(chain), per_event):
                    yield worker, chain, range(start, min(start + per_event, len(chain)))


def measured(
    load: Load, find: Callable[[Sequence[int]], Mapping[Any, int]], hash_blocks: Callable[[list[int]], object]
) -> dict[str, float]:
    """Searches per CPU second of the process; CPU microseconds of hashing 2 048 tokens."""
    chains = [chain for chain, _ in load.prompts()]
    found = find(chains[0])
    if len(found) != load.holders or set(found.values()) != {load.blocks}:
        raise RuntimeError(f"the index found {found}")
    tokens = [random.Random(4).randrange(100_000) for _ in range(2048)]
    return {
        "full_hit": load.finds / _cpu_s(find, chains, load.finds),
        "half_hit": load.finds / _cpu_s(find, load.half_hits(), load.finds),
        "hashing_us": _cpu_s(hash_blocks, [tokens], 2000) / 2000 * 1e6,
    }


def _cpu_s(call: Callable[[list[int]], object], each: list[list[int]], calls: int) -> float:
    """Of so many calls, over ``each`` in turn, in another order than they were stored."""
    random.Random(3).shuffle(each)
    arguments = list(islice(cycle(each), calls))
    began_s = time.process_time()
    for argument in arguments:
        call(argument)
    return time.process_time() - began_s
