"""Engines for the simulator from the shipped performance tables. The live planner does not import this."""

from pointsman.planner.performance_tables import performance_table, worker_memory
from pointsman.planner.simulator.types import Engine


def shipped_engine(model: str, gpu: str, engine: str, tp: int) -> Engine:
    """One worker of a table. Raises UnknownTable naming the nearest there are."""
    memory = worker_memory(model, gpu, engine, tp)
    return Engine(
        performance=performance_table(model, gpu, engine, tp),
        kv_capacity_tokens=memory.kv_capacity_tokens,
        kv_bytes_per_token=memory.kv_bytes_per_token,
        gpus=memory.gpus,
    )
