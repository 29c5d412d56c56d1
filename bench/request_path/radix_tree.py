"""The peer's part: Dynamo's RadixTree of the ``ai-dynamo-runtime`` wheel, in an environment of its own.

Prints one JSON object of figures.
"""

import json
import time
from dataclasses import replace

from dynamo._core import RadixTree, compute_block_hash_for_seq

from bench.request_path.load import Load, measured


def filled(load: Load, per_event: int) -> tuple[RadixTree, float]:
    """A tree with the load, and how many events it took per CPU second, as it takes them: JSON."""
    found = []
    for number, (worker, chain, blocks) in enumerate(load.events(per_event)):
        names = [(chain[at] * 2_654_435_761 + 1) & (2**63 - 1) for at in range(max(0, blocks[0] - 1), blocks[-1] + 1)]
        parent = names.pop(0) if blocks[0] else None
        stored = [{"block_hash": name, "tokens_hash": chain[at]} for name, at in zip(names, blocks, strict=True)]
        data = {"stored": {"parent_hash": parent, "blocks": stored}}
        found.append((worker, json.dumps({"event_id": number, "dp_rank": 0, "data": data}).encode()))
    tree = RadixTree()
    began_s = time.process_time()
    for worker, event in found:
        tree.apply_event(worker, event)
    tree.find_matches(load.prompts()[0][0][:1])  # events are applied by another thread: wait for it
    return tree, len(found) / (time.process_time() - began_s)


def measure(load: Load) -> dict[str, float]:
    """All figures of one run."""
    _, one_block = filled(load, 1)
    tree, batched = filled(load, load.blocks)
    found = measured(
        replace(load, finds=load.finds // 4),
        lambda chain: tree.find_matches(chain).scores,
        lambda tokens: compute_block_hash_for_seq(tokens, 16),
    )
    return found | {"one_block_events": one_block, "batched_blocks": batched * load.blocks}


if __name__ == "__main__":
    print(json.dumps(measure(Load())))
