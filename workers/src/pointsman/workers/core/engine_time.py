"""What prefills take of an engine's time.

Prompts that share a pass of the engine each take as long as the pass, so their times added up are more than the engine
had. What a worker can do is told by the time it was busy: each prefill that ends counts what passed since the one
before it ended, or since the first of those that the engine has was begun.
"""


class EngineTime:
    """Mutable: told of every prefill's begin and end, in the order in which they happen. Seconds."""

    def __init__(self) -> None:
        self._begun_s: list[float] = []  # of those that the engine has, in order
        self._counted_s = float("-inf")

    def begun(self, now_s: float) -> float:
        """The engine was given one more; what is returned names it at its end."""
        self._begun_s.append(now_s)
        return now_s

    def ended(self, begun_s: float, now_s: float) -> float:
        """One of them is done: the busy time that is not counted yet."""
        since_s = now_s - max(self._counted_s, self._begun_s[0])
        self._begun_s.remove(begun_s)
        self._counted_s = now_s
        return since_s

    def given_up(self, begun_s: float) -> None:
        """One of them was cancelled or failed: its time is that of those beside it, or nobody's."""
        self._begun_s.remove(begun_s)
