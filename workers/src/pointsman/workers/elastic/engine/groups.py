"""Processes that compute one iteration together, joined for it without restarting any of them.

No global world exists: a group is its members and an epoch, and its processes meet at a store that the manager names.
"""

import threading
from collections.abc import Callable, Sequence
from datetime import timedelta
from typing import Final, TypeVar

import torch
import torch.distributed as dist

JOIN_SECONDS: Final = 3.0
"""Members that live meet within milliseconds; one that died meanwhile must not be waited for."""

T = TypeVar("T")


class GroupBroken(RuntimeError):
    """A member did not answer in time, or its connection broke. The group is of no more use."""


def meet(work: Callable[[], T]) -> T:
    """What ``work`` returns, which joins groups. Raises GroupBroken as it does, and after `JOIN_SECONDS`.

    Gloo waits five times its limit for a member that died between coming and connecting, and torch's store for ever
    for an answer of one that stands still. So it works in a thread, which is left alone then.
    """
    done: list[T | Exception] = []

    def run() -> None:
        try:
            done.append(work())
        except Exception as error:  # noqa: BLE001 - whatever it is, the caller must hear of it
            done.append(error)

    thread = threading.Thread(target=run, name="meeting", daemon=True)
    thread.start()
    thread.join(JOIN_SECONDS)
    if not done:
        raise GroupBroken(f"the members did not meet within {JOIN_SECONDS:g} s")
    (found,) = done
    if isinstance(found, Exception):
        raise found
    return found


class Sent:
    """A transfer that is under way. ``host``: what travels of ``tensor``, in the memory of the host."""

    def __init__(self, work: "dist.Work", tensor: torch.Tensor, host: torch.Tensor, timeout: timedelta) -> None:
        self._work = work
        self._timeout = timeout
        self._host = host
        self.tensor = tensor

    def wait(self) -> torch.Tensor:
        """The tensor, once it is here (or gone). Raises GroupBroken."""
        try:
            self._work.wait(self._timeout)
        except RuntimeError as error:
            raise GroupBroken(str(error)) from error
        if self._host is not self.tensor:
            self.tensor.copy_(self._host)
        return self.tensor


class Group:
    """The members of an iteration, of whom this process is number ``rank``."""

    def __init__(self, rank: int, size: int, process_group: "dist.ProcessGroup | None", timeout_s: float) -> None:
        self.rank = rank
        self.size = size
        self._group = process_group
        self._timeout = timedelta(seconds=timeout_s)

    @classmethod
    def alone(cls) -> "Group":
        """Of one member, who needs nobody."""
        return cls(0, 1, None, 0.0)

    @classmethod
    def join(
        cls, store: "dist.Store", epoch: str, members: Sequence[str], me: str, *, address: str, timeout_s: float
    ) -> "Group":
        """Meet the other ``members`` (names) of ``epoch``; all of them call this.

        ``address``: the own one, the only one that peers can connect to. ``timeout_s``: how long one transfer may take,
        the time included that a peer computes before it; a peer that died is noticed at once.
        Raises GroupBroken where a member does not come, by itself only after minutes at worst: see `meet`.
        """
        if len(members) == 1:
            return cls.alone()
        options = dist.ProcessGroupGloo._Options()
        options._devices = [dist.ProcessGroupGloo.create_device(hostname=address)]
        options._timeout = timedelta(seconds=JOIN_SECONDS)
        rank = list(members).index(me)
        try:
            made = dist.ProcessGroupGloo(dist.PrefixStore(f"{epoch}/", store), rank, len(members), options)
        except RuntimeError as error:
            raise GroupBroken(f"the members {', '.join(members)} did not meet: {error}") from error
        return cls(rank, len(members), made, timeout_s)

    def send(self, tensor: torch.Tensor, to: int) -> Sent:
        """Begin to send a contiguous ``tensor`` to member ``to``."""
        assert self._group is not None
        try:
            host = tensor.cpu()
            return Sent(self._group.send([host], to, 0), host, host, self._timeout)
        except RuntimeError as error:
            raise GroupBroken(str(error)) from error

    def receive(self, tensor: torch.Tensor, source: int) -> Sent:
        """Begin to receive into ``tensor`` what member ``source`` sends next."""
        assert self._group is not None
        try:
            host = tensor if tensor.device.type == "cpu" else torch.empty_like(tensor, device="cpu")
            return Sent(self._group.recv([host], source, 0), tensor, host, self._timeout)
        except RuntimeError as error:
            raise GroupBroken(str(error)) from error

    def sum(self, tensor: torch.Tensor) -> torch.Tensor:
        """The sum of what all members give, the same at each; ``tensor`` is of no more use. Raises GroupBroken."""
        if self._group is None:
            return tensor
        try:
            host = tensor.cpu()
            options = dist.AllreduceOptions()
            options.timeout = self._timeout
            return Sent(self._group.allreduce([host], options), tensor, host, self._timeout).wait()
        except RuntimeError as error:
            raise GroupBroken(str(error)) from error
