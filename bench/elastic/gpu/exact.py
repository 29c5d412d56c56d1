"""Whether one instance computes on a GPU what transformers computes there and on the CPU, and with which operation.

    python -m bench.elastic.gpu.exact DEVICE FOLDER

``FOLDER``: with the models of `engine.elastic.models`. Runs in the engine environment.
"""

import random
import sys
from functools import partial
from itertools import product
from pathlib import Path
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode
from transformers import LlamaForCausalLM

from bench.elastic.gpu.findings import Findings
from bench.elastic.gpu.models import settings_of
from engine.elastic.models import KINDS
from engine.elastic.regroupings import Running, differences
from engine.elastic.rounding import Exact
from pointsman.serving.elastic.iterations import Prompt, Step
from pointsman.workers.elastic.engine.attention import Attended, attend
from pointsman.workers.elastic.engine.groups import Group
from pointsman.workers.elastic.instance.loading import load

LENGTHS = (1, 2, 17, 300, 1000, 2500, 4000)
ANSWER_TOKENS = 24
SEAM_LENGTHS = (1, 17, 4096, 32_768)
CHUNKS = (1, 2, 4)
HEADS, KV_HEADS, HEAD_SIZE = 8, 2, 128


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


class Operations(TorchDispatchMode):  # type: ignore[misc]
    """Which operations of attention run."""

    def __init__(self) -> None:
        super().__init__()
        self.names: set[str] = set()

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """See TorchDispatchMode."""
        if "attention" in str(func):
            self.names.add(str(func))
        return func(*args, **(kwargs or {}))


@torch.inference_mode()  # type: ignore[untyped-decorator]
def seam(device: str, dtype: torch.dtype) -> list[dict[str, Any]]:
    """The error of attention over keys in chunks, beside float64, as a share of its norm; by prompt length."""
    found = []
    for tokens in SEAM_LENGTHS if device == "cuda" else SEAM_LENGTHS[:2]:
        torch.manual_seed(tokens)
        query = torch.randn(tokens, HEADS, HEAD_SIZE, device=device).to(dtype)
        key, value = (torch.randn(tokens, KV_HEADS, HEAD_SIZE, device=device).to(dtype) for _ in range(2))
        rows = torch.arange(max(0, tokens - 64), tokens, device=device)  # of the reference, which has all scores
        wide_key, wide_value = (each.double().repeat_interleave(HEADS // KV_HEADS, 1) for each in (key, value))
        scores = torch.einsum("qhd,khd->hqk", query[rows].double(), wide_key) / HEAD_SIZE**0.5
        scores.masked_fill_(torch.arange(tokens, device=device)[None] > rows[:, None], -torch.inf)
        right = torch.einsum("hqk,khd->qhd", scores.softmax(-1), wide_value)
        for chunks in CHUNKS:
            attended = Attended.nothing(query)
            with Operations() as operations:
                for member, stripe in product(range(chunks), repeat=2):  # as the members of a ring
                    asking = torch.arange(tokens, device=device)[member::chunks][int(stripe > member) :]
                    part = slice(stripe, stripe + chunks * len(asking), chunks)
                    if len(asking):
                        attended.merge(attend(query[asking], key[part], value[part], causal=True), asking)
            error = float((attended.output[rows] - right).norm() / right.norm())
            operations_run = sorted(operations.names)
            found.append({"tokens": tokens, "chunks": chunks, "operations": operations_run, "output_error": error})
    return found


def main(device: str, folder: Path) -> None:
    """All of it."""
    findings = Findings()
    for dtype in ("float32", "bfloat16"):
        findings.step(f"seam_{dtype}", partial(seam, device, getattr(torch, dtype)))
        for kind in KINDS:
            findings.step(f"{kind} {dtype}", partial(compare, folder / kind, device, dtype))


if __name__ == "__main__":
    main(sys.argv[1], Path(sys.argv[2]))
