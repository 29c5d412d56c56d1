"""Our part: the gateway's KV index as its feed fills it, block hashes, and the router's decision.

Prints one JSON object of figures.
"""

import json
import random
import time
import tracemalloc
from collections.abc import Iterator

from bench.request_path.load import Load, measured
from pointsman.api.protocol import kv_feed as wire
from pointsman.api.protocol.control import ModelInfo
from pointsman.api.protocol.names import Role
from pointsman.gateway import types
from pointsman.gateway.core.index import KvIndex
from pointsman.gateway.core.kv_feed import FeedState
from pointsman.gateway.core.router import token_load
from pointsman.gateway.fleet import Fleet
from pointsman.gateway.processor import Model
from pointsman.gateway.settings import Settings
from pointsman.serving.block_hashes import chained_block_hashes

BOUND = Settings(service="bench").kv_index_max_blocks
BLOCK_SIZE = 16


def key(worker: int) -> types.WorkerKey:
    """Of worker number ``worker``."""
    return types.WorkerKey(f"worker-{worker}")


def filled(load: Load, per_event: int) -> tuple[KvIndex, float]:
    """An index that the load's feeds filled, and how many increments it took per CPU second, from bytes."""
    frames: dict[int, list[bytes]] = {worker: [] for worker in range(load.workers)}
    for worker, chain, blocks in load.events(per_event):
        run = wire.pack_hashes(chain[blocks.start : blocks.stop])
        change = wire.Stored(chain[blocks.start - 1] if blocks.start else None, run)
        frames[worker].append(wire.encode_frame(wire.Increment(len(frames[worker]) + 1, [change])))
    index = KvIndex(max_blocks=BOUND)
    began_s = time.process_time()
    for worker, pieces in frames.items():
        reader, state = wire.FrameReader(), FeedState(index, key(worker))
        state.apply(wire.Snapshot(wire.FEED_VERSION, "i", BLOCK_SIZE, 0))
        state.apply(wire.Blocks([], last=True))
        for piece in pieces:
            reader.push(piece)
            frame = reader.next()
            assert frame is not None
            state.apply(frame)
    return index, sum(map(len, frames.values())) / (time.process_time() - began_s)


def bytes_per_block(load: Load) -> float:
    """Memory of the index per pair (worker, block), its hashes included."""
    tracemalloc.start()
    index = KvIndex(max_blocks=BOUND)
    for chain, holders in load.prompts():
        packed = wire.pack_hashes(chain)
        for worker in holders:
            index.stored_chain(key(worker), wire.unpack_hashes(packed), parent=None)
    del chain, packed
    size, _ = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    return size / index.pairs


def decisions_us(load: Load, decisions: int) -> Iterator[float]:
    """CPU microseconds of each decision for 2 048 tokens, hashing included, with half of each prompt cached at some."""
    rng = random.Random(5)
    index = KvIndex(max_blocks=BOUND)
    loads = {
        key(worker): types.Load(rng.random(), rng.randrange(4), rng.randrange(64), rng.randrange(8000))
        for worker in range(load.workers)
    }
    fleet = Fleet(
        clock=time.monotonic, rng=rng, cost=token_load, index=index, load_of=lambda w: loads[w.key], suspect_seconds=2.0
    )
    fleet.apply(types.Discovered(tuple(types.Worker(k, k, f"http://{k}", Role.DECODE) for k in loads)))
    info = ModelInfo(served_name="m", max_model_len=8192, block_size=BLOCK_SIZE, files=(), digest="d")
    for each in loads:
        fleet.set_model(each, Model(info, None, text_verified=True, chat_verified=True))
    prompts = [[rng.randrange(100_000) for _ in range(2048)] for _ in range(64)]
    for tokens in prompts:
        for worker in rng.sample(list(loads), load.holders):
            index.stored_chain(worker, chained_block_hashes(tokens[:1024], BLOCK_SIZE), parent=None)
    for number in range(decisions):
        tokens = prompts[number % len(prompts)]
        began_s = time.thread_time()
        chain = chained_block_hashes(tokens, BLOCK_SIZE)
        pick = fleet.pick(prompt_tokens=len(tokens), chain=chain, digest=None, avoid=())
        assert pick is not None
        yield (time.thread_time() - began_s) * 1e6
        pick.entry.end()


def measure(load: Load, decisions: int = 5000) -> dict[str, float]:
    """All figures of one run."""
    _, one_block = filled(load, 1)
    index, batched = filled(load, load.blocks)
    each_us = sorted(decisions_us(load, decisions))
    found = measured(load, index.matches, lambda tokens: chained_block_hashes(tokens, BLOCK_SIZE))
    return found | {
        "one_block_events": one_block,
        "batched_blocks": batched * load.blocks,
        "bytes_per_block": bytes_per_block(load),
        "decision_p50_us": each_us[len(each_us) // 2],
        "decision_p99_us": each_us[len(each_us) * 99 // 100],
    }


if __name__ == "__main__":
    print(json.dumps(measure(Load())))
