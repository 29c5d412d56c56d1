"""When workers change their role, as a real engine was seen."""

from pointsman.api.protocol.names import Role
from pointsman.api.v1alpha1.plannerpolicy import Mode
from pointsman.planner.core.decide import decide
from pointsman.planner.core.state import State
from pointsman.planner.core.types import Bounds, Policy
from unit.planner.captured import captured


def test_a_decode_worker_is_given_back_soon_after_long_prompts_are_gone() -> None:
    """The quick start's load on vLLM 0.32.0, on two shared cores: long prompts from 9.7 s to 37 s, before and after
    them prompts of at most 480 tokens, which decode workers compute themselves. The planner that was recorded believed
    a fifth of these to be remote, and switched back 157 s after the change.
    """
    objectives, looks = captured("cpu_load_shift")
    policy = Policy(
        mode=Mode.ACTIVE, objectives=objectives, remote_prefill=False,
        max_gpus=3, min_gpus=3, prefill=Bounds(1, 2), decode=Bounds(1, 3), scale_out=False, scale_in=False,
        interval_s=1.5, max_in_transition_share=0.34,
    )  # fmt: skip
    state, switched = State(), []
    for seen in looks:
        state, decision, _ = decide(state, seen, policy, seen.at_s)
        switched += [(switch.target, seen.at_s) for switch in decision.switches]
    (to_prefill, first_s), (to_decode, back_s), *_ = switched
    assert (to_prefill, to_decode) == (Role.PREFILL, Role.DECODE)
    assert first_s < 20
    assert 37 < back_s < 85
