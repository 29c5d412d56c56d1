"""What an instance is told, done in a thread of its own, one thing after another, on all shards of the model."""

import logging
import queue
import threading
import time
from collections.abc import Callable

from pointsman.workers.elastic.instance.shard import Shard
from pointsman.workers.elastic.instance.shard_processes import ShardProcesses, end_instance
from pointsman.workers.elastic.protocol import Broken, Done, Iterate, Release

log = logging.getLogger(__name__)

Reply = Callable[[Done | Broken], None]


class Computer:
    """Computes for whoever tells it, on ``shard`` and the ``others``; replies are given in the thread."""

    def __init__(self, shard: Shard, others: ShardProcesses) -> None:
        self._shard = shard
        self._others = others
        self._todo: queue.SimpleQueue[Callable[[], None] | None] = queue.SimpleQueue()
        self._thread = threading.Thread(target=self._run, name="computing", daemon=True)
        self._thread.start()

    def tell(self, what: Iterate | Release, reply: Reply) -> None:
        """Have it done after all that was told before."""
        self._todo.put(lambda: self._do(what, reply))

    def held(self, reply: Callable[[dict[str, int]], None]) -> None:
        """Tokens of KV by request, after all that was told before."""
        self._todo.put(lambda: reply(self._shard.instance.pool.requests))

    def close(self) -> None:
        """Do nothing more. What is under way ends by itself."""
        self._todo.put(None)

    def _run(self) -> None:
        while (work := self._todo.get()) is not None:
            try:
                work()
            except Exception as error:
                if self._others.closing:
                    return
                log.exception("the computing thread fails")
                end_instance(f"a shard of the model is lost, or an internal error: {error!r}")

    def _do(self, what: Iterate | Release, reply: Reply) -> None:
        """Raises EOFError or OSError where a shard is gone."""
        began_s = time.monotonic()
        self._others.tell(what)
        if isinstance(what, Release):
            self._shard.release(what)
            return
        result = self._shard.iterate(what)
        results = [result, *self._others.results()]
        if not all(result.agrees(other) for other in results):
            end_instance(f"its shards disagree: {results}")
        moved_bytes = sum(each.moved_bytes for each in results)
        if result.why is None:
            reply(Done(what.number, result.tokens, time.monotonic() - began_s, moved_bytes))
        else:
            why = "; ".join(dict.fromkeys(str(each.why) for each in results))
            reply(Broken(what.number, why, moved_bytes))
