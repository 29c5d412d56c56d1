"""Metrics of ranks that serve no /metrics: each writes them to a file, and the API server shows what is there."""

import os
import tempfile
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Final

from prometheus_client import REGISTRY, CollectorRegistry, generate_latest
from prometheus_client.metrics_core import Metric
from prometheus_client.parser import text_string_to_metric_families
from prometheus_client.registry import Collector

from pointsman.workers.multimodal.broadcast.metrics import BroadcastMetrics

ENV_FOLDER: Final = "POINTSMAN_INPUT_BROADCAST_METRICS_FOLDER"
_WRITE_SECONDS: Final = 1.0


def metrics_of_rank(rank: int) -> BroadcastMetrics:
    """Metrics of a rank that is this process; written to a file from now on if the API server has named a folder."""
    registry = CollectorRegistry()
    metrics = BroadcastMetrics(registry, rank)
    if folder := os.environ.get(ENV_FOLDER):
        path = Path(folder) / f"rank{rank}.prom"
        threading.Thread(
            target=_write_for_ever, args=(registry, path), name="input-broadcast-metrics", daemon=True
        ).start()
    return metrics


def show_metrics_of_ranks(registry: CollectorRegistry = REGISTRY) -> None:
    """In the API server, before its ranks start: show what they write."""
    folder = Path(tempfile.mkdtemp(prefix="pointsman-rank-metrics-"))
    os.environ[ENV_FOLDER] = str(folder)
    registry.register(RankMetrics(folder))


class RankMetrics(Collector):
    """The metrics that ranks have written to ``folder``."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def collect(self) -> Iterator[Metric]:
        """The families of all ranks; those of one name together."""
        families: dict[str, Metric] = {}
        for path in sorted(self._folder.glob("rank*.prom")):
            for family in text_string_to_metric_families(path.read_text()):
                known = families.setdefault(family.name, family)
                if known is not family:
                    known.samples += family.samples
        yield from families.values()

    def describe(self) -> list[Metric]:
        """Nothing: what the ranks write is not known yet."""
        return []


def _write_for_ever(registry: CollectorRegistry, path: Path) -> None:
    pause = threading.Event()
    partial = path.with_suffix(".partial")
    last = b""
    while not pause.wait(_WRITE_SECONDS):
        now = generate_latest(registry)
        if now != last:
            try:
                partial.write_bytes(now)
                partial.rename(path)
            except OSError:  # the API server has ended and removed the folder
                return
            last = now
