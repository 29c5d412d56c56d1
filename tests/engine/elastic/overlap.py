"""In which order members exchange and attend, over real connections. Prints JSON.

    python -m engine.elastic.overlap MODEL_FOLDER

Two members in threads prefill and decode together. All that each of them does is noted in the order in which it does
it: an exchange begins, keys at hand are attended over, and what comes is awaited.
"""

import json
import sys
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import torch

from pointsman.serving.elastic.iterations import Prompt, Step
from pointsman.workers.elastic.engine import attention
from pointsman.workers.elastic.engine import instance as module
from pointsman.workers.elastic.engine.architecture import read_shape
from pointsman.workers.elastic.engine.attention import Attended, attend
from pointsman.workers.elastic.engine.groups import Group
from pointsman.workers.elastic.engine.instance import Instance
from pointsman.workers.elastic.engine.kv_pool import KvPool
from pointsman.workers.elastic.engine.model import Llama
from pointsman.workers.elastic.engine.weights import load_weights
from pointsman.workers.elastic.instance.shard import store_at, store_of

ADDRESS = "127.0.0.1"
OF_THREAD = threading.local()
PROMPT = Prompt("r", tuple(range(5, 25)), ((0, 12), (1, 8)))


def note(what: str) -> None:
    """This thread does it now."""
    OF_THREAD.__dict__.setdefault("notes", []).append(what)


class Noted:
    """A transfer whose waiting is noted."""

    def __init__(self, kind: str, transfer: Any) -> None:
        self._kind = kind
        self._transfer = transfer

    def wait(self) -> Any:
        """See Transfer."""
        note(f"await {self._kind}")
        return self._transfer.wait()


class NotedExchange:
    """An exchange of a real group."""

    def __init__(self, exchange: Any) -> None:
        self._exchange = exchange
        self._transfers = 0

    def send(self, tensor: torch.Tensor, to: int) -> Noted:
        """See Exchange."""
        self._transfers += 1
        return Noted("send", self._exchange.send(tensor, to))

    def receive(self, tensor: torch.Tensor, source: int) -> Noted:
        """See Exchange."""
        self._transfers += 1
        return Noted("receive", self._exchange.receive(tensor, source))

    def begin(self) -> None:
        """See Exchange."""
        note(f"begin {self._transfers}")
        self._exchange.begin()


class NotedGroup(Group):
    """Both members, over gloo."""

    def exchange(self) -> Any:
        """See Group."""
        return NotedExchange(super().exchange())


def noted_attend(*tensors: torch.Tensor, causal: bool) -> Attended:
    """As the engine attends."""
    note("attend")
    return attend(*tensors, causal=causal)


def main(folder: Path) -> dict[str, list[list[str]]]:
    """What each member did in the first layer of a prefill, and of a step that the first one masters."""
    torch.set_num_threads(1)
    for each in (module, attention):
        vars(each)["attend"] = noted_attend
    shape = read_shape(folder)
    model = Llama(shape, load_weights(folder, shape, torch.float32, torch.device("cpu")))
    store, at = store_at(ADDRESS)

    def member(rank: int) -> tuple[list[str], list[str]]:
        mine = store if rank == 0 else store_of(at)
        group = NotedGroup.join(mine, "e", ["0", "1"], str(rank), address=ADDRESS, timeout_s=10)
        instance = Instance(model, KvPool(shape, 100, torch.float32, torch.device("cpu")))
        instance.prefill([PROMPT], group)
        prefill, OF_THREAD.notes = OF_THREAD.notes, []
        instance.decode([Step("r", 7, 20, 0, (0, 1))], group)
        return first_layer(prefill, shape.layers), first_layer(OF_THREAD.notes, shape.layers)

    with ThreadPoolExecutor(2) as threads:
        (prefill, decode), (other_prefill, other_decode) = threads.map(member, (0, 1))
    return {"prefill": [prefill, other_prefill], "decode": [decode, other_decode]}


def first_layer(notes: list[str], layers: int) -> list[str]:
    """All layers do the same."""
    share = len(notes) // layers
    assert notes == notes[:share] * layers
    return notes[:share]


if __name__ == "__main__":
    print(json.dumps(main(Path(sys.argv[1]))))
