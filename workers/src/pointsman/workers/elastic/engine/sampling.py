"""The next token of one request, from its logits.

What is drawn depends on the request's seed and the token's position alone: an answer that is computed again on other
instances, or goes on at another master, is the same.
"""

from typing import Final

import torch

from pointsman.serving.elastic.iterations import Sampled, Sampling

_POSITIONS: Final = 2**20  # a seed and a position make one number; contexts are shorter than this


def sample(logits: torch.Tensor, sampling: Sampling, position: int) -> Sampled:
    """A token for ``position`` from ``logits`` (vocabulary,) in float32."""
    token_id = int(logits.argmax()) if sampling.temperature == 0 else _drawn(logits, sampling, position)
    if sampling.logprobs is None:
        return Sampled(token_id)
    logprobs = logits.log_softmax(-1)
    best = logprobs.topk(min(sampling.logprobs, len(logprobs)))
    likeliest = tuple(zip(best.indices.tolist(), best.values.tolist(), strict=True))
    logprob = logprobs[token_id]
    return Sampled(token_id, float(logprob), int((logprobs > logprob).sum()) + 1, likeliest)


def _drawn(logits: torch.Tensor, sampling: Sampling, position: int) -> int:
    probabilities, order = (logits / sampling.temperature).softmax(-1).sort(descending=True)
    if sampling.top_k > 0:
        probabilities[sampling.top_k :] = 0
        probabilities /= probabilities.sum()
    if sampling.top_p < 1:
        # Those whose predecessors already have top_p are left out; so the likeliest one never is.
        probabilities[probabilities.cumsum(-1) - probabilities >= sampling.top_p] = 0
    generator = torch.Generator(device=logits.device)
    generator.manual_seed((sampling.seed * _POSITIONS + position) % 2**63)
    return int(order[probabilities.multinomial(1, generator=generator)])
