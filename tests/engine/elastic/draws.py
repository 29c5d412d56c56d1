"""What sampling draws, and how often. Prints JSON. Runs in the engine environment.

python -m engine.elastic.draws
"""

import json
from collections import Counter
from dataclasses import replace

import torch

from pointsman.serving.elastic.iterations import Sampling
from pointsman.workers.elastic.engine.sampling import sample

LOGITS = torch.tensor([0.5, 2.0, 1.0, -1.0, 1.5])
DRAWS = 4000


def shares(sampling: Sampling) -> list[float]:
    """How often each token is drawn, over as many positions."""
    drawn = Counter(sample(LOGITS, sampling, position).token_id for position in range(DRAWS))
    return [drawn[token] / DRAWS for token in range(len(LOGITS))]


def main() -> dict[str, object]:
    """See the names."""
    plain = Sampling(seed=7)
    told = sample(LOGITS, Sampling(temperature=0, logprobs=2), 3)
    return {
        "plain": shares(plain),
        "cold": shares(replace(plain, temperature=0.5)),
        "top_k": shares(replace(plain, top_k=2)),
        "top_p": shares(replace(plain, top_p=0.6)),
        "likeliest_only": shares(replace(plain, top_p=1e-9)),
        "greedy": shares(replace(plain, temperature=0)),
        "again": all(sample(LOGITS, plain, at) == sample(LOGITS, plain, at) for at in range(100)),
        "other_seed": shares(replace(plain, seed=8)) != shares(plain),
        "told": [told.token_id, told.logprob, told.likeliest],
        "softmax": LOGITS.softmax(-1).tolist(),
        "cold_softmax": (LOGITS / 0.5).softmax(-1).tolist(),
        "log_softmax": LOGITS.log_softmax(-1).tolist(),
    }


if __name__ == "__main__":
    print(json.dumps(main()))
