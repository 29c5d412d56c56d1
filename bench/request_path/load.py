"""The load of the index benchmarks, the same for ours and the peer. Standard library only: both sides read it."""

import random
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import cycle, islice

Worker = int
Block = int


@dataclass(frozen=True)
class Load:
    """``prompts`` of ``blocks`` blocks, each on ``holders`` of ``workers`` workers; ``finds`` searches of each kind."""

    workers: int = 64
    prompts_per_worker: int = 78
    blocks: int = 128
    holders: int = 4
    finds: int = 100_000

    def prompts(self) -> list[tuple[list[Block], list[Worker]]]:
        """Chained hashes (63 bits, which the peer takes too) and the workers that hold them, from a fixed seed."""
        rng = random.Random(1)
        count = self.workers * self.prompts_per_worker // self.holders
        return [
            ([rng.getrandbits(63) for _ in range(self.blocks)], rng.sample(range(self.workers), self.holders))
            for _ in range(count)
        ]

    def half_hits(self) -> list[list[Block]]:
        """The prompts with another second half."""
        rng = random.Random(2)
        half = self.blocks // 2
        return [chain[:half] + [rng.getrandbits(63) for _ in range(self.blocks - half)] for chain, _ in self.prompts()]


def finds_per_second(find: Callable[[Sequence[Block]], object], chains: Sequence[Sequence[Block]], finds: int) -> float:
    """Searches per CPU second of the process, over ``chains`` in turn, in another order than they were stored."""
    shuffled = list(chains)
    random.Random(3).shuffle(shuffled)
    queries = list(islice(cycle(shuffled), finds))
    began_s = time.process_time()
    for chain in queries:
        find(chain)
    return finds / (time.process_time() - began_s)
