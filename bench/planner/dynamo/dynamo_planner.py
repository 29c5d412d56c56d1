"""Dynamo's own planner, as released, as a policy of its simulator."""

import sys
from pathlib import Path
from typing import Any

from bench.planner.dynamo.configurations import CONFIGURATIONS
from bench.planner.dynamo.dynosim import Outcome, Snapshot, run
from bench.planner.dynamo.workloads import MAX_GPUS, Workload

sys.path.insert(0, str(Path(__file__).with_name("shim")))


def run_dynamo(
    workload: Workload, startup_s: float, name: str, samples: tuple[list[Snapshot], list[Snapshot]]
) -> Outcome:
    """One run of Dynamo's planner in the configuration of that name."""
    from dynamo.planner.offline.replay_adapter import _build_fpm_from_dict, create_replay_planner_adapter

    chosen = CONFIGURATIONS[name]
    adapter = create_replay_planner_adapter(
        planner_config=_config(workload, **chosen), capabilities=_capabilities(workload), capture_details=False
    )
    if chosen["target"] == "sla":
        prefill, decode = ([_build_fpm_from_dict(s) for s in of_role] for of_role in samples)
        adapter.install_benchmark_fpms(prefill_fpms=prefill, decode_fpms=decode)
    with adapter:
        return run(workload, adapter, startup_s)


def _config(
    workload: Workload,
    target: str,
    predictor: str = "constant",
    reactive: bool = True,
    interval_s: int = 60,
    strict: float = 1.0,
) -> Any:
    from dynamo.planner.config.planner_config import PlannerConfig

    return PlannerConfig(
        mode="disagg",
        backend="mocker",
        environment="virtual",
        optimization_target=target,
        max_gpu_budget=MAX_GPUS,
        min_endpoint=1,
        ttft_ms=workload.ttft_ms * strict,
        itl_ms=workload.itl_ms * strict,
        load_predictor=predictor,
        enable_throughput_scaling=True,
        enable_load_scaling=reactive,
        throughput_adjustment_interval_seconds=interval_s,
        load_adjustment_interval_seconds=5,
        prefill_engine_num_gpu=1,
        decode_engine_num_gpu=1,
        live_dashboard_port=0,
        report_interval_hours=None,
        advisory=True,
        pre_deployment_sweeping_mode="none",
    )


def _capabilities(workload: Workload) -> Any:
    from dynamo.planner.core.types import EngineCapabilities, WorkerCapabilities

    def of(engine: dict[str, Any]) -> Any:
        return EngineCapabilities(
            num_gpu=1,
            max_num_batched_tokens=engine["max_num_batched_tokens"],
            max_num_seqs=engine["max_num_seqs"],
            context_length=workload.context_tokens,
            max_kv_tokens=engine["num_gpu_blocks"] * engine["block_size"],
            kv_cache_block_size=engine["block_size"],
        )

    return WorkerCapabilities(prefill=of(workload.prefill_engine), decode=of(workload.decode_engine))
