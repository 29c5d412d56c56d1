"""Runs a scaling policy in DynoSim, the discrete-event simulator in NVIDIA's ``ai-dynamo-runtime`` wheel.

A policy has ``initial_tick_ms()`` and ``on_tick(snapshot)``, which answers ``target_prefill`` and ``target_decode``
(None: as it is) and ``next_tick_ms``. Runs are not reproducible to the bit: random request ids break the router's ties.
"""

import os
import random
import time
from dataclasses import dataclass
from typing import Any, Protocol

os.environ.setdefault("DYN_LOG", "error")  # read once, at import
os.environ.setdefault("OMP_NUM_THREADS", "1")

from bench.planner.dynamo.workloads import MAX_GPUS, Workload
from dynamo._core import run_mocker_trace_replay

CALIBRATION_SAMPLES = 60  # of each role, as many as Dynamo's planner is given
_NEVER_MS = 1e12
Answer = dict[str, float | int | None]
Snapshot = dict[str, Any]


class ScalingPolicy(Protocol):
    """What the simulator asks of a policy."""

    def initial_tick_ms(self) -> float:
        """When it wants to be asked first."""

    def on_tick(self, snapshot: Snapshot) -> Answer:
        """The wanted replicas, and when to ask again."""


@dataclass(frozen=True)
class Outcome:
    """``goodput``: share of all requests within both objectives. ``gpu_hours`` counts starting and draining workers."""

    goodput: float
    gpu_hours: float
    ttft_p99_ms: float
    tpot_p99_ms: float
    changes: int
    wall_s: float


class Hold:
    """Never changes anything."""

    def initial_tick_ms(self) -> float:
        return _NEVER_MS

    def on_tick(self, snapshot: Snapshot) -> Answer:
        return {"target_prefill": None, "target_decode": None, "next_tick_ms": None}


class Record(Hold):
    """Keeps the layout and every forward-pass sample, one a worker and second."""

    def __init__(self) -> None:
        self.prefill: list[Snapshot] = []
        self.decode: list[Snapshot] = []
        self._ticks = 0

    def initial_tick_ms(self) -> float:
        return 1000.0

    def on_tick(self, snapshot: Snapshot) -> Answer:
        self._ticks += 1
        self.prefill += [s for s in snapshot["prefill_fpm_snapshots"] if s["wall_time"] > 0]
        self.decode += [s for s in snapshot["decode_fpm_snapshots"] if s["wall_time"] > 0]
        return {"target_prefill": None, "target_decode": None, "next_tick_ms": 1000.0 * (self._ticks + 1)}


class Schedule:
    """Plays ``(at_s, prefill, decode)`` back."""

    def __init__(self, plan: list[tuple[float, int, int]]) -> None:
        self._plan, self._next = plan, 0

    def initial_tick_ms(self) -> float:
        return self._plan[0][0] * 1000 if self._plan else _NEVER_MS

    def on_tick(self, snapshot: Snapshot) -> Answer:
        _, prefill, decode = self._plan[self._next]
        self._next += 1
        then = self._plan[self._next][0] * 1000 if self._next < len(self._plan) else None
        return {"target_prefill": prefill, "target_decode": decode, "next_tick_ms": then}


def run(workload: Workload, policy: ScalingPolicy, startup_s: float, first: tuple[int, int] | None = None) -> Outcome:
    """One run from the workload's first layout, or from ``first``."""
    return run_with_requests(workload, policy, startup_s, first, False)[0]


def run_with_requests(
    workload: Workload,
    policy: ScalingPolicy,
    startup_s: float,
    first: tuple[int, int] | None = None,
    per_request: bool = True,
) -> tuple[Outcome, Any]:
    """One run, and the simulator's own report (``per_request`` and all)."""
    prefill, decode = first or workload.first
    began = time.perf_counter()
    report = run_mocker_trace_replay(
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
    summary = report.summary
    outcome = Outcome(
        goodput=round(summary["goodput_completed_requests"] / summary["num_requests"], 4),
        gpu_hours=round(summary["gpu_hours"], 4),
        ttft_p99_ms=round(summary["p99_ttft_ms"]),
        tpot_p99_ms=round(summary["p99_tpot_ms"], 1),
        changes=sum(operation["cause"] == "planner_scale" for operation in report.lifecycle_operations),
        wall_s=round(time.perf_counter() - began, 2),
    )
    return outcome, report


def _engine(limits: dict[str, Any], role: str, startup_s: float) -> dict[str, Any]:
    return {"engine": dict(limits, worker_type=role), "startup_time": float(startup_s)}


def calibration(workload: Workload) -> tuple[list[Snapshot], list[Snapshot]]:
    """What an operator would have measured before: forward passes of each role, from a run with a fixed layout."""
    recorder = Record()
    prefill, decode = workload.first
    run(workload, recorder, 45, (max(3, prefill), max(2, decode)))
    draw = random.Random(0)
    return _some(draw, recorder.prefill), _some(draw, recorder.decode)


def _some(draw: random.Random, samples: list[Snapshot]) -> list[Snapshot]:
    return draw.sample(samples, min(CALIBRATION_SAMPLES, len(samples)))


def known_before(
    workload: Workload, startup_s: float, samples: tuple[list[Snapshot], list[Snapshot]]
) -> dict[str, Any]:
    """What a policy's factory gets: what an operator may know before the run, never the trace."""
    return {
        "startup_s": float(startup_s),
        "sla_ttft_ms": workload.ttft_ms,
        "sla_itl_ms": workload.itl_ms,
        "max_gpus": MAX_GPUS,
        "init": list(workload.first),
        "prefill_engine": dict(workload.prefill_engine),
        "decode_engine": dict(workload.decode_engine),
        "prefill_samples": samples[0],
        "decode_samples": samples[1],
    }
