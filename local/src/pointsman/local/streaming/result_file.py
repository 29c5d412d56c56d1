"""A run as a JSON file: what was asked, what was measured, every request. ``--compare`` reads two of them."""

import json
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from pointsman.local.errors import LocalError
from pointsman.local.streaming.figures import Figures, Percentiles, Sample

FORMAT = "pointsman-bench-streaming/1"


class ResultUnreadable(LocalError):
    """A file that is no result of this benchmark."""


@dataclass(frozen=True, slots=True)
class Result:
    """One run. ``settings`` are the command line's, ``endpoint`` the URL or the local engine, ``model`` its name."""

    endpoint: str
    model: str
    settings: dict[str, Any]
    figures: Figures
    samples: tuple[Sample, ...]


def write(result: Result, path: Path) -> None:
    """Write ``result``; folders of ``path`` are made. Raises OSError."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps({"format": FORMAT} | asdict(result), indent=1) + "\n")


def read(path: Path) -> Result:
    """The run in ``path``. Raises ResultUnreadable with what is wrong."""
    try:
        found = json.loads(path.read_text())
    except (OSError, ValueError) as error:
        raise ResultUnreadable(f"{path} is not readable as JSON: {error}") from error
    if not isinstance(found, dict) or found.get("format") != FORMAT:
        raise ResultUnreadable(f"{path} is no result of 'pointsman bench streaming' (its format must be {FORMAT!r})")
    try:
        measured = dict(found["figures"])
        for name in ("add_request", "ttft", "tpot", "itl", "latency"):
            measured[name] = Percentiles(**measured[name])
        samples = tuple(Sample(**sample | {"chunks_s": tuple(sample["chunks_s"])}) for sample in found["samples"])
        return Result(found["endpoint"], found["model"], found["settings"], Figures(**measured), samples)
    except (KeyError, TypeError, ValueError) as error:
        raise ResultUnreadable(f"{path} lacks something of a result: {error}") from error
