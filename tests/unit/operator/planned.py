"""A modelled world with a policy and plans."""

import random
from datetime import UTC, datetime
from typing import Any

from pointsman.api.protocol.names import Role
from pointsman.api.v1alpha1.plan import PlanPhase, PlanSpec
from pointsman.api.v1alpha1.plannerpolicy import Mode, PlannerPolicySpec
from pointsman.operator.core.snapshot import Plan, Policy
from unit.operator.world import World, service, spec


def policy(mode: Mode = Mode.ACTIVE, max_gpus: int = 8) -> Policy:
    wanted = {
        "mode": mode,
        "objectives": {"ttftMs": 1000, "tpotMs": 50},
        "budget": {"maxGpus": max_gpus},
        "actions": {"scaleOut": {"unschedulableAfterSeconds": 60}},
    }
    return Policy(name="chat", spec=PlannerPolicySpec.model_validate(wanted))


def world(mode: Mode = Mode.ACTIVE, *, prefill: int = 2, decode: int = 3, seed: int = 1, **limits: int) -> World:
    """A settled service under a policy."""
    made = World(service=service(spec(prefill=(prefill, 1, 6), decode=(decode, 1, 6))), dice=random.Random(seed))
    assert made.run(200)
    made.policy = policy(mode, **limits)
    return made


def plan(it: World, prefill: int, decode: int, *, switches: int = 0, **fields: Any) -> Plan:
    """A plan of the planner; ``switches`` decode workers become prefill workers (negative: the other way)."""
    number = len(it.plans) + 1
    roles = ("Decode", "Prefill") if switches > 0 else ("Prefill", "Decode")
    body = {
        "serviceRef": {"name": "chat"},
        "sequence": number,
        "mode": it.policy.mode if it.policy else Mode.ACTIVE,
        "observedAt": datetime.fromtimestamp(it.now_s, UTC),
        "pools": {"prefill": {"replicas": prefill}, "decode": {"replicas": decode}},
        "switches": [{"from": roles[0], "to": roles[1], "count": abs(switches)}] if switches else [],
        "routing": {"maxLocalPrefillTokens": 512, "maxPrefillQueueSize": 8},
        "changesLayout": True,
        "reason": "PrefillShort",
        "message": "long prompts",
        "expiresAt": datetime.fromtimestamp(it.now_s + 30, UTC),
        **fields,
    }
    made = Plan(name=f"chat-{number:05}", uid=f"plan-{number}", spec=PlanSpec.model_validate(body))
    it.plans[made.uid] = made
    return made


def status(it: World, made: Plan) -> tuple[PlanPhase | None, str | None]:
    now = it.plans[made.uid].status
    return now.phase, now.reason


def replicas(it: World) -> tuple[int, int]:
    return it.pools[Role.PREFILL].replicas, it.pools[Role.DECODE].replicas
