"""Two shards of an instance when one is late, breaks, cannot sample, or its peer stands still. Prints JSON.

python -m engine.elastic.shards MODEL_FOLDER
"""

import json
import multiprocessing
import os
import signal
import sys
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import torch

from pointsman.serving.elastic.iterations import Move, Prompt, Sampling, Step
from pointsman.workers.elastic.engine.meeting import JOIN_S, GroupBroken
from pointsman.workers.elastic.instance.loading import load
from pointsman.workers.elastic.instance.settings import InstanceSettings
from pointsman.workers.elastic.instance.shard import Result, Shard, store_at, store_of
from pointsman.workers.elastic.protocol import Iterate

SPAWN = multiprocessing.get_context("spawn")
ADDRESS = "127.0.0.1"
SLOTS = 100
PROMPT = Prompt("r", tuple(range(5, 25)), ((0, 20),))
MOVE = Move("r", 0, 0, 1)


class Pair:
    """The shards of one instance, each in a thread."""

    def __init__(self, name: str, instances: Sequence[Any]) -> None:
        self.store, self.at = store_at(ADDRESS)
        stores = (self.store, store_of(self.at))
        self.shards = [
            Shard(number, 2, name, ADDRESS, instance, store, self.at)
            for number, (instance, store) in enumerate(zip(instances, stores, strict=True))
        ]
        self._threads = ThreadPoolExecutor(2)
        self._number = 0

    def iterate(
        self, *, epoch: str = "e", store: str = "", members: tuple[str, ...] = ("i0",), **what: Any
    ) -> list[Result]:
        """Of both."""
        self._number += 1
        told = Iterate(self._number, epoch, members, store or self.at, **what)
        return list(self._threads.map(lambda shard: shard.iterate(told), self.shards))


def moving(first: Callable[[], None], second: Callable[[], None], name: str = "i0") -> Pair:
    """Shards whose moves are these, and nothing else."""
    pool = SimpleNamespace(free=SLOTS, release=lambda _: 0)
    moves = (first, second)
    return Pair(
        name,
        [SimpleNamespace(pool=pool, move=lambda *_, move=move: move(), moved_bytes=lambda *_: 0) for move in moves],
    )


def nothing() -> None:
    """A move that is done at once."""


def late() -> dict[str, Any]:
    """One shard needs more than the seconds in which members have to meet."""
    return told(moving(nothing, lambda: time.sleep(JOIN_S + 0.5)).iterate(moves=(MOVE,)))


def broken() -> dict[str, Any]:
    """One shard is through when the other one breaks; the next iteration works."""
    breaks = [False, True]

    def second() -> None:
        time.sleep(0.5)
        if breaks.pop():
            raise GroupBroken("its peer is dead")

    pair = moving(nothing, second)
    return told(pair.iterate(moves=(MOVE,))) | {"after": told(pair.iterate(moves=(MOVE,)))}


def no_memory() -> dict[str, Any]:
    """The GPU of one shard has too little memory for an iteration; the next one works."""
    fails = [False, True]

    def second() -> None:
        if fails.pop():
            raise torch.OutOfMemoryError("out of memory")

    pair = moving(nothing, second)
    return told(pair.iterate(moves=(MOVE,))) | {"after": told(pair.iterate(moves=(MOVE,)))}


def unsampled(folder: Path) -> dict[str, Any]:
    """A step whose token cannot be drawn leaves no trace on either shard, and is computed again."""
    settings = InstanceSettings.model_validate(
        {"namespace": "n", "service": "s", "service_uid": "u", "worker": "i0", "control_token": "a-token-of-the-tests"}
        | {"model": str(folder), "dtype": "float32", "tensor_parallel": 2}
    )
    pair = Pair("i0", [load(settings, number).instance(SLOTS) for number in range(2)])
    greedy = {"r": Sampling(temperature=0)}
    (first, _) = pair.iterate(prompts=(PROMPT,), sampling=greedy)
    step = Step("r", first.tokens["r"].token_id, 20, 0, (0,))
    failed = told(pair.iterate(steps=(step,), sampling={"r": Sampling(temperature=0, logprobs=-1)}))
    held = [shard.instance.pool.positions("r").tolist() == list(range(20)) for shard in pair.shards]
    again = pair.iterate(steps=(step,), sampling=greedy)
    whole = Prompt("whole", (*PROMPT.token_ids, step.token_id), ((0, 21),))
    (right, _) = pair.iterate(prompts=(whole,), sampling={"whole": Sampling(temperature=0)})
    same = again[0].tokens["r"] == right.tokens["whole"]
    return failed | {"held": held, "same": same, "after": told(again)}


def told(results: Sequence[Result]) -> dict[str, Any]:
    """What both say."""
    return {"agree": results[0].agrees(results[1]), "why": [each.why for each in results]}


def stands_still() -> float:
    """Seconds until it is noticed that the first member of a group stands still, as a node that is cut off."""
    here, there = SPAWN.Pipe()
    leader = SPAWN.Process(target=_lead, args=(there,), daemon=True)
    leader.start()
    at = here.recv()
    pair = moving(nothing, nothing)
    assert leader.pid is not None
    os.kill(leader.pid, signal.SIGSTOP)
    began_s = time.monotonic()
    results = pair.iterate(epoch="other", store=at, members=("i1", "i0"), moves=(MOVE,))
    took_s = time.monotonic() - began_s
    leader.kill()
    assert all(each.why for each in results), results
    return took_s


def _lead(pipe: Any) -> None:
    store, at = store_at(ADDRESS)
    pipe.send(at)
    pipe.recv()
    del store


def keys_left(epochs: int) -> int:
    """In a store at which two instances have met so often."""
    pairs = [moving(nothing, nothing, name) for name in ("i0", "i1")]
    with ThreadPoolExecutor(2) as threads:
        for number in range(epochs):
            at, epoch = pairs[0].at, f"e{number}"
            both = [
                threads.submit(pair.iterate, epoch=epoch, store=at, members=("i0", "i1"), moves=(MOVE,))
                for pair in pairs
            ]
            assert not any(result.why for each in both for result in each.result())
    keys: int = pairs[0].store.num_keys()
    return keys


def main(folder: Path) -> dict[str, Any]:
    """By what happens: what came of it."""
    torch.set_num_threads(1)
    return {
        "late": late(), "broken": broken(), "no_memory": no_memory(), "unsampled": unsampled(folder),
        "stands_still": stands_still(), "keys": [keys_left(2), keys_left(30)],
    }  # fmt: skip


if __name__ == "__main__":
    print(json.dumps(main(Path(sys.argv[1]))), flush=True)
    os._exit(0)  # a thread still waits for who stood still
