"""What an instance is told, done in a thread of its own, one thing after another."""

import logging
import queue
import socket
import threading
import time
from collections.abc import Callable
from datetime import timedelta
from typing import Final

import torch
import torch.distributed as dist

from pointsman.workers.elastic.engine.groups import Group, GroupBroken
from pointsman.workers.elastic.engine.instance import Instance
from pointsman.workers.elastic.engine.iterations import Sampled
from pointsman.workers.elastic.engine.kv_pool import PoolFull
from pointsman.workers.elastic.engine.sampling import sample
from pointsman.workers.elastic.protocol import Broken, Done, Iterate, Release

log = logging.getLogger(__name__)

TRANSFER_SECONDS: Final = 10.0
"""A transfer between two members takes at most so long, the computing of a layer before it included."""

_STORE_TIMEOUT: Final = timedelta(seconds=1.5)  # torch tries twice, so a store that is gone is noticed within 3 s

Reply = Callable[[Done | Broken], None]


class Computer:
    """Computes for whoever tells it; replies are given in the thread.

    ``instance`` is used by the thread alone. ``address``: of the pod, the only one that is bound.
    """

    def __init__(self, name: str, address: str, instance: Instance) -> None:
        self._name = name
        self._address = address
        self._instance = instance
        self._own_store, self.store = _store_at(address)
        self._stores: dict[str, dist.Store] = {self.store: self._own_store}
        self._group: tuple[str, Group] | None = None  # the last one, by its epoch
        self._todo: queue.SimpleQueue[Callable[[], None] | None] = queue.SimpleQueue()
        self._thread = threading.Thread(target=self._run, name="computing", daemon=True)
        self._thread.start()

    def tell(self, what: Iterate | Release, reply: Reply) -> None:
        """Have it done after all that was told before."""
        self._todo.put(lambda: self._do(what, reply))

    def held(self, reply: Callable[[dict[str, int]], None]) -> None:
        """Tokens of KV by request, after all that was told before."""
        self._todo.put(lambda: reply(self._instance.pool.requests))

    def close(self) -> None:
        """Do nothing more. What is under way ends by itself."""
        self._todo.put(None)

    def _run(self) -> None:
        while (work := self._todo.get()) is not None:
            work()

    def _do(self, what: Iterate | Release, reply: Reply) -> None:
        if isinstance(what, Release):
            for request in what.requests:
                self._instance.pool.release(request)
            return
        began_s = time.monotonic()
        try:
            done = Done(what.number, self._iterate(what), time.monotonic() - began_s)
        except (GroupBroken, PoolFull) as error:
            self._group = None
            if what.store != self.store:
                self._stores.pop(what.store, None)
            log.warning("iteration broken", extra={"iteration": what.number, "why": str(error)})
            reply(Broken(what.number, str(error)))
        except Exception as error:
            # A defect; but the manager must hear of it, or its requests hang.
            self._group = None
            log.exception("iteration broken by a defect", extra={"iteration": what.number})
            reply(Broken(what.number, f"a defect: {error!r}"))
        else:
            reply(done)

    def _iterate(self, what: Iterate) -> dict[str, Sampled]:
        group = self._join(what)
        logits: dict[str, torch.Tensor] = {}
        positions: dict[str, int] = {}
        if what.prompts:
            logits |= self._instance.prefill(what.prompts, group)
            positions |= {prompt.request: len(prompt.token_ids) for prompt in what.prompts}
        if what.steps:
            logits |= self._instance.decode(what.steps, group)
            positions |= {step.request: step.position + 1 for step in what.steps}
        if what.moves:
            self._instance.move(what.moves, group)
        return {
            request: sample(of.float(), what.sampling[request], positions[request]) for request, of in logits.items()
        }

    def _join(self, what: Iterate) -> Group:
        if self._group is not None and self._group[0] == what.epoch:
            return self._group[1]
        self._group = None  # its connections are closed before new ones are made
        if len(what.members) == 1:
            group = Group.alone()
        else:
            group = Group.join(
                self._store(what.store),
                what.epoch,
                what.members,
                self._name,
                address=self._address,
                timeout_s=TRANSFER_SECONDS,
            )
        self._group = (what.epoch, group)
        return group

    def _store(self, at: str) -> dist.Store:
        """The store of another instance. Raises GroupBroken."""
        if at not in self._stores:
            host, _, port = at.rpartition(":")
            try:
                self._stores[at] = _connected(host, int(port))
            except RuntimeError as error:
                raise GroupBroken(f"the store at {at} cannot be reached: {error}") from error
        return self._stores[at]


def _store_at(address: str) -> tuple[dist.Store, str]:
    """A store that listens on ``address`` alone, and where: by itself torch binds every address of the pod."""
    family = socket.AF_INET6 if ":" in address else socket.AF_INET
    listening = socket.create_server((address, 0), family=family)
    host, port = listening.getsockname()[:2]
    store = dist.TCPStore(
        host, port, is_master=True, wait_for_workers=False, master_listen_fd=listening.detach(), timeout=_STORE_TIMEOUT
    )
    return store, f"{host}:{port}"


def _connected(host: str, port: int) -> dist.Store:
    return dist.TCPStore(host, port, is_master=False, timeout=_STORE_TIMEOUT)
