"""Elastic instances as processes, for a parent that says what each iteration is. Runs in the engine environment.

Members are forks of a server that has imported torch and has no threads: a fork of the parent, which has some, now and
then waits for ever for a lock that a thread held. What a member answers is plain data: tokens, counts, positions.
"""

import itertools
import multiprocessing
import os
import queue
import signal
from collections.abc import Sequence
from dataclasses import dataclass, replace
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import torch

from engine.elastic.strict_nccl import GPUS, ShardThreads, StrictShard
from pointsman.serving.elastic.iterations import Move, Prompt, Sampling, Step
from pointsman.workers.elastic.engine.groups import Group
from pointsman.workers.elastic.engine.meeting import GroupBroken
from pointsman.workers.elastic.engine.nccl import Gpu, nccl_environment
from pointsman.workers.elastic.engine.transports import card
from pointsman.workers.elastic.instance.computer import Computer
from pointsman.workers.elastic.instance.loading import gpu_of, load
from pointsman.workers.elastic.instance.settings import InstanceSettings
from pointsman.workers.elastic.instance.shard import Shard, store_at
from pointsman.workers.elastic.instance.shard_processes import ShardProcesses
from pointsman.workers.elastic.protocol import Broken, Done, Iterate, Release

SERVER = multiprocessing.get_context("forkserver")
SERVER.set_forkserver_preload([__name__, "transformers.models.llama.modeling_llama"])  # what its forks import
ADDRESS = "127.0.0.1"
ANSWER_S = 60.0
GREEDY = Sampling(temperature=0.0)


@dataclass
class Member:
    """One process, seen from the parent. ``store``: where groups that it leads meet."""

    name: str
    process: multiprocessing.process.BaseProcess
    pipe: Connection
    store: str = ""

    def ask(self, *question: Any) -> None:
        """Begin something there."""
        self.pipe.send(question)

    def answer(self, limit_s: float = ANSWER_S) -> Any:
        """What came of it. Raises GroupBroken as the member did, and TimeoutError."""
        if not self.pipe.poll(limit_s):
            raise TimeoutError(f"{self.name} does not answer")
        kind, value = self.pipe.recv()
        if kind == "broken":
            raise GroupBroken(value)
        return value

    def kill(self) -> None:
        """As the kernel does without memory; its further shards end by themselves."""
        assert self.process.pid is not None
        os.kill(self.process.pid, signal.SIGKILL)
        self.process.join()


class Members:
    """``size`` instances of the model in ``folder``, cut in ``width`` shards each, with ``slots`` slots.

    ``transport``: "gloo"; one of the stand-ins for NCCL; "gpu": whatever they choose who have the GPUs at hand in turn;
    "hosts": NCCL on the same GPUs, each member as if on a computer of its own.
    """

    def __init__(
        self, folder: Path, size: int, slots: int, width: int = 1, dtype: str = "float32", transport: str = "gloo"
    ) -> None:
        self._numbers = itertools.count(1)
        self._joined: dict[str, tuple[str, tuple[str, ...]]] = {}  # by member: its last epoch, and who was there
        self.all = [self._started(f"i{number}", folder, slots, width, dtype, transport) for number in range(size)]
        try:
            for member in self.all:
                member.store = member.answer()
        except BaseException:
            self.close()
            raise

    def _started(self, name: str, *of: Any) -> Member:
        here, there = SERVER.Pipe()
        member = SERVER.Process(target=_serve, args=(there, name, *of))
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
            known = (f"e{next(self._numbers)}", names)
        self._joined |= dict.fromkeys(names, known)
        sampling = dict.fromkeys([*(each.request for each in prompts), *(each.request for each in steps)], GREEDY)
        what = Iterate(
            next(self._numbers), known[0], names, self.all[chosen[0]].store,
            tuple(prompts), tuple(steps), tuple(moves), sampling,
        )  # fmt: skip
        for number in chosen:
            self.all[number].ask("iterate", what)

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


def die_at(transfer: int, begun: bool, by: int = signal.SIGKILL) -> None:
    """End this process as kill -9 does, at the ``transfer``-th exchange from now: before it, or when it has begun.

    ``by``: SIGSTOP has it stand still instead.
    """
    left = itertools.count(transfer, -1)
    exchange = Group.exchange

    def dying(group: Group) -> Any:
        last = next(left) == 1
        if last and not begun:
            os.kill(os.getpid(), by)
        made = exchange(group)
        if last:
            made.begin = lambda: os.kill(os.getpid(), by)  # type: ignore[method-assign]
        return made

    Group.exchange = dying  # type: ignore[method-assign, assignment]


def as_if_alone(gpu: Gpu | None, name: str) -> Gpu:
    """The GPU as member ``name`` would have it on a computer of its own.

    NCCL refuses two members on one GPU of one host; of hosts with several names, it connects them by TCP.
    """
    assert gpu is not None
    os.environ["NCCL_HOSTID"] = name
    return replace(gpu, card=card(torch.cuda.nccl.version()[:3], name.encode().ljust(16, b"-")))


def _serve(pipe: Connection, name: str, folder: Path, slots: int, width: int, dtype: str, transport: str) -> None:
    on_gpu = transport in ("gpu", "hosts")
    if on_gpu:
        os.environ["CUDA_VISIBLE_DEVICES"] = str(int(name[1:]) % torch.cuda.device_count())
        os.environ |= nccl_environment(ADDRESS)
    settings = InstanceSettings.model_validate(
        {"worker": name, "model": str(folder), "slots": slots, "tensor_parallel": width, "dtype": dtype}
        | {"gpus": int(on_gpu)}
        | {"namespace": "n", "service": "s", "service_uid": "u", "control_token": "a-token-of-the-tests"}
    )
    store, at = store_at(ADDRESS)
    if transport == "gloo" or on_gpu:
        others = ShardProcesses(settings, at)
        instance = load(settings).instance(others.slots(slots))
        gpu = gpu_of(settings, 0)
        if transport == "hosts":
            gpu = as_if_alone(gpu, name)
        computer = Computer(Shard(0, width, name, ADDRESS, instance, store, at, gpu), others)
    else:
        kind = GPUS[transport]
        instance = load(settings).instance(slots)
        shard = StrictShard(0, width, name, ADDRESS, instance, store, at, kind())
        threads: Any = ShardThreads(settings, slots, at, kind)
        computer = Computer(shard, threads)
    pipe.send(("store", at))
    pool = instance.pool
    moved_bytes = {"prefill": 0, "decode": 0, "move": 0}  # since they were asked for, as this member counted them
    while True:
        question, *of = pipe.recv()
        done: queue.SimpleQueue[Any] = queue.SimpleQueue()
        match question:
            case "iterate":
                computer.tell(of[0], done.put)
                answered = done.get()
                phase = "prefill" if of[0].prompts else "decode" if of[0].steps else "move"
                assert answered.moved_bytes is not None
                moved_bytes[phase] += answered.moved_bytes
                match answered:
                    case Done() as found:
                        pipe.send(("tokens", {request: each.token_id for request, each in found.tokens.items()}))
                    case Broken() as found:
                        pipe.send(("broken", found.why))
            case "positions":
                held = {request: pool.positions(request).tolist() for request in pool.requests}
                pipe.send(("positions", held))
            case "die":
                die_at(*of)
                pipe.send(("dying", None))
            case "free":
                pipe.send(("free", pool.free))
            case "moved":
                pipe.send(("moved", moved_bytes))
                moved_bytes = dict.fromkeys(moved_bytes, 0)
            case "release":
                tokens = pool.requests.get(of[0], 0)
                computer.tell(Release((of[0],)), done.put)
                computer.held(done.put)
                done.get()  # of what was told before
                pipe.send(("released", tokens))
