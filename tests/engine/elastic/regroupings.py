"""Seeded sequences of regroupings on real processes, beside transformers' own model. Prints JSON.

    python -m engine.elastic.regroupings MODEL_FOLDER DTYPE WIDTH TRANSPORT SEED ...

``DTYPE``: of weights and KV. ``WIDTH``: processes that an instance's model is cut over (tensor parallelism).
``TRANSPORT``: "gloo", a stand-in for NCCL (see `strict_nccl`), or "gpu".

Each sequence draws prompts, groups, owners (proactive scale-down), masters (scale-up), hand-overs and ends of requests
at random. After every iteration each token of every request must lie on exactly one instance.
"""

import json
import random
import sys
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import torch
from transformers import LlamaForCausalLM

from engine.elastic.members import Members
from engine.elastic.rounding import Exact
from pointsman.serving.elastic.iterations import Move, Prompt, Step

SIZE, SLOTS, ITERATIONS, LONGEST = 4, 1500, 24, 400


@dataclass
class Running:
    """A request: its tokens so far, prompt included, and who holds KV of it."""

    tokens: list[int]
    prompt_tokens: int
    holders: set[int] = field(default_factory=set)


@dataclass
class Counts:
    """What a sequence did: groups that shrank after a prefill, steps with a master that joins, tokens handed over."""

    shrank: int = 0
    grew: int = 0
    hand_overs: int = 0
    handed_tokens: int = 0


def main(folder: Path, dtype: str, width: int, transport: str, seeds: list[int]) -> list[dict[str, Any]]:
    """What each sequence found."""
    torch.set_num_threads(1)  # the members compute meanwhile
    exact, same = Exact(folder), LlamaForCausalLM.from_pretrained(folder, dtype=getattr(torch, dtype)).eval()
    members = Members(folder, SIZE, SLOTS, width, dtype, transport)
    try:
        return [sequence(members, exact, same, random.Random(seed)) | {"seed": seed, "width": width} for seed in seeds]
    finally:
        members.close()


def sequence(members: Members, exact: Exact, same: Any, rng: random.Random) -> dict[str, Any]:
    """One sequence of regroupings, and what is left at its end. ``same``: transformers' model in the engine's type."""
    running: dict[str, Running] = {}
    ended: list[Running] = []
    degrees: set[int] = set()
    counts = Counts()
    misplaced = 0
    for number in range(ITERATIONS):
        if len(running) < 2 or rng.random() < 0.3:
            degrees.add(prefill(members, running, rng, number, same.config.vocab_size, counts))
        elif rng.random() < 0.2:
            hand_over(members, running, rng, counts)
        else:
            degrees.add(decode(members, running, rng, counts))
        for request in [request for request in running if rng.random() < 0.05]:
            ended.append(running.pop(request))
            members.asked("release", request)
        misplaced += count_misplaced(members, running)
    ended += running.values()
    for request in running:
        members.asked("release", request)
    found = differences(exact, same, ended)
    moved = members.asked("moved")
    of = same.config
    return {
        **asdict(counts),
        "moved_bytes": {kind: sum(each[kind] for each in moved) for kind in moved[0]},
        "token_bytes": 2 * of.num_hidden_layers * of.num_key_value_heads * of.head_dim * same.dtype.itemsize,
        "requests": len(ended),
        "tokens": sum(len(each.tokens) - each.prompt_tokens for each in ended),
        "degrees": sorted(degrees),
        "misplaced": misplaced,
        "slots_leaked": sum(SLOTS - free for free in members.asked("free")),
        **found,
    }


def prefill(
    members: Members, running: dict[str, Running], rng: random.Random, number: int, vocabulary: int, counts: Counts
) -> int:
    """Some prompts on a random group, kept by random members of it."""
    chosen = rng.sample(range(SIZE), rng.randint(1, SIZE))
    free = members.asked("free")
    prompts = []
    for part in range(rng.randint(1, 3)):
        length = rng.choice((1, 2, 3, rng.randint(4, LONGEST)))
        ids = [rng.randrange(vocabulary) for _ in range(length)]
        owners, left = [], length
        while left:
            member = rng.randrange(len(chosen))
            count = min(rng.randint(1, left), free[chosen[member]] - ITERATIONS)
            if count > 0:
                owners.append((member, count))
                free[chosen[member]] -= count
                left -= count
        request = f"r{number}.{part}"
        prompts.append(Prompt(request, tuple(ids), tuple(owners)))
        running[request] = Running(ids, length, {chosen[member] for member, _ in owners})
    counts.shrank += len({member for prompt in prompts for member, _ in prompt.owners}) < len(chosen)
    for request, token in members.iterate(chosen, prompts, ()).items():
        running[request].tokens.append(token)
    return len(chosen)


def decode(members: Members, running: dict[str, Running], rng: random.Random, counts: Counts) -> int:
    """One token of some requests, by a group of all that hold KV of them and perhaps of others."""
    some = rng.sample(sorted(running), rng.randint(1, len(running)))
    needed = set().union(*(running[request].holders for request in some))
    chosen = sorted(needed | {member for member in range(SIZE) if rng.random() < 0.3})
    rng.shuffle(chosen)
    steps = []
    for request in some:
        of = running[request]
        master = rng.choice(chosen)
        holders = tuple(chosen.index(holder) for holder in sorted(of.holders))
        steps.append(Step(request, of.tokens[-1], len(of.tokens) - 1, chosen.index(master), holders))
        counts.grew += master not in of.holders
        of.holders.add(master)
    for request, token in members.iterate(chosen, (), steps).items():
        running[request].tokens.append(token)
    return len(chosen)


def hand_over(members: Members, running: dict[str, Running], rng: random.Random, counts: Counts) -> None:
    """Some of a request's KV goes to another instance."""
    request = rng.choice(sorted(running))
    source = rng.choice(sorted(running[request].holders))
    target = rng.choice([member for member in range(SIZE) if member != source])
    there = len(members.asked("positions")[source][request])
    count = rng.choice((there, rng.randint(1, there)))
    counts.hand_overs += 1
    counts.handed_tokens += count
    members.iterate([target, source], (), (), [Move(request, 1, 0, count)])
    running[request].holders.add(target)
    if count == there:
        running[request].holders.discard(source)


def count_misplaced(members: Members, running: dict[str, Running]) -> int:
    """Tokens that lie nowhere or twice, and those of requests that ended. The newest token has no KV yet."""
    where = members.asked("positions")
    wrong = sum(len(held[request]) for held in where for request in held if request not in running)
    for request, of in running.items():
        held = sorted(position for each in where for position in each.get(request, ()))
        wrong += held != list(range(len(of.tokens) - 1))
    return wrong


@torch.inference_mode()  # type: ignore[untyped-decorator]
def differences(exact: Exact, same: Any, ended: list[Running]) -> dict[str, Any]:
    """Tokens that ``exact`` would not have chosen, and how far its two best logits lie apart at each of them.

    ``rounding``: what float32 changes logits by, at most. ``undecided``: tokens whose two best logits lie closer
    together than this changes those of their position. ``lost``: how far the logit of a chosen token lies below the
    best, at most, in standard deviations of all logits of that position. ``transformers_lost``: the same of the
    tokens that ``same`` would choose.
    """
    wrong, undecided, rounding, lost, theirs = 0, 0, 0.0, 0.0, 0.0
    apart: list[float] = []
    for each in ended:
        asked = each.tokens[:-1]
        logits, changed = exact.logits(asked, len(each.tokens) - each.prompt_tokens)
        alike = same(torch.tensor([asked])).logits[0, each.prompt_tokens - 1 :]
        best = logits.topk(2).values
        apart += (best[:, 0] - best[:, 1]).tolist()
        undecided += int((best[:, 0] - best[:, 1] < changed).sum())
        rounding = max(rounding, float(changed.max()))
        chosen = torch.tensor(each.tokens[each.prompt_tokens :])
        wrong += int((logits.argmax(-1) != chosen).sum())
        lost = max(lost, _lost(logits, chosen))
        theirs = max(theirs, _lost(logits, alike.argmax(-1)))
    return {
        "wrong_tokens": wrong, "undecided": undecided, "rounding": rounding, "logits_apart": apart,
        "lost": lost, "transformers_lost": theirs,
    }  # fmt: skip


def _lost(logits: torch.Tensor, chosen: torch.Tensor) -> float:
    below = logits.max(-1).values - logits.gather(-1, chosen[:, None])[:, 0]
    return float((below / logits.std(-1)).max())


if __name__ == "__main__":
    folder, dtype, width, transport, *seeds = sys.argv[1:]
    print(json.dumps(main(Path(folder), dtype, int(width), transport, [int(seed) for seed in seeds])))
