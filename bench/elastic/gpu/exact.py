"""Whether one instance computes on a GPU what transformers computes there and on the CPU.

    python -m bench.elastic.gpu.exact DEVICE FOLDER

``FOLDER``: with the models of `engine.elastic.models`. Runs in the engine environment.
"""

import random
import sys
from functools import partial
from pathlib import Path
from typing import Any

import torch
from transformers import LlamaForCausalLM

from bench.elastic.gpu.findings import Findings
from bench.elastic.gpu.models import settings_of
from engine.elastic.models import KINDS
from engine.elastic.regroupings import Running, differences
from engine.elastic.rounding import Exact
from pointsman.serving.elastic.iterations import Prompt, Step
from pointsman.workers.elastic.engine.groups import Group
from pointsman.workers.elastic.instance.loading import load

LENGTHS = (1, 2, 17, 300, 1000, 2500, 4000)
ANSWER_TOKENS = 24


def answers(folder: Path, device: str, dtype: str, seed: int) -> list[Running]:
    """Greedy ones of one instance: prompts of `LENGTHS` prefilled as one batch and decoded as one, in drawn slots."""
    rng = random.Random(seed)
    instance = load(settings_of(folder, device, dtype, sum(LENGTHS) + 1000)).instance(sum(LENGTHS) + 1000)
    rng.shuffle(instance.pool._free)
    running = {
        f"r{length}": Running([rng.randrange(512) for _ in range(length)], length, {0})
        for length in LENGTHS
        if device == "cuda" or length <= 300
    }
    prompts = [Prompt(name, tuple(of.tokens), ((0, len(of.tokens)),)) for name, of in running.items()]
    for name, logits in instance.prefill(prompts, Group.alone()).items():
        running[name].tokens.append(int(logits.argmax()))
    for _ in range(ANSWER_TOKENS - 1):
        steps = [Step(name, of.tokens[-1], len(of.tokens) - 1, 0, (0,)) for name, of in running.items()]
        for name, logits in instance.decode(steps, Group.alone()).items():
            running[name].tokens.append(int(logits.argmax()))
    return list(running.values())


def compare(folder: Path, device: str, dtype: str) -> dict[str, Any]:
    """Beside transformers in the same type on the same device, and in float64 on the CPU (`differences`)."""
    found = answers(folder, device, dtype, 1)
    theirs = LlamaForCausalLM.from_pretrained(folder, dtype=getattr(torch, dtype)).to(device).eval()
    other = 0
    for each in found:
        with torch.inference_mode():
            logits = theirs(torch.tensor([each.tokens[:-1]], device=device)).logits[0, each.prompt_tokens - 1 :]
        other += int((logits.argmax(-1).cpu() != torch.tensor(each.tokens[each.prompt_tokens :])).sum())
    beside = differences(Exact(folder), theirs.cpu(), found)
    beside["two_best_logits_apart_least"] = min(beside.pop("logits_apart"))
    tokens = sum(len(each.tokens) - each.prompt_tokens for each in found)
    return {"tokens": tokens, "not_those_of_transformers_here": other, **beside}


def main(device: str, folder: Path) -> None:
    """All of it."""
    findings = Findings()
    for dtype in ("float32", "bfloat16"):
        for kind in KINDS:
            findings.step(f"{kind} {dtype}", partial(compare, folder / kind, device, dtype))


if __name__ == "__main__":
    main(sys.argv[1], Path(sys.argv[2]))
