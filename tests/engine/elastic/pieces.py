"""A prefill in pieces and in several batches, beside one that is computed as a whole. Prints JSON.

python -m engine.elastic.pieces MODEL_FOLDER
"""

import json
import random
import sys
from pathlib import Path

import torch

from pointsman.serving.elastic.iterations import Prompt
from pointsman.workers.elastic.engine import memory, model
from pointsman.workers.elastic.engine.groups import Group
from pointsman.workers.elastic.instance.loading import load
from pointsman.workers.elastic.instance.settings import InstanceSettings

LENGTHS = (700, 1200, 300, 5)
SLOTS = 3000
WHOLE = 10**6


def main(folder: Path) -> dict[str, object]:
    """``apart``: the largest difference of a logit."""
    settings = InstanceSettings.model_validate(
        {"namespace": "n", "service": "s", "service_uid": "u", "worker": "i0", "control_token": "a-token-of-the-tests"}
        | {"model": str(folder), "dtype": "float32"}
    )
    loaded, rng = load(settings), random.Random(1)
    prompts = [
        Prompt(f"r{length}", tuple(rng.randrange(90) for _ in range(length)), ((0, length),)) for length in LENGTHS
    ]

    def logits(piece_tokens: int, batch_tokens: int) -> tuple[dict[str, torch.Tensor], int]:
        vars(model)["PIECE_TOKENS"], vars(memory)["BATCH_TOKENS"] = piece_tokens, batch_tokens
        instance = loaded.instance(SLOTS)
        return instance.prefill(prompts, Group.alone()), instance.pool.free

    (whole, _), (parted, free) = logits(WHOLE, WHOLE), logits(500, 1000)
    return {
        "apart": max(float((whole[each] - parted[each]).abs().max()) for each in whole),
        "in_order": list(whole) == list(parted),
        "free": free,
    }


if __name__ == "__main__":
    print(json.dumps(main(Path(sys.argv[1]))))
