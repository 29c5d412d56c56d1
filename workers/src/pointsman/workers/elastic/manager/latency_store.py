"""Keeps the latency model of a group in a file, so that a manager that comes back need not measure."""

import json
import logging
from pathlib import Path

from pointsman.serving.elastic.latency_model import LatencyModel

log = logging.getLogger(__name__)


def read_latency_model(path: Path | None) -> LatencyModel:
    """What is kept at ``path``; an empty model where nothing is, or what is there cannot be read."""
    if path is None or not path.exists():
        return LatencyModel({})
    try:
        return LatencyModel.from_json(json.loads(path.read_text()))
    except (OSError, ValueError, AttributeError, TypeError) as error:
        log.warning("the kept latency model cannot be read, so it is measured again: %s", error)
        return LatencyModel({})


def keep_latency_model(path: Path | None, model: LatencyModel) -> None:
    """Replace what is kept. It is no reason to stop if that fails."""
    if path is None:
        return
    part = path.with_suffix(".part")
    try:
        part.write_text(json.dumps(model.to_json()))
        part.replace(path)
    except OSError as error:
        log.warning("the latency model cannot be kept: %s", error)
