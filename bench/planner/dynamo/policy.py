"""Pointsman's planner as a policy of NVIDIA's simulator: the production ``decide``, with its shipped configuration.

It gets what an operator may know before the run: objectives, engine limits, how long a worker is believed to start, and
calibration samples; never the trace. The simulator has one action, replicas: no role switch and no local prefill.
"""

from dataclasses import replace
from typing import Any

from bench.planner.dynamo.workloads import MAX_GPUS, Workload

from pointsman.api.protocol.names import LANGUAGE_ROLES, Role
from pointsman.api.v1alpha1.plannerpolicy import Mode
from pointsman.planner.core.decide import decide
from pointsman.planner.core.state import State
from pointsman.planner.core.types import (
    Bounds,
    Decision,
    EngineSample,
    Load,
    Objectives,
    Observation,
    Policy,
    RoutingNumbers,
    Worker,
    WorkerCondition,
)
from pointsman.planner.profile.fitting import linear_model
from pointsman.planner.profile.linear_model import LinearModel
from pointsman.planner.profile.types import PrefillSample, StepPoint, StepSample

ROUTING = RoutingNumbers(max_local_prefill_tokens=0, max_prefill_queue_size=0)  # every prompt is prefilled remotely
# Fields of a forward pass: requests, their tokens, the variance of their lengths.
_COUNTS = {
    Role.PREFILL: ("num_prefill_requests", "sum_prefill_tokens", "var_prefill_length"),
    Role.DECODE: ("num_decode_requests", "sum_decode_kv_tokens", "var_decode_kv_tokens"),
}
Snapshot = dict[str, Any]
Samples = dict[str, list[Snapshot]]
"""Forward passes by role."""


class PointsmanPolicy:
    """Answers the simulator's ticks with ``decide``."""

    def __init__(
        self, workload: Workload, startup_s: float, samples: Samples, attainment: float = Objectives().attainment
    ) -> None:
        self._policy = Policy(
            mode=Mode.ACTIVE,  # what is decided is carried out
            objectives=Objectives(ttft_ms=workload.ttft_ms, tpot_ms=workload.itl_ms, attainment=attainment),
            max_gpus=MAX_GPUS,
            prefill=Bounds(1, MAX_GPUS - 1),
            decode=Bounds(1, MAX_GPUS - 1),
            role_switch=False,
            start_s=startup_s,
        )
        decode = workload.decode_engine
        self._limits: dict[str, Any] = {
            "kv_capacity_tokens": float(decode["num_gpu_blocks"] * decode["block_size"]),
            "max_sequences": float(decode["max_num_seqs"]),
            "routing": replace(ROUTING, prefill_token_budget=workload.prefill_engine["max_num_batched_tokens"]),
        }
        self._base = _profiled(_samples(samples))
        self._ticks = 0
        self.state = State()
        self.decision: Decision | None = None

    def initial_tick_ms(self) -> float:
        """When it wants to be asked first."""
        return self._policy.interval_s * 1000

    def on_tick(self, snapshot: Snapshot) -> Snapshot:
        """The wanted replicas, where they differ, and when to ask again."""
        self._ticks += 1
        answer: Snapshot = {"target_prefill": None, "target_decode": None}
        if snapshot["traffic"]["duration_s"] > 0:
            seen = self._observation(snapshot)
            self.state, self.decision, _ = decide(self.state, seen, self._policy, seen.at_s, self._base)
            if self.decision.changes_layout:
                targets = {Role.PREFILL: self.decision.prefill, Role.DECODE: self.decision.decode}
                changed = {role: count for role, count in targets.items() if count != seen.committed(role)}
                answer |= {f"target_{role.label}": count for role, count in changed.items()}
        return answer | {"next_tick_ms": 1000 * self._policy.interval_s * (self._ticks + 1)}

    def _observation(self, snapshot: Snapshot) -> Observation:
        traffic = snapshot["traffic"]
        measured = float(traffic["shape_count"])
        hits = measured and traffic.get("hit_rate_count", 0)
        load = Load(
            arrivals_per_s=traffic["num_req"] / traffic["duration_s"],
            prompt_tokens=traffic["avg_isl"] if measured else None,
            cached_tokens=traffic["avg_isl"] * traffic["avg_kv_hit_rate"] if hits else None,
            output_tokens=traffic["avg_osl"] if measured else None,
            measured=measured,
        )
        return Observation(
            at_s=snapshot["now_ms"] / 1000,
            window_s=float(traffic["duration_s"]),
            age_s=0.0,
            workers=tuple(_workers(snapshot)),
            load=load,
            samples=tuple(_samples({role.label: snapshot[f"{role.label}_fpm_snapshots"] for role in _COUNTS})),
            **self._limits,
        )


def _profiled(samples: list[EngineSample]) -> LinearModel:
    """What ``pointsman profile`` makes of the calibration samples: a table, to be corrected by what is seen."""
    prefills, steps = [], []
    for each in samples:
        assert each.tokens is not None, "the simulator tells them"
        if each.role is Role.PREFILL:  # a pass takes what one prompt of as many tokens takes, about
            prefills.append(PrefillSample(round(each.tokens), 0, each.observed_ms, 0.0))
        else:
            tokens = each.tokens / each.batch
            steps.append(StepSample(StepPoint(round(each.batch), round(tokens)), tokens, each.observed_ms, 1.0))
    return linear_model(prefills, steps)


def _samples(passes: Samples) -> list[EngineSample]:
    found = []
    for role, (count, total, variance) in _COUNTS.items():
        for each in passes[role.label]:
            requests, tokens = each[count], each[total]
            if role is Role.PREFILL:
                requests = max(1, requests)
            if each["wall_time"] > 0 and requests > 0 and tokens > 0:
                scv = each[variance] / (tokens / requests) ** 2
                found.append(EngineSample(role, each["wall_time"] * 1000, tokens, requests, scv))
    return found


def _workers(snapshot: Snapshot) -> list[Worker]:
    found = []
    for role in LANGUAGE_ROLES:
        word = role.label
        loads = {each["worker_id"]: each for each in snapshot[f"{word}_fpm_snapshots"]}
        for condition in (WorkerCondition.ACTIVE, WorkerCondition.STARTING, WorkerCondition.DRAINING):
            for worker in snapshot[f"{condition.name.lower()}_{word}_ids"]:
                queued = in_flight = None
                if seen := loads.get(worker):
                    queued = seen[f"num_queued_{word}"]
                    in_flight = seen[f"num_{word}_requests"] + queued
                found.append(Worker(f"{word}-{worker}", role, condition, in_flight=in_flight, queued=queued))
    return found
