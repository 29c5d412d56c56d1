"""One shard of an instance at work: what it is told, in groups that it forms for it."""

import logging
import socket
from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Final

import torch
import torch.distributed as dist

from pointsman.serving.elastic.iterations import Sampled
from pointsman.workers.elastic.engine.exchanges import SentBytes
from pointsman.workers.elastic.engine.groups import Group
from pointsman.workers.elastic.engine.instance import Instance
from pointsman.workers.elastic.engine.kv_pool import PoolFull
from pointsman.workers.elastic.engine.meeting import GroupBroken, meet
from pointsman.workers.elastic.engine.nccl import Gpu
from pointsman.workers.elastic.engine.sampling import sample
from pointsman.workers.elastic.protocol import Iterate, Release

log = logging.getLogger(__name__)

TRANSFER_S: Final = 10.0
"""A transfer between two members takes at most so long, the computing of a layer before it included."""

_STORE_TIMEOUT: Final = timedelta(seconds=1.5)  # torch tries twice, so a store that is gone is noticed within 3 s


@dataclass(frozen=True, slots=True)
class Result:
    """Of an iteration: ``free`` slots afterwards; ``why`` it broke, if it did; ``tokens``, of the first shard.

    ``moved_bytes``: of KV that this shard sent to other instances, also between this iteration and the one before.
    """

    free: int
    why: str | None = None
    moved_bytes: int = 0
    tokens: dict[str, Sampled] = field(default_factory=dict, repr=False)  # a client's answer: not for logs

    def agrees(self, other: "Result") -> bool:
        """Whether two shards hold the same tokens."""
        return (self.free, self.why is None) == (other.free, other.why is None)


@dataclass(frozen=True, slots=True)
class _Met:
    """Groups that work: of the same shard of other instances for one ``epoch``, and of this instance's ``shards``."""

    epoch: str
    store: dist.Store
    group: Group
    shards: Group

    def close(self) -> None:
        """Both."""
        self.group.close()
        self.shards.close()


class Shard:
    """Shard ``number`` of the ``width`` shards of ``name``. It meets those of its number in other instances.

    ``address``: of the pod, the only one that is bound. ``store`` is the instance's own, reached at ``store_at``.
    ``gpu``: for groups over NCCL.
    """

    def __init__(
        self,
        number: int,
        width: int,
        name: str,
        address: str,
        instance: Instance,
        store: dist.Store,
        store_at: str,
        gpu: Gpu | None = None,
    ) -> None:
        self._number = number
        self._names = [str(shard) for shard in range(width)]
        self._name = name
        self._address = address
        self._gpu = gpu
        self.instance = instance
        self._store_at = store_at
        self._stores = {store_at: store}
        self._met: _Met | None = None
        self._sent_bytes = SentBytes()  # to other instances, through all groups
        self._told = 0  # iterations, the same number on each shard
        self._used: tuple[str, ...] = ()  # what keys of meetings begin with, in the own store

    def release(self, what: Release) -> None:
        """Free what its requests have."""
        for request in what.requests:
            self.instance.pool.release(request)

    def iterate(self, what: Iterate) -> Result:
        """Compute it, and say what came of it.

        What breaks leaves no connections behind, and no KV but that of steps before this one: the manager has prompts
        and moves computed again.
        """
        self._told += 1
        try:
            tokens, moved_bytes = self._iterated(what)
            return Result(self.instance.pool.free, moved_bytes=moved_bytes, tokens=tokens)
        except (GroupBroken, PoolFull) as error:
            why = str(error)
        except torch.OutOfMemoryError as error:
            why = f"the GPU's memory does not suffice for it: {error}"
            torch.cuda.empty_cache()  # what was cached may have been in pieces that are too small
        except Exception as error:
            # A defect; but the manager must hear of it, or its requests hang.
            why = f"a defect: {error!r}"
            log.exception("iteration failed with an internal error", extra={"iteration": what.number})
        if self._met is not None:
            self._met.close()
            self._met = None
        sent_bytes = self._sent_bytes.take()
        if what.store != self._store_at:
            self._stores.pop(what.store, None)
        for request in (*(each.request for each in what.prompts), *(each.request for each in what.moves)):
            self.instance.pool.release(request)
        for step in what.steps:
            self.instance.pool.undo(step.request, step.position)
        log.warning("iteration broken", extra={"iteration": what.number, "shard": self._number, "why": why})
        moves_only = not (what.prompts or what.steps)  # else attention needed a part, nobody knows how much
        return Result(self.instance.pool.free, why, sent_bytes if moves_only else 0)

    def _iterated(self, what: Iterate) -> tuple[dict[str, Sampled], int]:
        if self._met is None or self._met.epoch != what.epoch:
            self._meet(what)
        assert self._met is not None
        group, shards = self._met.group, self._met.shards
        group.begin()
        shards.begin()
        logits: dict[str, torch.Tensor] = {}  # (vocabulary,), the same on each shard
        positions = {prompt.request: len(prompt.token_ids) for prompt in what.prompts}
        positions |= {step.request: step.position + 1 for step in what.steps}
        if what.prompts:
            logits |= self.instance.prefill(what.prompts, group, shards)
        if what.steps:
            logits |= self.instance.decode(what.steps, group, shards)
        if what.moves:
            self.instance.move(what.moves, group)
        group.end()
        shards.end()
        tokens = sample(logits, what.sampling, positions) if self._number == 0 else {}
        shards.agree()  # it is over on all, or broken on all
        return tokens, self.instance.moved_bytes(what.prompts, what.steps, group)

    def _meet(self, what: Iterate) -> None:
        """Raises GroupBroken."""
        own = self._stores[self._store_at]
        store, shards = self._stores.get(what.store), None
        if self._met is not None:
            self._met.group.close()
            shards, self._met = self._met.shards, None  # connections are closed before new ones are made
        before, using = self._used, (f"{what.epoch}/{self._number}/", f"shards/{self._told}/")
        self._used = before + using  # also if nobody meets
        try:
            self._met = meet(lambda: self._joined(what, store, own, shards))
        except BaseException:
            if shards is not None:
                shards.close()
            raise
        self._stores[what.store] = self._met.store
        for key in own.list_keys() if before else ():
            if key.startswith(before):  # or the store would grow for ever
                own.delete_key(key)
        self._used = using
        self._met.group.connect()
        self._met.shards.connect()

    def _joined(self, what: Iterate, store: "dist.Store | None", own: dist.Store, shards: Group | None) -> _Met:
        """Changes nothing here: it may end too late."""
        if store is None:
            try:
                store = store_of(what.store)
            except RuntimeError as error:
                raise GroupBroken(f"the store at {what.store} cannot be reached: {error}") from error
        group = self._join(store, f"{what.epoch}/{self._number}", what.members, self._name, self._sent_bytes)
        if shards is None:
            shards = self._join(own, f"shards/{self._told}", self._names, self._names[self._number])
        return _Met(what.epoch, store, group, shards)

    def _join(
        self, store: dist.Store, epoch: str, members: Sequence[str], me: str, sent_bytes: SentBytes | None = None
    ) -> Group:
        return Group.join(
            store, epoch, members, me,
            address=self._address, timeout_s=TRANSFER_S, gpu=self._gpu, sent_bytes=sent_bytes,
        )  # fmt: skip


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
