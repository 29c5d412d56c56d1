"""Transfers between the members of a group, listed and then begun together.

NCCL has a stream for each group: a send ends only with its receive, and what is behind it waits. Two members that both
send first and receive then would wait for ever, unless both transfers begin as one. So callers list what goes and comes
in an exchange, and begin it. **Two members begin the exchanges that they have with each other in the same order.**
"""

from datetime import timedelta
from typing import Protocol

import torch
import torch.distributed as dist

from pointsman.workers.elastic.engine.meeting import GroupBroken


class Transfer(Protocol):
    """A tensor that is sent or received."""

    def wait(self) -> torch.Tensor:
        """The tensor; operations that follow find it here (or gone). Raises GroupBroken.

        The exchange must have begun. Over NCCL the GPU waits, and the host does not: see `Group.synchronize`.
        """


class Exchange(Protocol):
    """Transfers that begin together. What is sent must not change before it was waited for."""

    def send(self, tensor: torch.Tensor, to: int) -> Transfer:
        """List a contiguous ``tensor`` for member ``to``. Raises GroupBroken."""

    def receive(self, tensor: torch.Tensor, source: int) -> Transfer:
        """List what member ``source`` sends next, which goes into ``tensor``. Raises GroupBroken."""

    def begin(self) -> None:
        """The list is complete. Raises GroupBroken."""


class SentBytes:
    """Counts the bytes of tensors that this member sends to others of its group."""

    def __init__(self) -> None:
        self._bytes = 0

    def add(self, tensor: torch.Tensor) -> None:
        """It is being sent."""
        self._bytes += tensor.nbytes

    def take(self) -> int:
        """Bytes since the last call."""
        found, self._bytes = self._bytes, 0
        return found


class GlooTransfer:
    """See Transfer. ``host``: what travels of ``tensor``, in the memory of the host."""

    def __init__(self, work: "dist.Work", tensor: torch.Tensor, host: torch.Tensor, timeout: timedelta) -> None:
        self._work = work
        self._timeout = timeout
        self._host = host
        self._tensor = tensor

    def wait(self) -> torch.Tensor:
        """The host waits."""
        try:
            self._work.wait(self._timeout)
        except RuntimeError as error:
            raise GroupBroken(str(error)) from error
        if self._host is not self._tensor:
            self._tensor.copy_(self._host, non_blocking=True)  # what follows on the GPU waits for it
        return self._tensor


def on_host(tensor: torch.Tensor) -> torch.Tensor:
    """What is in ``tensor``, in the host's memory; the tensor itself, if it is there."""
    return tensor if tensor.device.type == "cpu" else room_on_host(tensor).copy_(tensor)


def room_on_host(tensor: torch.Tensor) -> torch.Tensor:
    """For what travels of a GPU's ``tensor``. A GPU copies many times faster to and from pinned memory."""
    return torch.empty_like(tensor, device="cpu", pin_memory=True)


class GlooExchange:
    """See Exchange. Gloo's transfers do not wait for each other, so each begins when it is listed.

    ``group``: None for a member that is alone, whose exchanges are empty.
    """

    def __init__(self, group: "dist.ProcessGroup | None", timeout: timedelta, sent: SentBytes) -> None:
        self._group = group
        self._timeout = timeout
        self._sent = sent

    def send(self, tensor: torch.Tensor, to: int) -> Transfer:
        """See Exchange."""
        assert self._group is not None
        self._sent.add(tensor)
        try:
            host = on_host(tensor)
            return GlooTransfer(self._group.send([host], to, 0), host, host, self._timeout)
        except RuntimeError as error:
            raise GroupBroken(str(error)) from error

    def receive(self, tensor: torch.Tensor, source: int) -> Transfer:
        """See Exchange."""
        assert self._group is not None
        try:
            host = tensor if tensor.device.type == "cpu" else room_on_host(tensor)
            return GlooTransfer(self._group.recv([host], source, 0), tensor, host, self._timeout)
        except RuntimeError as error:
            raise GroupBroken(str(error)) from error

    def begin(self) -> None:
        """All have begun."""
