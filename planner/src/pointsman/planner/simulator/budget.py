"""The GPUs of a policy's budget: how many are taken, by workers of all pools, and who is told when some come back."""

from collections.abc import Callable


class Budget:
    """Every worker takes its GPUs from its start until it is gone. ``peak``: the most that were taken at once."""

    def __init__(self, gpus: int) -> None:
        self._gpus, self._taken = gpus, 0
        self._told: list[Callable[[], None]] = []
        self.peak = 0

    @property
    def left(self) -> int:
        """GPUs nobody has; below 0 where the first layout is larger than the budget."""
        return self._gpus - self._taken

    def take(self, gpus: int) -> None:
        """For a new worker."""
        self._taken += gpus
        self.peak = max(self.peak, self._taken)

    def give_back(self, gpus: int) -> None:
        """Of a worker that is gone."""
        self._taken -= gpus
        for tell in self._told:
            tell()

    def when_given_back(self, tell: Callable[[], None]) -> None:
        """Call ``tell`` each time."""
        self._told.append(tell)
