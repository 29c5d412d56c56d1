"""What an instance is told, done in a thread of its own, one thing after another, on all shards of the model."""

import queue
import threading
import time
from collections.abc import Callable

from pointsman.workers.elastic.engine.iterations import Sampled
from pointsman.workers.elastic.engine.sampling import sample
from pointsman.workers.elastic.instance.shard import Shard
from pointsman.workers.elastic.instance.shard_processes import ShardProcesses, end_instance
from pointsman.workers.elastic.protocol import Broken, Done, Iterate, Release

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
            work()

    def _do(self, what: Iterate | Release, reply: Reply) -> None:
        try:
            self._others.tell(what)
            if isinstance(what, Iterate):
                reply(self._iterated(what))
            else:
                self._shard.release(what)
        except (EOFError, OSError):
            if not self._others.closing:
                end_instance("a shard of the model is gone")

    def _iterated(self, what: Iterate) -> Done | Broken:
        """Raises EOFError or OSError where a shard is gone."""
        began_s = time.monotonic()
        result = self._shard.iterate(what)
        for other in self._others.results():
            if not result.agrees(other):
                end_instance(f"its shards disagree: {result}, {other}")
        if result.why is not None:
            return Broken(what.number, result.why)
        return Done(what.number, self._sampled(what), time.monotonic() - began_s)

    def _sampled(self, what: Iterate) -> dict[str, Sampled]:
        positions = {prompt.request: len(prompt.token_ids) for prompt in what.prompts}
        positions |= {step.request: step.position + 1 for step in what.steps}
        return {
            request: sample(of.float(), what.sampling[request], positions[request])
            for request, of in self._shard.logits.items()
        }
