"""The shipped performance tables: prefill and decode times of public models on public GPUs.

Composed by AIConfigurator 0.12.0 from measured kernels (Apache-2.0, NVIDIA; the licence is beside the files), not
measured end to end: optimistic, and therefore only where calibration starts. One file is one model, GPU, engine and
tensor-parallel size.
"""

import difflib
import json
from dataclasses import dataclass
from functools import cache
from importlib.resources import files
from typing import Any, Final

from pointsman.planner.core.engine.performance_model import Grid, GridModel
from pointsman.planner.errors import UnknownTable

ENGINE: Final = "vllm"  # what workers run


@cache
def table_names() -> tuple[str, ...]:
    """Every shipped table as ``model gpu engine tpN``."""
    return tuple(sorted(_index()))


@dataclass(frozen=True, slots=True)
class WorkerMemory:
    """What one worker's KV cache holds, and how many GPUs the worker is made of."""

    kv_capacity_tokens: int
    kv_bytes_per_token: int
    gpus: int


@cache
def worker_memory(model: str, gpu: str, engine: str, tp: int) -> WorkerMemory:
    """The memory of one worker of a table. Raises UnknownTable naming the nearest there are."""
    body = _body(model, gpu, engine, tp)
    return WorkerMemory(int(body["kv_capacity_tokens"]), int(body["kv_bytes_per_token"]), int(body["gpus"]))


@cache
def performance_table(model: str, gpu: str, engine: str, tp: int) -> GridModel:
    """The table of one model on one GPU. Raises UnknownTable naming the nearest there are."""
    body = _body(model, gpu, engine, tp)
    return GridModel(
        prefill=Grid.of([(new, prefix, ms) for new, prefix, ms in body["prefill_ms"]["rows"]]),
        decode=Grid.of([(batch, context, ms) for batch, context, ms in body["decode_step_ms"]["rows"]]),
    )


def _body(model: str, gpu: str, engine: str, tp: int) -> dict[str, Any]:
    wanted = _name(model, gpu, engine, tp)
    if wanted not in _index():
        near = difflib.get_close_matches(wanted, table_names(), n=3, cutoff=0.3)
        raise UnknownTable(f"performance.table is '{wanted}': not shipped; the nearest are {', '.join(near) or 'none'}")
    found: dict[str, Any] = json.loads((files(__package__) / "tables" / _index()[wanted]).read_text())
    return found


@cache
def _index() -> dict[str, str]:
    found: dict[str, str] = {}
    for entry in (files(__package__) / "tables").iterdir():
        if entry.name.endswith(".json"):
            model, gpu, engine, tp = entry.name.removesuffix(".json").split("__")
            found[_name(model, gpu, engine, int(tp.removeprefix("tp")))] = entry.name
    return found


def _name(model: str, gpu: str, engine: str, tp: int) -> str:
    return f"{model.rsplit('/', 1)[-1]} {gpu} {engine.lower()} tp{tp}"
