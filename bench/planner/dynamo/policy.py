"""Pointsman's planner as a policy of NVIDIA's simulator: the production ``decide``, with its shipped configuration.

``make(ctx, **tuning)`` gets what an operator may know before the run: objectives, engine limits, the first layout, how
long a worker is believed to start, and calibration samples; never the trace. The simulator has one action, replicas:
no role switch and no local prefill.
"""

import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

from pointsman.api.protocol.names import LANGUAGE_ROLES, Role
from pointsman.api.v1alpha1.plannerpolicy import Mode

try:
    import pointsman.planner.core.decide  # noqa: F401  (installed, or on the path already)
except ImportError:
    _ROOT = Path(__file__).resolve().parents[3]
    sys.path[:0] = [str(_ROOT / room / "src") for room in ("planner", "serving", "crds")]

from pointsman.planner.core.decide import decide
from pointsman.planner.core.engine.learned_model import LearnedModel, Learner
from pointsman.planner.core.state import State
from pointsman.planner.core.types import (
    Bounds,
    EngineSample,
    Load,
    Objectives,
    Observation,
    Policy,
    RoutingNumbers,
    Worker,
    WorkerCondition,
)

ROUTING = RoutingNumbers(max_local_prefill_tokens=0, max_prefill_queue_size=0)  # every prompt is prefilled remotely
_CONDITIONS = {
    "active": WorkerCondition.ACTIVE,
    "starting": WorkerCondition.STARTING,
    "draining": WorkerCondition.DRAINING,
}
Snapshot = dict[str, Any]


class PointsmanPolicy:
    """Answers the simulator's ticks with ``decide``."""

    def __init__(self, ctx: dict[str, Any], **tuning: Any) -> None:
        most = ctx["max_gpus"] - 1
        self._policy = Policy(
            mode=Mode.ACTIVE,  # what is decided is carried out
            objectives=Objectives(ttft_ms=ctx["sla_ttft_ms"], tpot_ms=ctx["sla_itl_ms"]),
            max_gpus=ctx["max_gpus"],
            prefill=Bounds(1, most),
            decode=Bounds(1, most),
            remote_prefill=True,
            role_switch=False,
            start_s=ctx["startup_s"],
        )
        self._policy = replace(self._policy, **tuning)
        decode = ctx["decode_engine"]
        self._limits: dict[str, Any] = {
            "kv_capacity_tokens": float(decode["num_gpu_blocks"] * decode["block_size"]),
            "max_sequences": float(decode["max_num_seqs"]),
        }
        self._routing = replace(ROUTING, prefill_token_budget=int(ctx["prefill_engine"]["max_num_batched_tokens"]))
        self._base = _table(ctx)
        self._ticks = 0
        self.state = State()
        self.decision: Any = None

    def initial_tick_ms(self) -> float:
        """When it wants to be asked first."""
        return self._policy.interval_s * 1000

    def on_tick(self, snapshot: Snapshot) -> dict[str, float | int | None]:
        """The wanted replicas, where they differ, and when to ask again."""
        self._ticks += 1
        answer: dict[str, float | int | None] = {
            "target_prefill": None,
            "target_decode": None,
            "next_tick_ms": 1000 * self._policy.interval_s * (self._ticks + 1),
        }
        if snapshot["traffic"]["duration_s"] <= 0:
            return answer
        seen = self._observation(snapshot)
        self.state, decision, _ = decide(self.state, seen, self._policy, seen.at_s, self._base)
        self.decision = decision
        if decision.changes_layout:
            for role, count in ((Role.PREFILL, decision.prefill), (Role.DECODE, decision.decode)):
                if count != seen.committed(role):
                    answer[f"target_{role.label}"] = count
        return answer

    def _observation(self, snapshot: Snapshot) -> Observation:
        traffic = snapshot["traffic"]
        window_s = float(traffic["duration_s"])
        measured = float(traffic["shape_count"])
        hits = traffic.get("hit_rate_count", 0)
        load = Load(
            arrivals_per_s=traffic["num_req"] / window_s,
            prompt_tokens=traffic["avg_isl"] if measured else None,
            cached_tokens=traffic["avg_isl"] * traffic["avg_kv_hit_rate"] if measured and hits else None,
            output_tokens=traffic["avg_osl"] if measured else None,
            measured=measured,
        )
        return Observation(
            at_s=snapshot["now_ms"] / 1000,
            window_s=window_s,
            age_s=0.0,
            workers=tuple(_workers(snapshot)),
            routing=self._routing,
            load=load,
            samples=tuple(_samples(snapshot)),
            **self._limits,
        )


def make(ctx: dict[str, Any], **tuning: Any) -> PointsmanPolicy:
    """The factory. ``tuning``: fields of the policy that an evaluation varies; none is the shipped configuration.

    Raises TypeError for a field that a policy does not have.
    """
    return PointsmanPolicy(ctx, **tuning)


def _table(ctx: dict[str, Any]) -> LearnedModel | None:
    """What was measured before the run, as a profile of a live service is used: a table, corrected by what is seen."""
    passes = {"prefill_fpm_snapshots": ctx["prefill_samples"], "decode_fpm_snapshots": ctx["decode_samples"]}
    learner = Learner()
    for sample in _samples(passes):
        learner = learner.observe((sample,))
    return learner.model()


def _samples(snapshot: Snapshot) -> list[EngineSample]:
    found = []
    for each in snapshot["prefill_fpm_snapshots"]:
        prompts, tokens = max(1, each["num_prefill_requests"]), each["sum_prefill_tokens"]
        if each["wall_time"] > 0 and tokens > 0:
            scv = each["var_prefill_length"] / (tokens / prompts) ** 2
            found.append(EngineSample(Role.PREFILL, each["wall_time"] * 1000, tokens, prompts, scv))
    for each in snapshot["decode_fpm_snapshots"]:
        sequences, tokens = each["num_decode_requests"], each["sum_decode_kv_tokens"]
        if each["wall_time"] > 0 and sequences > 0 and tokens > 0:
            scv = each["var_decode_kv_tokens"] / (tokens / sequences) ** 2
            found.append(EngineSample(Role.DECODE, each["wall_time"] * 1000, tokens, sequences, scv))
    return found


def _workers(snapshot: Snapshot) -> list[Worker]:
    found = []
    for role in LANGUAGE_ROLES:
        word = role.label
        loads = {each["worker_id"]: each for each in snapshot[f"{word}_fpm_snapshots"]}
        for state, condition in _CONDITIONS.items():
            for worker in snapshot[f"{state}_{word}_ids"]:
                seen = loads.get(worker)
                queued = in_flight = None
                if seen is not None:
                    queued = seen[f"num_queued_{word}"]
                    in_flight = seen[f"num_{word}_requests"] + queued
                found.append(Worker(f"{word}-{worker}", role, condition, in_flight=in_flight, queued=queued))
    return found
