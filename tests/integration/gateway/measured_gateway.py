"""The gateway's own program, with its event loop measured: ``python measured_gateway.py FILE``.

``FILE`` gets the longest callback of a round, as JSON: seconds of CPU of the loop's thread, and what ran.
CPU and not time on the wall: other programs of the computer must not count.
"""

import asyncio
import json
import signal
import sys
import time
from pathlib import Path
from typing import Any

from pointsman.gateway.__main__ import main


class Longest:
    """The longest callback of each round; a SIGUSR1 begins the next."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._round = 0
        self._cpu_s = 0.0
        self._run = asyncio.events.Handle._run
        signal.signal(signal.SIGUSR1, self._begin)
        longest = self

        def run(handle: Any) -> None:
            longest.run(handle)

        asyncio.events.Handle._run = run  # type: ignore[assignment, method-assign]

    def run(self, handle: Any) -> None:
        """One callback of the loop."""
        what, since_s = repr(handle), time.thread_time()
        self._run(handle)
        cpu_s = time.thread_time() - since_s
        if cpu_s > self._cpu_s:
            self._cpu_s = cpu_s
            self._write(what)

    def _begin(self, *_: Any) -> None:
        self._round += 1
        self._cpu_s = 0.0
        self._write("")

    def _write(self, what: str) -> None:
        part = self._path.with_suffix(".part")
        part.write_text(json.dumps({"round": self._round, "cpu_s": self._cpu_s, "what": what}))
        part.replace(self._path)


if __name__ == "__main__":
    Longest(Path(sys.argv.pop(1)))
    main()
