"""What the parts of this benchmark find, printed after each step: a step that breaks loses nothing else."""

import json
import sys
import time
import traceback
from collections.abc import Callable
from typing import Any


class Findings:
    """A JSON object, by step, in the last line of stdout. ``errors`` has the last lines of steps that broke."""

    def __init__(self) -> None:
        self.found: dict[str, Any] = {"errors": {}, "seconds": {}}

    def step(self, name: str, work: Callable[[], Any]) -> None:
        """Keep what ``work`` returns."""
        began_s = time.monotonic()
        try:
            self.found[name] = work()
        except Exception:  # noqa: BLE001 - the other steps are measured still
            self.found["errors"][name] = traceback.format_exc().splitlines()[-12:]
        self.found["seconds"][name] = round(time.monotonic() - began_s, 2)
        print(json.dumps(self.found), flush=True)
        print(f"{name}: {self.found['errors'].get(name, 'done')}", file=sys.stderr, flush=True)
