"""Whether one instance computes on a GPU what transformers computes there and on the CPU, and with which operation.

    python -m bench.elastic.gpu.exact DEVICE FOLDER FILE

``FOLDER``: with the models of `engine.elastic.models`. Runs in the engine environment.
"""

import random
import sys
from itertools import product
from pathlib import Path
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode
from transformers import LlamaForCausalLM

from bench.elastic.gpu.findings import Findings
from bench.elastic.gpu.models import settings_of
from engine.elastic.regroupings import Running, differences
from engine.elastic.rounding import Exact
from pointsman.serving.elastic.iterations import Prompt, Sampled, Sampling, Step
from pointsman.workers.elastic.engine.attention import Attended, attend
from pointsman.workers.elastic.engine.groups import Group
from pointsman.workers.elastic.engine.sampling import sample
from pointsman.workers.elastic.instance.loading import load

LENGTHS = (1, 2, 17, 300, 1000, 2500, 4000)
ANSWER_TOKENS = 24
SEAM_LENGTHS = (1, 17, 4096, 32_768)
CHUNKS = (1, 2, 4)
DRAWS = 20
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
    apart = sorted(beside.pop("logits_apart"))
    return {
        "tokens": sum(len(each.tokens) - each.prompt_tokens for each in found),
        "not_those_of_transformers_here": other,
        **beside,
        "two_best_logits_apart_least": apart[0],
    }


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
        lse = scores.logsumexp(-1).T
        for chunks in CHUNKS:
            attended = Attended.nothing(query)
            with Operations() as operations:
                for member, stripe in product(range(chunks), repeat=2):  # as the members of a ring
                    asking = torch.arange(tokens, device=device)[member::chunks][int(stripe > member) :]
                    part = slice(stripe, stripe + chunks * len(asking), chunks)
                    if len(asking):
                        attended.merge(attend(query[asking], key[part], value[part], causal=True), asking)
            found.append(
                {
                    "dtype": str(dtype), "tokens": tokens, "chunks": chunks, "operations": sorted(operations.names),
                    "output_error": float((attended.output[rows] - right).norm() / right.norm()),
                    "largest_log_sum_exp_error": float((attended.weight[rows] - lse).abs().max()),
                }
            )  # fmt: skip
    return found


def drawn(logits: torch.Tensor, sampling: Sampling, position: int) -> Sampled:
    """One token."""
    return sample({"r": logits}, {"r": sampling}, {"r": position})["r"]


def draws(device: str) -> dict[str, Any]:
    """Whether what is drawn on ``device`` is the same again, as often as asked for, and as on the CPU."""
    torch.manual_seed(1)
    logits = torch.randn(128_256) * 2
    there = logits.to(device)
    asked = [Sampling(temperature=0.8, seed=seed, top_k=40, top_p=0.9) for seed in range(DRAWS)]
    first, again, on_cpu = (
        [drawn(of, each, 100 + number).token_id for number, each in enumerate(asked)] for of in (there, there, logits)
    )
    few = torch.tensor([0.5, 2.0, 1.0, -1.0, 1.5], device=device)
    times = [0] * 5
    for position in range(2000):
        times[drawn(few, Sampling(seed=7), position).token_id] += 1
    shares = few.softmax(-1).tolist()
    told = drawn(there, Sampling(temperature=0, logprobs=5), 3)
    right = logits.log_softmax(-1)
    return {
        "same_again": first == again,
        f"as_on_cpu_of_{DRAWS}": sum(one == other for one, other in zip(first, on_cpu, strict=True)),
        "largest_difference_of_a_share": max(abs(of / 2000 - share) for of, share in zip(times, shares, strict=True)),
        "greedy_as_on_cpu": told.token_id == int(logits.argmax()),
        "logprob_error": abs((told.logprob or 0.0) - float(right[told.token_id])),
    }


def main(device: str, folder: Path, file: Path) -> None:
    """All of it."""
    findings = Findings(file)
    findings.step("seam_float32", lambda: seam(device, torch.float32))
    findings.step("seam_bfloat16", lambda: seam(device, torch.bfloat16))
    findings.step("draws", lambda: draws(device))
    for kind in ("grouped-tied-llama3-sharded", "plain", "linear"):
        for dtype in ("float32", "bfloat16"):
            findings.step(f"{kind} {dtype}", lambda kind=kind, dtype=dtype: compare(folder / kind, device, dtype))  # type: ignore[misc]


if __name__ == "__main__":
    main(sys.argv[1], Path(sys.argv[2]), Path(sys.argv[3]))
