"""A stand-in for NCCL on CPU, over gloo. It has NCCL's rules, and none of the luck that small messages have with NCCL.

* A communicator has one stream: what begins later starts when all before it is done.
* A send is done when its receive has begun, and no sooner. Transfers that are coalesced are one operation.
* ``Work.wait`` does not wait. The next operation of torch in that thread does, as the stream of a GPU would.
* What is received is garbage until then, and what is sent must be the same then as when it was sent.
* A communicator never notices anything: not that a peer died, nor that it waits for ever. Only ``abort`` ends that, and
  then the thread goes on with garbage.

What it cannot show: that the host runs ahead of a GPU. Here an operation that needs what was received stops the host.
"""

import os
import queue
import threading
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist
from torch.utils._python_dispatch import TorchDispatchMode

from pointsman.workers.elastic.engine.nccl import Gpu
from pointsman.workers.elastic.engine.transports import card
from pointsman.workers.elastic.instance.loading import load
from pointsman.workers.elastic.instance.settings import InstanceSettings
from pointsman.workers.elastic.instance.shard import Result, Shard, store_of
from pointsman.workers.elastic.protocol import Iterate, Release

ADDRESS = "127.0.0.1"
LONG = timedelta(hours=1)


@dataclass
class Transfer:
    """``tensor`` is the caller's. ``wire`` is what travels: a copy of what is sent, or room for what comes."""

    kind: str
    tensor: torch.Tensor
    wire: torch.Tensor
    peer: int = -1

    def start(self, gloo: Any) -> Any:
        """Gloo's work."""
        if self.kind == "sum":
            return gloo.allreduce([self.wire])
        return (gloo.send if self.kind == "send" else gloo.recv)([self.wire], self.peer, 0)


@dataclass
class Operation:
    """What a stream does at one time, and torch's work of it."""

    transfers: list[Transfer]
    aborted: threading.Event
    done: threading.Event = field(default_factory=threading.Event)

    def run(self, gloo: Any) -> None:
        """In the thread of the communicator's stream."""
        try:
            for work in [each.start(gloo) for each in self.transfers]:
                work.wait(LONG)
        except RuntimeError:
            self.aborted.wait()  # NCCL would not have noticed
        else:
            self.done.set()

    def wait(self) -> None:
        """Have the next operation of this thread wait."""
        _waiting().append(self)

    def settle(self) -> None:
        """That operation waits."""
        while not self.done.wait(0.001) and not self.aborted.is_set():
            pass
        with torch.inference_mode():
            for each in self.transfers if self.done.is_set() else ():
                if each.kind == "send":
                    assert torch.equal(each.tensor, each.wire), "a tensor changed while it was sent"
                else:
                    each.tensor.copy_(each.wire)


class StrictCommunicator:
    """Of `dist.ProcessGroupNCCL`, what the engine uses."""

    def __init__(self, gloo: Any) -> None:
        self._aborted = threading.Event()
        self._listed: list[Transfer] | None = None
        self._stream: queue.SimpleQueue[Operation] = queue.SimpleQueue()
        threading.Thread(target=self._run, args=(gloo,), daemon=True).start()

    def _start_coalescing(self) -> None:
        self._listed = []

    def _end_coalescing(self) -> Any:
        listed, self._listed = self._listed, None
        assert listed
        return self._begin(listed)

    def send(self, tensors: list[torch.Tensor], peer: int, _: int) -> Any:
        """See ProcessGroupNCCL."""
        return self._add(Transfer("send", tensors[0], tensors[0].clone(), peer))

    def recv(self, tensors: list[torch.Tensor], peer: int, _: int) -> Any:
        """See ProcessGroupNCCL."""
        wire = torch.empty_like(tensors[0])
        tensors[0].fill_(torch.nan)
        return self._add(Transfer("recv", tensors[0], wire, peer))

    def allreduce(self, tensors: list[torch.Tensor], _: Any) -> Any:
        """See ProcessGroupNCCL."""
        assert tensors[0].is_contiguous()
        wire = tensors[0].clone()
        tensors[0].fill_(torch.nan)
        return self._add(Transfer("sum", tensors[0], wire))

    def abort(self) -> None:
        """See ProcessGroupNCCL."""
        self._aborted.set()

    def _add(self, transfer: Transfer) -> Any:
        assert transfer.tensor.is_contiguous()
        assert transfer.tensor.numel()
        if self._listed is None:
            return self._begin([transfer])
        self._listed.append(transfer)
        return None

    def _begin(self, transfers: list[Transfer]) -> Operation:
        if self._aborted.is_set():
            raise RuntimeError("NCCL communicator was aborted")
        operation = Operation(transfers, self._aborted)
        self._stream.put(operation)
        return operation

    def _run(self, gloo: Any) -> None:
        while not self._aborted.is_set():
            self._stream.get().run(gloo)


@dataclass
class Works:
    """Some operations."""

    all: list[Operation]

    def wait(self) -> None:
        """See Operation."""
        for each in self.all:
            each.wait()


class HastyCommunicator(StrictCommunicator):
    """Whose caller does not coalesce: each transfer is an operation of its own."""

    def _start_coalescing(self) -> None:
        self._works = Works([])

    def _end_coalescing(self) -> Any:
        return self._works

    def _add(self, transfer: Transfer) -> Any:
        work = self._begin([transfer])
        if transfer.kind != "sum":
            self._works.all.append(work)
        return work


class StrictGpu(Gpu):
    """One that nobody else has."""

    communicator = StrictCommunicator

    def __init__(self) -> None:
        super().__init__(torch.device("cpu"), card((2, 29, 7), os.urandom(16)))

    def connect(self, store: dist.Store, rank: int, size: int) -> Any:
        """See Gpu."""
        options = dist.ProcessGroupGloo._Options()
        options._devices = [dist.ProcessGroupGloo.create_device(hostname=ADDRESS)]
        options._timeout = LONG
        return self.communicator(dist.ProcessGroupGloo(store, rank, size, options))

    def synchronize(self) -> None:
        """See Gpu."""
        _settle()

    def settle(self) -> None:
        """See Gpu. What was begun belongs to a communicator that has ended."""


class HastyGpu(StrictGpu):
    """Groups of which never coalesce."""

    communicator = HastyCommunicator


GPUS = {"strict": StrictGpu, "hasty": HastyGpu}


class Stream(TorchDispatchMode):  # type: ignore[misc]
    """The stream on which a thread computes."""

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """See TorchDispatchMode."""
        _settle()
        return func(*args, **(kwargs or {}))


class StrictShard(Shard):
    """That computes on such a stream."""

    def iterate(self, what: Iterate) -> Result:
        """See Shard."""
        with Stream():
            return super().iterate(what)


class ShardThreads:
    """The further shards of an instance, as ShardProcesses has them, in threads that share this process."""

    closing = False

    def __init__(self, settings: InstanceSettings, slots: int, store_at: str, gpu: type[StrictGpu]) -> None:
        width = settings.tensor_parallel
        self._told: list[queue.SimpleQueue[Iterate | Release]] = []
        self._results: list[queue.SimpleQueue[Result]] = []
        for number in range(1, width):
            instance = load(settings, number).instance(slots)
            store = store_of(store_at)
            shard = StrictShard(number, width, settings.worker, ADDRESS, instance, store, store_at, gpu())
            self._told.append(queue.SimpleQueue())
            self._results.append(queue.SimpleQueue())
            threading.Thread(target=self._serve, args=(shard, number - 1), daemon=True).start()

    def tell(self, what: Iterate | Release) -> None:
        """See ShardProcesses."""
        for each in self._told:
            each.put(what)

    def results(self) -> list[Result]:
        """See ShardProcesses."""
        return [each.get() for each in self._results]

    def _serve(self, shard: Shard, at: int) -> None:
        while True:
            match self._told[at].get():
                case Iterate() as what:
                    self._results[at].put(shard.iterate(what))
                case Release() as what:
                    shard.release(what)


_OF_THREAD = threading.local()


def _waiting() -> list[Operation]:
    """Operations for which the next one of this thread waits."""
    found: list[Operation] = _OF_THREAD.__dict__.setdefault("waiting", [])
    return found


def _settle() -> None:
    waiting = _waiting()
    while waiting:
        waiting.pop(0).settle()
