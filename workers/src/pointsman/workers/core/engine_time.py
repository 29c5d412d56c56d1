"""What prefills take of an engine's time.

Prompts that share a pass of the engine each take as long as the pass, so their times added up are more than the engine
had. What a worker can do is told by the time it was busy: each prefill that ends counts what passed since the one
before it ended, or since the engine began after it had nothing.
"""


class EngineTime:
    """Mutable: told of every prefill's begin and end, in the order in which they happen. Seconds."""

    def __init__(self) -> None:
        self._running = 0
        self._counted_s = 0.0

    def begun(self, now_s: float) -> None:
        """The engine was given one more."""
        if self._running == 0:
            self._counted_s = now_s
        self._running += 1

    def ended(self, now_s: float) -> float:
        """One of them is done: the busy time that is not counted yet."""
        since_s = now_s - self._counted_s
        self._running -= 1
        self._counted_s = now_s
        return since_s

    def given_up(self) -> None:
        """One of them was cancelled or failed: its time is that of those beside it, or nobody's."""
        self._running -= 1
