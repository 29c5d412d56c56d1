"""The next token of each request, from its logits.

What is drawn depends on the request's seed and the token's position alone: an answer that is computed again on other
instances, or goes on at another master, is the same. All requests of a step are drawn together, because the host waits
for a GPU each time that it reads a token.
"""

from collections.abc import Mapping, Sequence
from typing import Final

import torch

from pointsman.serving.elastic.iterations import Sampled, Sampling

_DRAWN_TOGETHER: Final = 64  # requests: each takes ten times the vocabulary's logits, 5 MB with 128 000 tokens
_POSITIONS: Final = 2**20  # a seed and a position make one number; contexts are shorter than this


def sample(
    logits: Mapping[str, torch.Tensor], sampling: Mapping[str, Sampling], positions: Mapping[str, int]
) -> dict[str, Sampled]:
    """By request, a token for its position from its ``logits`` (vocabulary,)."""
    found: dict[str, int] = {}
    if greedy := [request for request in logits if sampling[request].temperature == 0]:
        best = torch.stack([logits[request] for request in greedy]).argmax(-1)
        found |= zip(greedy, best.tolist(), strict=True)
    drawing = [request for request in logits if request not in found]
    for first in range(0, len(drawing), _DRAWN_TOGETHER):
        together = drawing[first : first + _DRAWN_TOGETHER]
        drawn = _drawn(
            torch.stack([logits[request].float() for request in together]),
            [sampling[request] for request in together],
            [positions[request] for request in together],
        )
        found |= zip(together, drawn.tolist(), strict=True)
    return {request: _told(of, found[request], sampling[request].logprobs) for request, of in logits.items()}


def _told(logits: torch.Tensor, token_id: int, count: int | None) -> Sampled:
    """With what was asked for about it."""
    if count is None:
        return Sampled(token_id)
    logprobs = logits.float().log_softmax(-1)
    best = logprobs.topk(min(count, len(logprobs)))
    likeliest = tuple(zip(best.indices.tolist(), best.values.tolist(), strict=True))
    logprob = logprobs[token_id]
    return Sampled(token_id, float(logprob), int((logprobs > logprob).sum()) + 1, likeliest)


def _drawn(logits: torch.Tensor, sampling: Sequence[Sampling], positions: Sequence[int]) -> torch.Tensor:
    """Tokens (requests,) from ``logits`` (requests, vocabulary)."""

    def column(values: Sequence[float]) -> torch.Tensor:
        return torch.tensor(values, device=logits.device)[:, None]

    scaled = logits / column([each.temperature for each in sampling])
    # Stable: likeliest first, and of equal ones, which are many in bfloat16, the first, whoever is drawn beside it.
    probabilities, order = scaled.softmax(-1).sort(descending=True, stable=True)
    if any(each.top_k > 0 for each in sampling):
        ranks = torch.arange(logits.shape[1], device=logits.device)
        most = column([each.top_k if each.top_k > 0 else logits.shape[1] for each in sampling])
        probabilities[ranks >= most] = 0
        probabilities /= probabilities.sum(-1, keepdim=True)
    if any(each.top_p < 1 for each in sampling):
        # Those whose predecessors already have top_p are left out; so the likeliest one never is.
        most = column([each.top_p if each.top_p < 1 else torch.inf for each in sampling])
        probabilities[probabilities.cumsum(-1) - probabilities >= most] = 0
    # The largest of probabilities that are divided by exponential noise is a draw from them: what multinomial does.
    noise = torch.stack([_noise(logits[0], each, at) for each, at in zip(sampling, positions, strict=True)])
    return order.gather(-1, (probabilities / noise).argmax(-1, keepdim=True))[:, 0]


def _noise(like: torch.Tensor, sampling: Sampling, position: int) -> torch.Tensor:
    generator = torch.Generator(device=like.device)
    generator.manual_seed((sampling.seed * _POSITIONS + position) % 2**63)
    return torch.empty_like(like).exponential_(generator=generator)
