"""The prefill token budget: how many prompt tokens a prefill worker computes at one time.

Prompts of one batch end together. A prompt that just misses a batch waits for it and is then computed in its own, so a
batch may take half of the TTFT objective. The rule, in one line:

    budget = 8192 tokens, halved while one prefill of so many tokens takes more than half of the TTFT objective (>= 256)

8192 tokens is what one engine pass takes on GPUs (vLLM's ``--max-num-batched-tokens``): more at one time only makes
prompts wait for each other. How a worker admits prompts by the budget is ``pointsman.serving.token_budget``.
"""

from typing import Final

from pointsman.planner.core.engine.performance_model import PerformanceModel
from pointsman.planner.core.types import Observation, Policy
from pointsman.serving.token_budget import DEFAULT_PREFILL_TOKEN_BUDGET

BATCH_SHARE_OF_TTFT: Final = 0.5
LEAST_TOKENS: Final = 256  # fewer leave an accelerator idle
RAISE_SHARE: Final = 0.9  # of the time a batch may take, for a budget that is raised: it should not come down at once


def prefill_token_budget(model: PerformanceModel, observation: Observation, policy: Policy, ttft_s: float) -> int:
    """Tokens to publish. ``ttft_s``: the TTFT objective of a prompt of the mean length, in seconds."""
    before = observation.routing.prefill_token_budget
    if not policy.remote_prefill:
        return before
    batch_ms = BATCH_SHARE_OF_TTFT * ttft_s * 1000
    highest = _within(model, batch_ms)
    return highest if highest <= before else max(before, _within(model, RAISE_SHARE * batch_ms))


def _within(model: PerformanceModel, batch_ms: float) -> int:
    tokens = DEFAULT_PREFILL_TOKEN_BUDGET
    while tokens > LEAST_TOKENS and model.prefill_ms(tokens, 0) > batch_ms:
        tokens //= 2
    return tokens
