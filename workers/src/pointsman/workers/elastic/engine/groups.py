"""Processes that compute one iteration together, joined for it without restarting any of them.

No global world exists: a group is its members and an epoch, and its processes meet at a store that the manager names.
"""

import weakref
from collections.abc import Sequence
from datetime import timedelta
from typing import Literal

import torch
import torch.distributed as dist

from pointsman.workers.elastic.engine.exchanges import (
    Exchange,
    GlooExchange,
    GlooTransfer,
    SentBytes,
    Transfer,
    on_host,
)
from pointsman.workers.elastic.engine.liveness import Watch
from pointsman.workers.elastic.engine.meeting import JOIN_S, GroupBroken
from pointsman.workers.elastic.engine.nccl import Gpu, Nccl
from pointsman.workers.elastic.engine.transports import CARD_BYTES, NO_CARD, all_beat, nccl_connects


class Group:
    """The members of an iteration, of whom this process is number ``rank``.

    All have ``gloo``, by way of the host's memory. Where each has a GPU of its own, tensors travel by ``nccl``; what
    the host itself says to others goes by gloo still. An iteration is between `begin` and `end`.
    """

    def __init__(
        self,
        rank: int,
        size: int,
        gloo: "dist.ProcessGroup | None" = None,
        timeout_s: float = 0.0,
        watch: Watch | None = None,
        nccl: Nccl | None = None,
        sent_bytes: SentBytes | None = None,
    ) -> None:
        self.rank = rank
        self.size = size
        self._gloo = gloo
        self._timeout = timedelta(seconds=timeout_s)
        self._nccl = nccl
        self.sent_bytes = SentBytes() if sent_bytes is None else sent_bytes
        self._watch = watch
        # What ends with the group, the last one first; also with a meeting that was too late, whose group nobody gets.
        self._ends: list[weakref.finalize[..., Group]] = []
        if nccl is not None:
            self._ends.append(weakref.finalize(self, nccl.close))
            self._ends[0].atexit = False  # an abort waits for the GPU; a process that ends needs none
        if watch is not None:
            self._ends.append(weakref.finalize(self, watch.stop))

    @classmethod
    def alone(cls) -> "Group":
        """Of one member, who needs nobody."""
        return cls(0, 1)

    @classmethod
    def join(
        cls,
        store: dist.Store,
        epoch: str,
        members: Sequence[str],
        me: str,
        *,
        address: str,
        timeout_s: float,
        gpu: Gpu | None = None,
        sent_bytes: SentBytes | None = None,
    ) -> "Group":
        """Meet the other ``members`` (names) of ``epoch``; all of them call this, and `connect` after it.

        ``address``: the own one, the only one that peers can connect to. ``timeout_s``: how long one transfer may take,
        the time included that a peer computes before it; a peer that died or stands still is noticed sooner.
        ``gpu``: None if nothing may travel by NCCL to or from this member. ``sent_bytes``: counts what this member
        sends to others, except sums of all members; it may be that of the group before.
        Raises GroupBroken where a member does not come, by itself only after minutes at worst: see `meet`.
        """
        if len(members) == 1:
            return cls(0, 1, sent_bytes=sent_bytes)
        rank, size = list(members).index(me), len(members)
        try:
            gloo = _gloo(dist.PrefixStore(f"{epoch}/", store), rank, size, address)
            cards = _cards(gloo, size, NO_CARD if gpu is None else gpu.card)
            nccl_store = None
            if nccl_connects(cards):
                nccl_store = dist.PrefixStore(f"{epoch}/nccl/", store.clone())
        except RuntimeError as error:
            raise GroupBroken(f"the members {', '.join(members)} did not meet: {error}") from error
        watch = Watch(gloo, rank, size) if all_beat(cards) else None
        nccl = None
        if gpu is not None and watch is not None and nccl_store is not None:
            nccl = Nccl(gpu, nccl_store, rank, size, watch)
        return cls(rank, size, gloo, timeout_s, watch, nccl, sent_bytes)

    @property
    def transport(self) -> Literal["nccl", "gloo"]:
        """Of tensors."""
        return "gloo" if self._nccl is None else "nccl"

    def connect(self) -> None:
        """Make ready for tensors, with all members; it can take seconds, the first time. Raises GroupBroken."""
        if self._nccl is not None:
            self._nccl.connect()

    def begin(self) -> None:
        """An iteration begins, on all members before any tensor travels by NCCL: it would wait without end for one
        that never got to it. Raises GroupBroken."""
        if self._nccl is not None:
            self.agree()

    def end(self) -> None:
        """An iteration is over, by NCCL on all members: what one of them closes, the others need no more.

        Raises GroupBroken. What was received counts only if it does not.
        """
        if self._nccl is not None:
            self._nccl.synchronize()
            self.agree()

    def synchronize(self) -> None:
        """The host waits until all is here that was waited for. Raises GroupBroken."""
        if self._nccl is not None:
            self._nccl.synchronize()

    def close(self) -> None:
        """The group is of no more use: members that wait for this one find that it is gone."""
        for end in reversed(self._ends):
            end()

    def exchange(self) -> Exchange:
        """An empty one, for tensors of the model's device."""
        if self._nccl is not None:
            return self._nccl.exchange(self.sent_bytes)
        return GlooExchange(self._gloo, self._timeout, self.sent_bytes)

    def send_host(self, tensor: torch.Tensor, to: int) -> Transfer:
        """Begin to send what is in the host's memory. Raises GroupBroken."""
        return GlooExchange(self._gloo, self._timeout, self.sent_bytes).send(tensor, to)

    def receive_host(self, tensor: torch.Tensor, source: int) -> Transfer:
        """Begin to receive the same; the host waits for it. Raises GroupBroken."""
        return GlooExchange(self._gloo, self._timeout, self.sent_bytes).receive(tensor, source)

    def sum(self, tensor: torch.Tensor) -> torch.Tensor:
        """The sum of what all members give, the same at each; ``tensor`` is of no more use. Raises GroupBroken.

        ``tensor`` is contiguous, on the model's device.
        """
        if self._gloo is None:
            return tensor
        return self._host_sum(tensor) if self._nccl is None else self._nccl.sum(tensor)

    def agree(self) -> None:
        """Return when all members have come here. Raises GroupBroken."""
        if self._gloo is not None:
            self._host_sum(torch.zeros(1))

    def _host_sum(self, tensor: torch.Tensor) -> torch.Tensor:
        assert self._gloo is not None
        try:
            host = on_host(tensor)
            options = dist.AllreduceOptions()
            options.timeout = self._timeout
            return GlooTransfer(self._gloo.allreduce([host], options), tensor, host, self._timeout).wait()
        except RuntimeError as error:
            raise GroupBroken(str(error)) from error


def _gloo(store: dist.Store, rank: int, size: int, address: str) -> "dist.ProcessGroup":
    """Connections of all members, on ``address`` alone. Raises RuntimeError."""
    options = dist.ProcessGroupGloo._Options()
    options._devices = [dist.ProcessGroupGloo.create_device(hostname=address)]
    options._timeout = timedelta(seconds=JOIN_S)
    return dist.ProcessGroupGloo(store, rank, size, options)


def _cards(gloo: "dist.ProcessGroup", size: int, own: bytes) -> list[bytes]:
    """What all members publish, in their order. Raises RuntimeError."""
    found = [torch.empty(CARD_BYTES, dtype=torch.uint8) for _ in range(size)]
    gloo.allgather([found], [torch.frombuffer(bytearray(own), dtype=torch.uint8)]).wait()
    return [bytes(each.tolist()) for each in found]
