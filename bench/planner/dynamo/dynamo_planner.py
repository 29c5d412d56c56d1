"""Dynamo's own planner, as released, as a policy of its simulator."""

import sys
from pathlib import Path
from typing import Any

from bench.planner.dynamo.dynosim import calibration, run
from bench.planner.dynamo.workloads import CONFIGURATIONS, MAX_GPUS, SETUP, Workload

sys.path.insert(0, str(Path(__file__).with_name("shim")))

from dynamo.planner.config.planner_config import PlannerConfig
from dynamo.planner.core.types import EngineCapabilities, WorkerCapabilities
from dynamo.planner.offline.replay_adapter import _build_fpm_from_dict, create_replay_planner_adapter


def run_dynamo(workload: Workload, startup_s: float, name: str) -> dict[str, float]:
    """One run of Dynamo's planner in the configuration of that name."""
    chosen = SETUP["planner"] | CONFIGURATIONS[name]
    strict = chosen.pop("strict", 1.0)
    config = PlannerConfig(
        ttft_ms=workload.ttft_ms * strict, itl_ms=workload.itl_ms * strict, max_gpu_budget=MAX_GPUS, **chosen
    )
    capabilities = WorkerCapabilities(
        prefill=_capabilities(workload, workload.prefill_engine),
        decode=_capabilities(workload, workload.decode_engine),
    )
    adapter = create_replay_planner_adapter(planner_config=config, capabilities=capabilities, capture_details=False)
    if chosen["optimization_target"] == "sla":
        passes = {role: [*map(_build_fpm_from_dict, samples)] for role, samples in calibration(workload).items()}
        adapter.install_benchmark_fpms(prefill_fpms=passes["prefill"], decode_fpms=passes["decode"])
    with adapter:
        return run(workload, adapter, startup_s)


def _capabilities(workload: Workload, engine: dict[str, Any]) -> Any:
    return EngineCapabilities(
        num_gpu=1,
        max_num_batched_tokens=engine["max_num_batched_tokens"],
        max_num_seqs=engine["max_num_seqs"],
        context_length=workload.context_tokens,
        max_kv_tokens=engine["num_gpu_blocks"] * engine["block_size"],
        kv_cache_block_size=engine["block_size"],
    )
