"""Groups whose tensors travel between GPUs by NCCL.

NCCL does not notice that a peer will never come, and not always that one is dead, so a `Watch` aborts what waits for
one. After that the GPU goes on with whatever is in its memory: nothing of an iteration counts before all members agreed
that it is over.

Never run between two GPUs: see docs/reports/elastic-gpu.md.
"""

import logging
import os
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import timedelta
from typing import Final, TypeVar

import psutil
import torch
import torch.distributed as dist

from pointsman.workers.elastic.engine.exchanges import SentBytes, Transfer
from pointsman.workers.elastic.engine.liveness import Watch
from pointsman.workers.elastic.engine.meeting import GroupBroken, meet
from pointsman.workers.elastic.engine.transports import card

log = logging.getLogger(__name__)

CONNECT_S: Final = 60.0
"""The first communicator of a process takes seconds. A member that dies meanwhile is noticed by the watch."""
ABORT_S: Final = 3.0
"""How long the end of a communicator may take. On a GPU, a call or an abort of NCCL now and then did not return."""
SETTLE_S: Final = 300.0
"""How long the GPU may compute after an abort what it was given before, a long prefill at most: 131 072 tokens took an
H200 17 s."""
_CALL_S: Final = 0.5
_CLOSE_S: Final = 0.5


class _Aborts:
    """Of all communicators of this process. None is made during one: where one was, tokens were wrong."""

    def __init__(self) -> None:
        self.lock = threading.Lock()  # held during each
        self.begun = 0


_ABORTS: Final = _Aborts()

T = TypeVar("T")


@dataclass(frozen=True)
class Gpu:
    """What a process needs for groups over NCCL. ``card``: what it publishes of its GPU to the other members."""

    device: torch.device
    card: bytes

    @classmethod
    def of(cls, device: torch.device) -> "Gpu | None":
        """None for a CPU, or where torch was built without NCCL."""
        if device.type != "cuda" or not dist.is_nccl_available():
            return None
        uuid = bytes(torch.cuda.get_device_properties(device).uuid.bytes)
        return cls(device, card(torch.cuda.nccl.version()[:3], uuid))

    def connect(self, store: dist.Store, rank: int, size: int) -> "dist.ProcessGroup":
        """A communicator of all members, who call this together. Raises RuntimeError."""
        communicator = dist.ProcessGroupNCCL(store, rank, size, dist.ProcessGroupNCCL.Options())
        # Else torch would connect at the first transfer, and wait there for members that have none.
        communicator.eager_connect_single_device(self.device)
        return communicator

    def synchronize(self) -> None:
        """The host waits until the GPU has done all that it was told."""
        torch.cuda.current_stream(self.device).synchronize()

    def settle(self) -> None:
        """The host waits until nothing runs on the GPU for this process, of NCCL neither."""
        torch.cuda.synchronize(self.device)


def nccl_environment(address: str) -> dict[str, str]:
    """Variables for a process that uses NCCL. ``address``: of the pod. Raises OSError if no interface has it.

    NCCL listens on the address of an interface that it chooses by name; torch ends processes whose transfers fail.
    """
    for interface, addresses in psutil.net_if_addrs().items():
        if any(each.address.partition("%")[0] == address for each in addresses):
            return {
                "NCCL_SOCKET_IFNAME": f"={interface}",
                "NCCL_SOCKET_FAMILY": "AF_INET6" if ":" in address else "AF_INET",
                "TORCH_NCCL_ASYNC_ERROR_HANDLING": "0",  # a process whose peer died has KV, and goes on
                "TORCH_NCCL_ENABLE_MONITORING": "0",
                "TORCH_NCCL_DUMP_ON_TIMEOUT": "0",
            }
    raise OSError(f"no network interface has the pod's address {address}")


class Nccl:
    """One member's part of a communicator, from the time at which all members know that there is to be one.

    ``watch``: of the same members.
    """

    def __init__(self, gpu: Gpu, store: dist.Store, rank: int, size: int, watch: Watch) -> None:
        self._gpu = gpu
        self._store = store
        self._rank = rank
        self._size = size
        self._communicator: dist.ProcessGroup | None = None
        self._connected = False
        self._issuing = threading.Lock()
        self._ending = threading.Lock()
        self._watch = watch
        watch.lost = self._abort

    def connect(self) -> None:
        """Together with all members; nothing, if they are connected. Raises GroupBroken."""
        if self._connected:
            return
        self._store.set_timeout(timedelta(seconds=CONNECT_S))
        with _ABORTS.lock:  # an abort ends, or the process does
            begun = _ABORTS.begun
        try:
            self._communicator = meet(
                lambda: self._gpu.connect(self._store, self._rank, self._size), CONNECT_S, self._watch.check
            )
        except GroupBroken:
            raise
        except RuntimeError as error:
            log.error("NCCL cannot connect; ELASTIC_TENSOR_TRANSPORT=gloo does without it", extra={"why": str(error)})
            raise GroupBroken(f"NCCL cannot connect: {error}") from error
        if _ABORTS.begun != begun:
            raise GroupBroken("another communicator was aborted while this one was made")
        self._connected = True
        self._watch.check()  # there was nothing to abort until now

    def exchange(self, sent: SentBytes) -> "NcclExchange":
        """An empty one."""
        return NcclExchange(self, sent)

    def sum(self, tensor: torch.Tensor) -> torch.Tensor:
        """In place, of a contiguous ``tensor``. Raises GroupBroken."""
        if tensor.numel():  # else none of the members has any tokens
            self.issue(lambda communicator: communicator.allreduce([tensor], dist.AllreduceOptions()).wait())
        return tensor

    def synchronize(self) -> None:
        """The host waits until all that was begun is done. Raises GroupBroken if a member is gone."""
        self._gpu.synchronize()
        self._watch.check()  # last: who aborts says before that a member is gone

    def close(self) -> None:
        """Give up whatever is under way. Once all is done here, wait for the other members before this.

        The communicator may take longer to end than this waits: `connect` waits for it.
        """
        aborting = threading.Thread(target=self._abort, name="closing", daemon=True)
        aborting.start()
        aborting.join(_CLOSE_S)

    def issue(self, call: "Callable[[dist.ProcessGroup], T]") -> T:
        """What ``call`` returns, which has the communicator do something. Raises GroupBroken."""
        with self._issuing:
            if self._communicator is None:
                self._watch.check()
                raise GroupBroken("the group is closed")
            try:
                return call(self._communicator)
            except RuntimeError as error:
                raise GroupBroken(str(error)) from error

    def _abort(self) -> None:
        with self._ending:
            communicator, self._communicator = self._communicator, None
        if communicator is None:
            return  # or somebody aborts it now: kernels that wait end at the beginning of an abort
        with _ABORTS.lock:
            _ABORTS.begun += 1
            with _process_ends_after(ABORT_S, "NCCL has not ended a communicator"):
                # NCCL frees the communicator, so no call may be in it; only an abort ends what waits for the dead.
                idle = self._issuing.acquire(timeout=_CALL_S)
                try:
                    communicator.abort()
                except RuntimeError as error:
                    log.warning("NCCL did not end in time", extra={"why": str(error)})
                if not idle:
                    self._issuing.acquire()
                self._issuing.release()
            with _process_ends_after(SETTLE_S, "the GPU has not finished after the end of a communicator"):
                self._gpu.settle()


@contextmanager
def _process_ends_after(seconds: float, what: str) -> Iterator[None]:
    """End this process unless the body ends in time.

    What is computed after that cannot be trusted: the manager has it computed elsewhere.
    """

    def end_process() -> None:
        log.critical("process ends", extra={"seconds": seconds, "why": what})
        os._exit(1)

    limit = threading.Timer(seconds, end_process)
    limit.daemon = True
    limit.start()
    try:
        yield
    finally:
        limit.cancel()


class NcclExchange:
    """See Exchange. Its transfers are one operation of the communicator's stream."""

    def __init__(self, nccl: Nccl, sent: SentBytes) -> None:
        self._nccl = nccl
        self._sent = sent
        self._listed: list[tuple[str, torch.Tensor, int]] = []
        self._work: dist.Work | None = None
        self._begun = False

    def send(self, tensor: torch.Tensor, to: int) -> Transfer:
        """See Exchange."""
        self._sent.add(tensor)
        return self._list("send", tensor, to)

    def receive(self, tensor: torch.Tensor, source: int) -> Transfer:
        """See Exchange."""
        return self._list("recv", tensor, source)

    def begin(self) -> None:
        """See Exchange."""
        self._begun = True
        if self._listed:
            self._work = self._nccl.issue(self._issue)

    def wait(self) -> None:
        """For all of its transfers: the GPU does not go on before. Raises GroupBroken."""
        assert self._begun, "an exchange is waited for that did not begin"
        work, self._work = self._work, None
        if work is not None:
            try:
                work.wait()
            except RuntimeError as error:
                raise GroupBroken(str(error)) from error

    def _list(self, kind: str, tensor: torch.Tensor, peer: int) -> Transfer:
        assert not self._begun, "an exchange has begun that is to have more transfers"
        if tensor.numel():  # a stripe of a short prompt can be empty: both sides know
            self._listed.append((kind, tensor, peer))
        return _NcclTransfer(self, tensor)

    def _issue(self, communicator: "dist.ProcessGroup") -> "dist.Work | None":
        communicator._start_coalescing()
        try:
            for kind, tensor, peer in self._listed:
                (communicator.send if kind == "send" else communicator.recv)([tensor], peer, 0)
        finally:
            work = communicator._end_coalescing()  # else NCCL would never begin anything again in this thread
        return work


@dataclass(frozen=True, slots=True)
class _NcclTransfer:
    exchange: NcclExchange
    tensor: torch.Tensor

    def wait(self) -> torch.Tensor:
        """See Transfer."""
        self.exchange.wait()
        return self.tensor
