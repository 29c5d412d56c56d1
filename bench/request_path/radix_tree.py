"""The peer's part: Dynamo's RadixTree of the ``ai-dynamo-runtime`` wheel, in an environment of its own.

Prints one JSON object of figures. Called as ``python -m bench.request_path.radix_tree '{"workers": 64, …}'``.
"""

import json
import random
import sys
import time

from dynamo._core import RadixTree, compute_block_hash_for_seq

from bench.request_path.load import Load, finds_per_second


def events(load: Load, per_event: int) -> list[tuple[int, bytes]]:
    """Stored events of ``per_event`` blocks as the tree takes them: JSON."""
    found = []
    number = 0
    for chain, holders in load.prompts():
        names = [(block * 2_654_435_761 + 1) & (2**63 - 1) for block in chain]
        for worker in holders:
            for start in range(0, len(chain), per_event):
                blocks = [
                    {"block_hash": names[at], "tokens_hash": chain[at]}
                    for at in range(start, min(start + per_event, len(chain)))
                ]
                stored = {"parent_hash": names[start - 1] if start else None, "blocks": blocks}
                event = {"event_id": number, "dp_rank": 0, "data": {"stored": stored}}
                found.append((worker, json.dumps(event).encode()))
                number += 1
    return found


def filled(load: Load, per_event: int) -> tuple[RadixTree, float]:
    """A tree with the load, and how many events it took per CPU second."""
    tree = RadixTree()
    found = events(load, per_event)
    began_s = time.process_time()
    for worker, event in found:
        tree.apply_event(worker, event)
    tree.find_matches(load.prompts()[0][0][:1])  # events are applied by another thread: wait for it
    return tree, len(found) / (time.process_time() - began_s)


def measure(load: Load) -> dict[str, float]:
    """All figures of one run."""
    _, one_block = filled(load, 1)
    tree, batched = filled(load, load.blocks)
    chains = [chain for chain, _ in load.prompts()]
    scores = tree.find_matches(chains[0]).scores
    if len(scores) != load.holders or set(scores.values()) != {load.blocks}:
        raise RuntimeError(f"the tree found {scores}")
    tokens = [random.Random(4).randrange(100_000) for _ in range(2048)]
    began_s = time.process_time()
    for _ in range(2000):
        compute_block_hash_for_seq(tokens, 16)
    hashing_us = (time.process_time() - began_s) / 2000 * 1e6
    return {
        "full_hit": finds_per_second(tree.find_matches, chains, load.finds // 4),
        "half_hit": finds_per_second(tree.find_matches, load.half_hits(), load.finds // 4),
        "one_block_events": one_block,
        "batched_blocks": batched * load.blocks,
        "hashing_us": hashing_us,
    }


if __name__ == "__main__":
    print(json.dumps(measure(Load(**json.loads(sys.argv[1])))))
