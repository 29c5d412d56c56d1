"""When workers change their role, as a real engine was seen."""

import json
from pathlib import Path

from pydantic import TypeAdapter

from pointsman.api.protocol.names import Role
from pointsman.api.v1alpha1.plannerpolicy import Mode
from pointsman.planner.core.decide import decide
from pointsman.planner.core.state import State
from pointsman.planner.core.types import Bounds, Objectives, Observation, Policy

CAPTURES = Path(__file__).parents[1] / "captures"


def test_a_decode_worker_is_given_back_soon_after_long_prompts_are_gone() -> None:
    """The quick start's load on vLLM 0.32.0, on two shared cores: long prompts from 9.7 s to 37 s, before and after
    them prompts of at most 480 tokens, which decode workers compute themselves. The planner that was recorded believed
    a fifth of these to be remote, and switched back 157 s after the change.
    """
    first, *looks = (CAPTURES / "cpu_load_shift.jsonl").read_text().splitlines()
    policy = Policy(
        mode=Mode.ACTIVE, objectives=Objectives(**json.loads(first), attainment=0.9), remote_prefill=False,
        max_gpus=3, min_gpus=3, prefill=Bounds(1, 2), decode=Bounds(1, 3), scale_out=False, scale_in=False,
        interval_s=1.5, max_in_transition_share=0.34,
    )  # fmt: skip
    state, read, switched = State(), TypeAdapter(Observation), []
    for look in looks:
        seen = read.validate_json(look)
        state, decision, _ = decide(state, seen, policy, seen.at_s)
        switched += [(switch.target, seen.at_s) for switch in decision.switches]
    (to_prefill, first_s), (to_decode, back_s), *_ = switched
    assert (to_prefill, to_decode) == (Role.PREFILL, Role.DECODE)
    assert first_s < 20
    assert 37 < back_s < 85
