"""Elastic instances as processes, for a parent that says what each iteration is. Runs in the engine environment.

Members are forks of a server that has imported torch and has no threads: a fork of the parent, which has some, now and
then waits for ever for a lock that a thread held. What a member answers is plain data: tokens, counts, positions.
"""

import multiprocessing
import os
import signal
import time
from collections.abc import Sequence
from dataclasses import dataclass
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist

from pointsman.workers.elastic.engine.architecture import read_shape
from pointsman.workers.elastic.engine.groups import Group, GroupBroken
from pointsman.workers.elastic.engine.instance import Instance
from pointsman.workers.elastic.engine.iterations import Move, Prompt, Step
from pointsman.workers.elastic.engine.kv_pool import KvPool
from pointsman.workers.elastic.engine.model import Llama
from pointsman.workers.elastic.engine.weights import load_weights

SERVER = multiprocessing.get_context("forkserver")
SERVER.set_forkserver_preload([__name__, "transformers.models.llama.modeling_llama"])  # what its forks import
ADDRESS = "127.0.0.1"
TIMEOUT_S = 20.0
CPU = torch.device("cpu")


@dataclass
class Member:
    """One process, seen from the parent."""

    name: str
    process: multiprocessing.process.BaseProcess
    pipe: Connection

    def ask(self, *question: Any) -> None:
        """Begin something there."""
        self.pipe.send(question)

    def answer(self) -> Any:
        """What came of it. Raises GroupBroken as the member did."""
        if not self.pipe.poll(2 * TIMEOUT_S):
            raise TimeoutError(f"{self.name} does not answer")
        kind, value = self.pipe.recv()
        if kind == "broken":
            raise GroupBroken(value)
        return value

    def kill(self) -> None:
        """As a node that loses power."""
        assert self.process.pid is not None
        os.kill(self.process.pid, signal.SIGKILL)
        self.process.join()


class Members:
    """``size`` instances of the model in ``folder``, each with ``slots`` slots."""

    def __init__(self, folder: Path, size: int, slots: int, dtype: torch.dtype = torch.float32) -> None:
        torch.set_num_threads(1)
        self._store = dist.TCPStore(ADDRESS, 0, is_master=True, wait_for_workers=False)
        self._epochs = 0
        self._joined: dict[str, tuple[str, tuple[str, ...]]] = {}  # by member: its last epoch, and who was there
        self.all = [self._started(f"i{number}", folder, slots, dtype) for number in range(size)]

    def _started(self, name: str, folder: Path, slots: int, dtype: torch.dtype) -> Member:
        here, there = SERVER.Pipe()
        member = SERVER.Process(target=_serve, args=(there, name, folder, slots, dtype, self._store.port), daemon=True)
        member.start()
        return Member(name, member, here)

    def iterate(
        self, chosen: Sequence[int], prompts: Sequence[Prompt], steps: Sequence[Step], moves: Sequence[Move] = ()
    ) -> dict[str, int]:
        """One iteration of a group of the ``chosen``: the likeliest next token by request. Raises GroupBroken."""
        self.begin(chosen, prompts, steps, moves)
        return self.end(chosen)

    def begin(
        self, chosen: Sequence[int], prompts: Sequence[Prompt], steps: Sequence[Step], moves: Sequence[Move] = ()
    ) -> None:
        """Have it computed."""
        names = tuple(self.all[number].name for number in chosen)
        before = {self._joined.get(name) for name in names}
        known = before.pop()
        if before or known is None or known[1] != names:  # only a group that nobody left since is used again
            self._epochs += 1
            known = (f"e{self._epochs}", names)
        self._joined |= dict.fromkeys(names, known)
        for number in chosen:
            self.all[number].ask("iterate", known[0], names, list(prompts), list(steps), list(moves))

    def end(self, chosen: Sequence[int]) -> dict[str, int]:
        """What came of it."""
        tokens: dict[str, int] = {}
        for number in chosen:
            tokens |= self.all[number].answer()
        return tokens

    def asked(self, what: str, *more: Any) -> list[Any]:
        """The same question to all."""
        for member in self.all:
            member.ask(what, *more)
        return [member.answer() for member in self.all]

    def close(self) -> None:
        """End all processes."""
        for member in self.all:
            member.process.kill()
            member.process.join()


def _serve(pipe: Connection, me: str, folder: Path, slots: int, dtype: torch.dtype, port: int) -> None:
    torch.set_num_threads(1)
    shape = read_shape(folder)
    instance = Instance(Llama(shape, load_weights(folder, shape, dtype, CPU)), KvPool(shape, slots, dtype, CPU))
    store = dist.TCPStore(ADDRESS, port, is_master=False)
    groups: dict[str, Group] = {}  # the last, by its epoch
    while True:
        question, *of = pipe.recv()
        match question:
            case "iterate":
                epoch, names, prompts, steps, moves = of
                since_s = time.monotonic()
                try:
                    group = groups.get(epoch) or Group.join(
                        store, epoch, names, me, address=ADDRESS, timeout_s=TIMEOUT_S
                    )
                    groups = {epoch: group}
                    logits = instance.prefill(prompts, group) if prompts else {}
                    logits |= instance.decode(steps, group) if steps else {}
                    instance.move(moves, group)
                    pipe.send(("tokens", {request: int(each.argmax()) for request, each in logits.items()}))
                except GroupBroken:
                    groups = {}
                    pipe.send(("broken", f"{time.monotonic() - since_s:.2f}"))
            case "positions":
                held = {request: instance.pool.positions(request).tolist() for request in instance.pool.requests}
                pipe.send(("positions", held))
            case "free":
                pipe.send(("free", instance.pool.free))
            case "sent":
                pipe.send(("sent", instance.sent_bytes))
            case "release":
                pipe.send(("released", instance.pool.release(of[0])))
