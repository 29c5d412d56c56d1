"""Metrics of an engine's processes that serve no /metrics: each writes to a file, and the API server shows them."""

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

ENV_FOLDER: Final = "POINTSMAN_EXPORTED_METRICS_FOLDER"
_WRITE_S: Final = 1.0


def export(registry: CollectorRegistry, name: str) -> None:
    """Write ``registry`` to a file from now on, if the API server has named a folder.

    ``name``: of the file, which no other process of the engine has.
    """
    if folder := os.environ.get(ENV_FOLDER):
        path = Path(folder) / f"{name}.prom"
        threading.Thread(target=_write_for_ever, args=(registry, path), name="exported-metrics", daemon=True).start()


def show_exported_metrics(registry: CollectorRegistry = REGISTRY) -> None:
    """In the API server, before its engine starts: show what the engine's processes write."""
    folder = Path(tempfile.mkdtemp(prefix="pointsman-exported-metrics-"))
    os.environ[ENV_FOLDER] = str(folder)
    registry.register(ExportedMetrics(folder))


class ExportedMetrics(Collector):
    """The metrics that processes have written to ``folder``."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def collect(self) -> Iterator[Metric]:
        """The families of all processes; those of one name together."""
        families: dict[str, Metric] = {}
        for path in sorted(self._folder.glob("*.prom")):
            for family in text_string_to_metric_families(path.read_text()):
                known = families.setdefault(family.name, family)
                if known is not family:
                    known.samples += family.samples
        yield from families.values()

    def describe(self) -> list[Metric]:
        """Nothing: what the processes write is not known yet."""
        return []


def _write_for_ever(registry: CollectorRegistry, path: Path) -> None:
    pause = threading.Event()
    partial = path.with_suffix(".partial")
    last = b""
    while not pause.wait(_WRITE_S):
        now = generate_latest(registry)
        if now != last:
            try:
                partial.write_bytes(now)
                partial.rename(path)
            except OSError:  # the API server has ended and removed the folder
                return
            last = now
