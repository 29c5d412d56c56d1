"""``python -m bench.elastic.awaiting_instance``: an elastic instance that awaits an exchange as soon as it begins it.

What it would cost not to attend meanwhile over the keys at hand. Runs in the engine environment.
"""

import runpy
from typing import Any

from pointsman.workers.elastic.engine import groups
from pointsman.workers.elastic.engine.exchanges import GlooExchange


class Awaited:
    """A transfer that may be awaited more than once."""

    def __init__(self, transfer: Any) -> None:
        self._transfer = transfer
        self._found: Any = None

    def wait(self) -> Any:
        """See Transfer."""
        if self._found is None:
            self._found = self._transfer.wait()
        return self._found


class AwaitingExchange(GlooExchange):
    """Which has ended when it has begun."""

    def __init__(self, *arguments: Any) -> None:
        super().__init__(*arguments)
        self._listed: list[Awaited] = []

    def send(self, tensor: Any, to: int) -> Any:
        """See Exchange."""
        return self._list(super().send(tensor, to))

    def receive(self, tensor: Any, source: int) -> Any:
        """See Exchange."""
        return self._list(super().receive(tensor, source))

    def begin(self) -> None:
        """See Exchange."""
        for each in self._listed:
            each.wait()

    def _list(self, transfer: Any) -> Awaited:
        self._listed.append(Awaited(transfer))
        return self._listed[-1]


if __name__ == "__main__":
    vars(groups)["GlooExchange"] = AwaitingExchange
    runpy.run_module("pointsman.workers.elastic.instance", run_name="__main__")
