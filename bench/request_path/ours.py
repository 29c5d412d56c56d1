"""Our part: the gateway's KV index as its feed fills it, block hashes, and the router's decision.

Prints one JSON object of figures. Called as ``python -m bench.request_path.ours '{"workers": 64, …}'``.
"""

import json
import random
import sys
import time
import tracemalloc
from collections.abc import Iterator

from bench.request_path.load import Load, finds_per_second
from pointsman.api.protocol import kv_feed as wire
from pointsman.api.protocol.control import ModelInfo
from pointsman.api.protocol.kv_feed import FrameReader, encode_frame, pack_hashes
from pointsman.api.protocol.names import Role
from pointsman.gateway.core.index import KvIndex
from pointsman.gateway.core.kv_feed import FeedState
from pointsman.gateway.core.router import token_load
from pointsman.gateway.fleet import Fleet
from pointsman.gateway.processor import Model
from pointsman.gateway.settings import Settings
from pointsman.gateway.types import Discovered, Worker, WorkerKey
from pointsman.gateway.types import Load as WorkerLoad
from pointsman.serving.block_hashes import chained_block_hashes

BOUND = Settings(service="bench").kv_index_max_blocks
BLOCK_SIZE = 16


def key(worker: int) -> WorkerKey:
    """Of worker number ``worker``."""
    return WorkerKey(f"worker-{worker}")


def frames(load: Load, per_event: int) -> dict[int, list[bytes]]:
    """The load as the increments of each worker's feed, ``per_event`` blocks each, encoded."""
    found: dict[int, list[bytes]] = {worker: [] for worker in range(load.workers)}
    for chain, holders in load.prompts():
        for worker in holders:
            for start in range(0, len(chain), per_event):
                run = pack_hashes(chain[start : start + per_event])
                change = wire.Stored(chain[start - 1] if start else None, run)
                found[worker].append(encode_frame(wire.Increment(len(found[worker]) + 1, [change])))
    return found


def filled(load: Load, per_event: int) -> tuple[KvIndex, float]:
    """An index that the load's increments filled, and how many of them it took per CPU second, from bytes."""
    index = KvIndex(max_blocks=BOUND)
    found = frames(load, per_event)
    began_s = time.process_time()
    for worker, pieces in found.items():
        reader, state = FrameReader(), FeedState(index, key(worker))
        state.apply(wire.Snapshot(wire.FEED_VERSION, "i", BLOCK_SIZE, 0))
        state.apply(wire.Blocks([], last=True))
        for piece in pieces:
            reader.push(piece)
            frame = reader.next()
            assert frame is not None
            state.apply(frame)
    return index, sum(map(len, found.values())) / (time.process_time() - began_s)


def stored_per_second(load: Load, per_call: int) -> float:
    """Calls of ``stored_chain`` per CPU second: the index without a decoder before it."""
    index = KvIndex(max_blocks=BOUND)
    calls = [
        (key(worker), chain[start : start + per_call], chain[start - 1] if start else None)
        for chain, holders in load.prompts()
        for worker in holders
        for start in range(0, len(chain), per_call)
    ]
    began_s = time.process_time()
    for worker, blocks, parent in calls:
        index.stored_chain(worker, blocks, parent=parent)
    return len(calls) / (time.process_time() - began_s)


def bytes_per_block(load: Load) -> float:
    """Memory of the index per pair (worker, block), its hashes included."""
    tracemalloc.start()
    index = KvIndex(max_blocks=BOUND)
    for chain, holders in load.prompts():
        packed = pack_hashes(chain)
        for worker in holders:
            index.stored_chain(key(worker), wire.unpack_hashes(packed), parent=None)
    del chain, packed
    size, _ = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    return size / index.pairs


def hashing_us(calls: int = 2000) -> float:
    """CPU microseconds of hashing 2 048 tokens."""
    tokens = [random.Random(4).randrange(100_000) for _ in range(2048)]
    began_s = time.process_time()
    for _ in range(calls):
        chained_block_hashes(tokens, BLOCK_SIZE)
    return (time.process_time() - began_s) / calls * 1e6


def decisions_us(load: Load, decisions: int) -> Iterator[float]:
    """CPU microseconds of each decision for 2 048 tokens, hashing included, with half of each prompt cached at some."""
    rng = random.Random(5)
    index = KvIndex(max_blocks=BOUND)
    loads = {
        key(worker): WorkerLoad(rng.random(), rng.randrange(4), rng.randrange(64), rng.randrange(8000))
        for worker in range(load.workers)
    }
    fleet = Fleet(
        clock=time.monotonic,
        rng=rng,
        cost=token_load,
        index=index,
        load_of=lambda worker: loads[worker.key],
        suspect_seconds=2.0,
    )
    fleet.apply(Discovered(tuple(Worker(k, k, f"http://{k}", Role.DECODE) for k in loads)))
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
    chains = [chain for chain, _ in load.prompts()]
    found = index.matches(chains[0])
    if len(found) != load.holders or set(found.values()) != {load.blocks}:
        raise RuntimeError(f"the index found {found}")
    each_us = sorted(decisions_us(load, decisions))
    return {
        "full_hit": finds_per_second(index.matches, chains, load.finds),
        "half_hit": finds_per_second(index.matches, load.half_hits(), load.finds),
        "one_block_events": one_block,
        "batched_blocks": batched * load.blocks,
        "one_block_calls": stored_per_second(load, 1),
        "bytes_per_block": bytes_per_block(load),
        "hashing_us": hashing_us(),
        "decision_p50_us": each_us[len(each_us) // 2],
        "decision_p99_us": each_us[len(each_us) * 99 // 100],
    }


if __name__ == "__main__":
    print(json.dumps(measure(Load(**json.loads(sys.argv[1])))))
