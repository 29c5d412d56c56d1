"""What sampling draws, and how often. Prints JSON. Runs in the engine environment.

python -m engine.elastic.draws
"""

import json
from collections import Counter
from dataclasses import replace

import torch

from pointsman.serving.elastic.iterations import Sampled, Sampling
from pointsman.workers.elastic.engine.sampling import sample

LOGITS = torch.tensor([0.5, 2.0, 1.0, -1.0, 1.5])
DRAWS = 4000


def drawn(sampling: Sampling, position: int) -> Sampled:
    """One token."""
    return sample({"r": LOGITS}, {"r": sampling}, {"r": position})["r"]


def beside() -> bool:
    """Whether tokens are the same when many are drawn together, from logits of which many are equal."""
    torch.manual_seed(1)
    logits = {str(number): torch.randn(500).bfloat16().float() for number in range(40)}
    sampling = {
        request: Sampling(
            temperature=(0.0, 0.7, 1.5)[number % 3], top_p=(1.0, 0.8)[number % 2], top_k=(0, 20)[number % 5 == 0],
            seed=number,
        )
        for number, request in enumerate(logits)
    }  # fmt: skip
    positions = {request: 100 + number for number, request in enumerate(logits)}
    together = sample(logits, sampling, positions)
    return all(sample({each: of}, sampling, positions)[each] == together[each] for each, of in logits.items())


def shares(sampling: Sampling) -> list[float]:
    """How often each token is drawn, over as many positions."""
    tokens = Counter(drawn(sampling, position).token_id for position in range(DRAWS))
    return [tokens[token] / DRAWS for token in range(len(LOGITS))]


def main() -> dict[str, object]:
    """See the names."""
    plain = Sampling(seed=7)
    told = drawn(Sampling(temperature=0, logprobs=2), 3)
    return {
        "plain": shares(plain),
        "cold": shares(replace(plain, temperature=0.5)),
        "top_k": shares(replace(plain, top_k=2)),
        "top_p": shares(replace(plain, top_p=0.6)),
        "likeliest_only": shares(replace(plain, top_p=1e-9)),
        "greedy": shares(replace(plain, temperature=0)),
        "again": all(drawn(plain, at) == drawn(plain, at) for at in range(100)),
        "beside": beside(),
        "other_seed": shares(replace(plain, seed=8)) != shares(plain),
        "told": [told.token_id, told.logprob, told.likeliest],
        "softmax": LOGITS.softmax(-1).tolist(),
        "cold_softmax": (LOGITS / 0.5).softmax(-1).tolist(),
        "log_softmax": LOGITS.log_softmax(-1).tolist(),
    }


if __name__ == "__main__":
    print(json.dumps(main()))
