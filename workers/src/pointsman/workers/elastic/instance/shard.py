"""One shard of an instance at work: what it is told, in groups that it forms for it."""

import logging
import socket
from dataclasses import dataclass
from datetime import timedelta
from typing import Final

import torch
import torch.distributed as dist

from pointsman.workers.elastic.engine.groups import Group, GroupBroken
from pointsman.workers.elastic.engine.instance import Instance
from pointsman.workers.elastic.engine.kv_pool import PoolFull
from pointsman.workers.elastic.protocol import Iterate, Release

log = logging.getLogger(__name__)

TRANSFER_SECONDS: Final = 10.0
"""A transfer between two members takes at most so long, the computing of a layer before it included."""

_STORE_TIMEOUT: Final = timedelta(seconds=1.5)  # torch tries twice, so a store that is gone is noticed within 3 s


@dataclass(frozen=True, slots=True)
class Result:
    """Of an iteration: ``free`` slots afterwards, and ``why`` it broke, if it did."""

    free: int
    why: str | None = None

    def agrees(self, other: "Result") -> bool:
        """Whether two shards hold the same tokens. Of what broke they may not, until that is released."""
        if self.why is not None or other.why is not None:
            return self.why is not None and other.why is not None
        return self.free == other.free


class Shard:
    """Shard ``number`` of the ``width`` shards of ``name``. It meets those of its number in other instances.

    ``address``: of the pod, the only one that is bound. ``store`` is the instance's own, reached at ``store_at``.
    """

    def __init__(
        self, number: int, width: int, name: str, address: str, instance: Instance, store: dist.Store, store_at: str
    ) -> None:
        self._number = number
        self._names = [str(shard) for shard in range(width)]
        self._name = name
        self._address = address
        self.instance = instance
        self._store_at = store_at
        self._stores = {store_at: store}
        self._group: tuple[str, Group] | None = None  # the last one, by its epoch
        self._shards: Group | None = None
        self._told = 0  # iterations, the same number on each shard
        self.logits: dict[str, torch.Tensor] = {}
        """Of the requests of the last iteration that are mastered here: (vocabulary,), the same on each shard."""

    def release(self, what: Release) -> None:
        """Free what its requests have."""
        for request in what.requests:
            self.instance.pool.release(request)

    def iterate(self, what: Iterate) -> Result:
        """Compute it, and say what came of it; whatever breaks leaves no connections behind."""
        self.logits = {}
        self._told += 1
        try:
            self._iterate(what)
            return Result(self.instance.pool.free)
        except (GroupBroken, PoolFull) as error:
            why = str(error)
        except Exception as error:
            # A defect; but the manager must hear of it, or its requests hang.
            why = f"a defect: {error!r}"
            log.exception("iteration broken by a defect", extra={"iteration": what.number})
        self._group = self._shards = None  # whoever waits for this shard notices
        if what.store != self._store_at:
            self._stores.pop(what.store, None)
        log.warning("iteration broken", extra={"iteration": what.number, "shard": self._number, "why": why})
        return Result(self.instance.pool.free, why)

    def _iterate(self, what: Iterate) -> None:
        group, shards = self._join(what), self._join_shards()
        if what.prompts:
            self.logits |= self.instance.prefill(what.prompts, group, shards)
        if what.steps:
            self.logits |= self.instance.decode(what.steps, group, shards)
        if what.moves:
            self.instance.move(what.moves, group)
            shards.sum(torch.zeros(1))  # each has moved its part: nothing else makes them wait for each other here

    def _join(self, what: Iterate) -> Group:
        if self._group is not None and self._group[0] == what.epoch:
            return self._group[1]
        self._group = None  # its connections are closed before new ones are made
        if len(what.members) == 1:
            group = Group.alone()
        else:
            group = self._met(self._store(what.store), f"{what.epoch}/{self._number}", what.members, self._name)
        self._group = (what.epoch, group)
        return group

    def _join_shards(self) -> Group:
        if self._shards is None:
            store, me = self._stores[self._store_at], self._names[self._number]
            self._shards = self._met(store, f"shards/{self._told}", self._names, me)
        return self._shards

    def _met(self, store: dist.Store, epoch: str, members: "tuple[str, ...] | list[str]", me: str) -> Group:
        return Group.join(store, epoch, members, me, address=self._address, timeout_s=TRANSFER_SECONDS)

    def _store(self, at: str) -> dist.Store:
        """The store of an instance. Raises GroupBroken."""
        if at not in self._stores:
            try:
                self._stores[at] = store_of(at)
            except RuntimeError as error:
                raise GroupBroken(f"the store at {at} cannot be reached: {error}") from error
        return self._stores[at]


def store_at(address: str) -> tuple[dist.Store, str]:
    """A store that listens on ``address`` alone, and where: by itself torch binds every address of the pod."""
    family = socket.AF_INET6 if ":" in address else socket.AF_INET
    listening = socket.create_server((address, 0), family=family)
    host, port = listening.getsockname()[:2]
    store = dist.TCPStore(
        host, port, is_master=True, wait_for_workers=False, master_listen_fd=listening.detach(), timeout=_STORE_TIMEOUT
    )
    return store, f"{host}:{port}"


def store_of(at: str) -> dist.Store:
    """The store that listens ``at`` host:port. Raises RuntimeError where there is none."""
    host, _, port = at.rpartition(":")
    return dist.TCPStore(host, int(port), is_master=False, timeout=_STORE_TIMEOUT)
