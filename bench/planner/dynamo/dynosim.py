"""Runs a scaling policy in DynoSim, the discrete-event simulator in NVIDIA's ``ai-dynamo-runtime`` wheel.

A policy has ``initial_tick_ms()`` and ``on_tick(snapshot)``, which answers ``target_prefill`` and ``target_decode``
(None: as it is) and ``next_tick_ms``. Runs are not reproducible to the bit: random request ids break the router's ties.
"""

import os
import random
from functools import cache
from typing import Any

os.environ.setdefault("DYN_LOG", "error")  # read once, at import
os.environ.setdefault("OMP_NUM_THREADS", "1")

from bench.planner.dynamo.policy import Samples, Snapshot
from bench.planner.dynamo.workloads import Workload
from dynamo._core import run_mocker_trace_replay

CALIBRATION_SAMPLES = 60  # of each role, as many as Dynamo's planner is given
Plan = list[tuple[float, int, int]]
"""From when on, prefill and decode workers."""


class Schedule:
    """Plays a plan back."""

    def __init__(self, plan: Plan) -> None:
        self._plan = iter([*plan, (1e9, 0, 0)])
        self._next = next(self._plan)

    def initial_tick_ms(self) -> float:
        return self._next[0] * 1000

    def on_tick(self, snapshot: Snapshot) -> Snapshot:
        _, prefill, decode = self._next
        self._next = next(self._plan)
        return {"target_prefill": prefill, "target_decode": decode, "next_tick_ms": self._next[0] * 1000}


class Record:
    """Changes nothing, and keeps every forward-pass sample, one a worker and second."""

    def __init__(self) -> None:
        self.samples: Samples = {"prefill": [], "decode": []}

    def initial_tick_ms(self) -> float:
        return 1000.0

    def on_tick(self, snapshot: Snapshot) -> Snapshot:
        for role, found in self.samples.items():
            found += [each for each in snapshot[f"{role}_fpm_snapshots"] if each["wall_time"] > 0]
        return {"target_prefill": None, "target_decode": None, "next_tick_ms": snapshot["now_ms"] + 1000}


def run(workload: Workload, policy: Any, startup_s: float, first: tuple[int, int] | None = None) -> dict[str, float]:
    """What a policy came to: share of all requests within both objectives, GPU-hours, changes of the layout.

    GPU-hours count starting and draining workers.
    """
    report = replayed(workload, policy, startup_s, first)
    summary = report.summary
    return {
        "goodput": round(summary["goodput_completed_requests"] / summary["num_requests"], 4),
        "gpu_hours": round(summary["gpu_hours"], 4),
        "changes": sum(operation["cause"] == "planner_scale" for operation in report.lifecycle_operations),
    }


def replayed(
    workload: Workload, policy: Any, startup_s: float, first: tuple[int, int] | None = None, per_request: bool = False
) -> Any:
    """The simulator's report of one run from the workload's first layout, or from ``first``."""
    prefill, decode = first or workload.first
    return run_mocker_trace_replay(
        [str(workload.path)],
        prefill_engine_args=_engine(workload.prefill_engine, "prefill", startup_s),
        decode_engine_args=_engine(workload.decode_engine, "decode", startup_s),
        num_prefill_workers=prefill,
        num_decode_workers=decode,
        router_mode="kv_router",
        sla_ttft_ms=workload.ttft_ms,
        sla_itl_ms=workload.itl_ms,
        scaling_policy=policy,
        trace_block_size=512,
        capture_per_request=per_request,
    )


def _engine(limits: dict[str, Any], role: str, startup_s: float) -> dict[str, Any]:
    return {"engine": dict(limits, worker_type=role), "startup_time": float(startup_s)}


@cache
def calibration(workload: Workload) -> Samples:
    """What an operator would have measured before: forward passes of each role, from a run with a fixed layout."""
    recorder = Record()
    prefill, decode = workload.first
    run(workload, recorder, 45, (max(3, prefill), max(2, decode)))
    draw = random.Random(0)
    return {
        role: draw.sample(samples, min(CALIBRATION_SAMPLES, len(samples))) for role, samples in recorder.samples.items()
    }
