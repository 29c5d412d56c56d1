"""Engines for the simulator from performance tables. The live planner does not import this."""

from dataclasses import replace

from pointsman.planner.errors import TableError
from pointsman.planner.performance_tables import performance_table, worker_memory
from pointsman.planner.simulator.types import Engine, Network
from pointsman.planner.table_files import Table


def shipped_engine(model: str, gpu: str, engine: str, tp: int) -> Engine:
    """One worker of a table. Raises UnknownTable naming the nearest there are."""
    memory = worker_memory(model, gpu, engine, tp)
    return Engine(
        performance=performance_table(model, gpu, engine, tp),
        kv_capacity_tokens=memory.kv_capacity_tokens,
        kv_bytes_per_token=memory.kv_bytes_per_token,
        gpus=memory.gpus,
    )


def table_engine(table: Table) -> Engine:
    """One worker of a table of one's own. Raises TableError if it does not say how large its KV is."""
    found = table.document
    if found.kv_bytes_per_token is None:
        raise TableError(
            f"{table.where}: kv_bytes_per_token is null: the KV of one token is layers x KV heads x head size x 2 "
            "x bytes of a number; write it there, or profile with --kv-bytes-per-token"
        )
    default = Engine(table.performance, found.kv_capacity_tokens, found.kv_bytes_per_token, gpus=found.gpus)
    return replace(
        default,
        max_batch=found.max_batch or default.max_batch,
        max_context_tokens=found.max_context_tokens or default.max_context_tokens,
    )


def table_network(table: Table) -> Network:
    """What moving KV takes, where it was measured; else what is assumed of any."""
    moved = table.document.kv_transfer
    return Network() if moved is None else Network(moved.bytes_per_second, moved.hop_ms / 1000)
