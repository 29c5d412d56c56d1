"""Keeps what a manager measured in a file, so that one that comes back need not measure."""

import json
import logging
import math
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from pointsman.serving.elastic.latency_model import LatencyModel

log = logging.getLogger(__name__)

_MOVE: Final = "moveSecondsPerToken"


@dataclass(frozen=True, slots=True)
class Measured:
    """Times of prefills, and seconds to hand over a token's KV; None: not measured."""

    prefills: LatencyModel = field(default_factory=lambda: LatencyModel({}))
    move_s_per_token: float | None = None


def read_measured(path: Path | None) -> Measured:
    """What is kept at ``path``; nothing where nothing is, or what is there cannot be read."""
    if path is None or not path.exists():
        return Measured()
    try:
        kept = json.loads(path.read_text())
        move_s = kept.pop(_MOVE, None)
        if move_s is not None and not 0 <= move_s < math.inf:
            raise ValueError(f"{_MOVE} is {move_s!r}; it must be 0 or more")
        return Measured(LatencyModel.from_json(kept), move_s)
    except (OSError, ValueError, AttributeError, TypeError) as error:
        log.warning(
            "latency file not readable, so the times are measured again", extra={"file": str(path), "why": str(error)}
        )
        return Measured()


def keep_measured(path: Path | None, measured: Measured) -> None:
    """Replace what is kept. It is no reason to stop if that fails."""
    if path is None:
        return
    move = {} if measured.move_s_per_token is None else {_MOVE: measured.move_s_per_token}
    part = path.with_suffix(".part")
    try:
        part.write_text(json.dumps({**measured.prefills.to_json(), **move}))
        part.replace(path)
    except OSError as error:
        log.warning("measured times not kept", extra={"why": str(error)})
