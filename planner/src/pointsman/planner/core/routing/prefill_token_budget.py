"""The prefill token budget: how many prompt tokens a prefill worker computes at one time.

Prompts of one batch end together. A prompt that just misses a batch waits for it and is then computed in its own, so a
batch may take half of the TTFT objective. The rule, in one line:

    budget = 8192 tokens, halved while one prefill of so many tokens takes more than half of the TTFT objective (>= 256)

8192 tokens is what one engine pass takes on GPUs (vLLM's ``--max-num-batched-tokens``): more at one time only makes
prompts wait for each other. How a worker admits prompts by the budget is ``pointsman.serving.token_budget``.
"""

from pointsman.planner.core.engine.performance_model import PerformanceModel
from pointsman.planner.core.types import Observation, Policy
from pointsman.serving.token_budget import DEFAULT_PREFILL_TOKEN_BUDGET


def prefill_token_budget(model: PerformanceModel, observation: Observation, policy: Policy, ttft_s: float) -> int:
    """Tokens to publish. ``ttft_s``: the TTFT objective of a prompt of the mean length, in seconds."""
    before = observation.routing.prefill_token_budget
    if not policy.remote_prefill:
        return before
    batch_ms = 0.5 * ttft_s * 1000
    highest = _within(model, batch_ms)
    # A budget that is raised should not come down at once.
    return highest if highest <= before else max(before, _within(model, 0.9 * batch_ms))


def _within(model: PerformanceModel, batch_ms: float) -> int:
    tokens = DEFAULT_PREFILL_TOKEN_BUDGET
    while tokens > 256 and model.prefill_ms(tokens, 0) > batch_ms:
        tokens //= 2
    return tokens
