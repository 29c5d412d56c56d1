"""One decision on numbers that are calculated by hand."""

from typing import Final

from pointsman.api.protocol.names import LANGUAGE_ROLES
from pointsman.api.v1alpha1.plannerpolicy import Mode
from pointsman.planner.core.decide import decide
from pointsman.planner.core.state import State
from pointsman.planner.core.types import (
    Bounds,
    Decision,
    Load,
    Objectives,
    Observation,
    Policy,
    RoutingNumbers,
    Service,
    Worker,
    WorkerCondition,
)
from pointsman.planner.profile.linear_model import LinearModel

ENGINE: Final = LinearModel(4.705, 0.01757, 8.785e-7, 6.392, 0.009885, 4.273e-5)
POLICY: Final = Policy(
    mode=Mode.ACTIVE,
    objectives=Objectives(ttft_ms=1500, tpot_ms=20, attainment=0.95),
    max_gpus=16,
    prefill=Bounds(1, 8),
    decode=Bounds(1, 12),
)
LOAD: Final = Load(
    arrivals_per_s=50, prompt_tokens=2000, output_tokens=300, prompt_length_shares=((2000, 1.0),)
)  # fmt: skip
WORKERS: Final = tuple(
    Worker(f"{role}-{n}", role, WorkerCondition.ACTIVE) for role in LANGUAGE_ROLES for n in range(2)
)  # fmt: skip
WINDOW_S: Final = 2.5
ROUTING: Final = RoutingNumbers(512, 32)
KV_CAPACITY_TOKENS: Final = 400_000  # of a worker


def decided(
    policy: Policy = POLICY, load: Load = LOAD, routing: RoutingNumbers = ROUTING, queued: float | None = None
) -> tuple[int, Decision]:
    """The first decision that changes the layout, or the last of 20, and how many evaluations led to it.

    ``routing``: the numbers in force; ``queued``: requests at the gateways.
    """
    state = State()
    for evaluation in range(1, 21):
        at_s = WINDOW_S * evaluation
        seen = Observation(
            at_s=at_s, window_s=WINDOW_S, age_s=1.0, workers=WORKERS, routing=routing, load=load,
            service=Service(1.0, 1.0, 1.0, prefill_queue_depth=0.0, held=queued),
            kv_capacity_tokens=KV_CAPACITY_TOKENS, max_sequences=256,
        )  # fmt: skip
        state, decision, _ = decide(state, seen, policy, at_s, ENGINE)
        if decision.changes_layout:
            break
    return evaluation, decision
