"""What the parts of this benchmark find, kept in a file after each step: a step that breaks loses nothing else."""

import json
import time
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any


class Findings:
    """A JSON object in ``path``, by step. ``errors`` has the last lines of those that broke."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self.found: dict[str, Any] = {"errors": {}, "seconds": {}}

    def step(self, name: str, work: Callable[[], Any], *, kept: bool = True) -> Any:
        """What ``work`` returns; None if it raises. ``kept``: in the file, too."""
        began_s = time.monotonic()
        found: Any = None
        try:
            found = work()
            if kept:
                self.found[name] = found
        except Exception:  # noqa: BLE001 - the other steps are measured still
            self.found["errors"][name] = traceback.format_exc().splitlines()[-12:]
            print(f"{name}: {self.found['errors'][name][-1]}", flush=True)
        self.found["seconds"][name] = round(time.monotonic() - began_s, 2)
        self._path.write_text(json.dumps(self.found, indent=1))
        print(f"{name}: {self.found['seconds'][name]} s", flush=True)
        return found
