"""Dynamo's own planner as a policy of its simulator, in the configurations its documentation leads to and then some."""

import sys
from pathlib import Path
from typing import Any

from bench.planner.dynamo.dynosim import Outcome, Snapshot, run
from bench.planner.dynamo.workloads import MAX_GPUS, Workload

sys.path.insert(0, str(Path(__file__).with_name("shim")))

DOCUMENTED: dict[str, dict[str, Any]] = {
    "default (sla, arima, 180 s)": {"target": "sla", "predictor": "arima", "reactive": False, "interval_s": 180},
    "throughput": {"target": "throughput"},
    "latency": {"target": "latency"},
    "sla, constant, 60 s, reactive": {"target": "sla"},
    "sla, kalman, 60 s, reactive": {"target": "sla", "predictor": "kalman"},
    "sla, kalman, 30 s, reactive": {"target": "sla", "predictor": "kalman", "interval_s": 30},
}
# What somebody would try who knows its code: objectives made stricter by hand than they are, short intervals.
TUNED: dict[str, dict[str, Any]] = {
    "kalman, 60 s, reactive, objectives x0.8": {"target": "sla", "predictor": "kalman", "strict": 0.8},
    "constant, 30 s, reactive, objectives x0.8": {"target": "sla", "interval_s": 30, "strict": 0.8},
    "constant, 10 s, reactive, objectives x0.7": {"target": "sla", "interval_s": 10, "strict": 0.7},
    "constant, 10 s, objectives x0.7": {"target": "sla", "interval_s": 10, "reactive": False, "strict": 0.7},
    "constant, 60 s, objectives x0.7": {"target": "sla", "reactive": False, "strict": 0.7},
    "kalman, 20 s, objectives x0.7": {
        "target": "sla", "predictor": "kalman", "interval_s": 20, "reactive": False, "strict": 0.7,
    },
    "kalman, 20 s, objectives x0.55": {
        "target": "sla", "predictor": "kalman", "interval_s": 20, "reactive": False, "strict": 0.55,
    },
    "kalman, 60 s, reactive, objectives x0.65": {"target": "sla", "predictor": "kalman", "strict": 0.65},
}  # fmt: skip
CONFIGURATIONS = DOCUMENTED | TUNED


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
