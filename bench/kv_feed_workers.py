"""The workers of ``bench/kv_feed.py``: run by the interpreter of the engine environment.

Arguments: workers, blocks, batches, batches of the replay buffer. Each worker is a process forked after vLLM was
imported once. It prints one line of JSON when its cache is as asked, goes on publishing, and ends with standard input.
"""

import asyncio
import json
import os
import signal
import sys
import tempfile
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Final

BLOCK_SIZE: Final = 16
PROMPT_BLOCKS: Final = 100
TOKEN: Final = "the-token-of-the-benchmark"
STEP_SECONDS: Final = 0.02  # of a busy engine's scheduler
QUEUE_BATCHES: Final = 100_000


def prompt_tokens(prompt: int, blocks: int) -> list[int]:
    """Token ids of the first blocks of a prompt; different prompts share none."""
    return [(prompt * 7919 + position) % 32_000 for position in range(blocks * BLOCK_SIZE)]


class Cache:
    """Makes vLLM's events of a cache."""

    def __init__(self) -> None:
        from vllm.distributed import kv_events as vllm

        self._vllm = vllm

    def stored(self, prompt: int, first: int, blocks: int) -> Any:
        tokens = prompt_tokens(prompt, first + blocks)[first * BLOCK_SIZE :]
        names = [prompt * 1_000_000 + block + 1 for block in range(first - 1, first + blocks)]
        return self._vllm.BlockStored(
            block_hashes=names[1:],
            parent_block_hash=names[0] if first else None,
            token_ids=tokens,
            block_size=BLOCK_SIZE,
            lora_id=None,
            medium="GPU",
            lora_name=None,
            extra_keys=[None] * blocks,
            group_idx=0,
        )

    def removed(self, prompt: int, blocks: int) -> Any:
        names = [prompt * 1_000_000 + block + 1 for block in reversed(range(blocks))]
        return self._vllm.BlockRemoved(block_hashes=names, medium="GPU", group_idx=0)

    def busy_hours(self, blocks: int, batches: int) -> Iterator[list[Any]]:
        """The first half of ``blocks``, which stays; prompts that come and go; the second half."""
        prompts = blocks // PROMPT_BLOCKS
        lasting = prompts // 2
        for prompt in range(lasting):
            yield [self.stored(prompt, 0, PROMPT_BLOCKS)]
        yield from self.passing(lasting, (batches - prompts) // 4 * 4)
        for prompt in range(prompts - lasting):
            yield [self.stored(1_000_000 + prompt, 0, PROMPT_BLOCKS)]

    def passing(self, prompt: int, batches: int) -> Iterator[list[Any]]:
        """Prompts from number ``prompt`` on that are computed in three steps and then evicted."""
        for number in range(batches):
            step = number % 4
            events = [self.stored(prompt + number // 4, step * 4, 4)] if step < 3 else []
            yield events or [self.removed(prompt + number // 4, 12)]


async def serve(number: int, blocks: int, batches: int, buffer: int) -> None:
    """One worker, until standard input ends."""
    import uvicorn
    from prometheus_client import CollectorRegistry
    from vllm.distributed.kv_events import KVEventBatch, ZmqEventPublisher

    from pointsman.api.protocol.kv import kv_events_topic
    from pointsman.workers.engine import AsgiEngine
    from pointsman.workers.event_sockets import kv_event_endpoints
    from pointsman.workers.metrics import WorkerMetrics
    from pointsman.workers.middleware import PointsmanMiddleware
    from pointsman.workers.settings import WorkerSettings
    from pointsman.workers.sidecar import Sidecar

    settings = WorkerSettings(
        namespace="bench",
        service="feed",
        service_uid="uid",
        worker=f"w{number}",
        kv_compatibility="same",
        block_size=BLOCK_SIZE,
        model="/nowhere",
        served_name="none",
        control_token=TOKEN,
    )
    endpoint, replay = kv_event_endpoints(settings)
    topic = kv_events_topic(settings.worker)
    publisher = ZmqEventPublisher(0, endpoint, replay, buffer, QUEUE_BATCHES, QUEUE_BATCHES, topic)
    made: list[Sidecar] = []

    async def application(scope: Any, receive: Any, send: Any) -> None:
        if scope["type"] == "lifespan":
            while True:
                message = await receive()
                await send({"type": f"{message['type']}.complete"})
                if message["type"] == "lifespan.shutdown":
                    return
        await send({"type": "http.response.start", "status": 200, "headers": []})
        await send({"type": "http.response.body", "body": b""})

    def sidecar(app: Any, host: Any) -> Sidecar:
        registry = CollectorRegistry()
        made.append(Sidecar(settings, AsgiEngine(app, host=host, registry=registry), WorkerMetrics(registry)))
        return made[0]

    app = PointsmanMiddleware(application, sidecar)
    config = uvicorn.Config(app, host="127.0.0.1", port=0, log_level="warning", access_log=False, timeout_keep_alive=5)
    server = uvicorn.Server(config)
    serving = asyncio.create_task(server.serve())
    loop = asyncio.get_running_loop()
    ending = asyncio.Event()
    cache = Cache()

    def publish(events: list[Any]) -> None:
        publisher.publish(KVEventBatch(ts=0.0, events=events))

    await until(lambda: server.started and bool(made) and made[0].state().cached_blocks is not None)
    for count, events in enumerate(cache.busy_hours(blocks, batches)):
        publish(events)
        if count % 50 == 0:
            await asyncio.sleep(0)
    await until(lambda: made[0].state().cached_blocks == blocks // PROMPT_BLOCKS * PROMPT_BLOCKS)

    def cut() -> None:
        for connection in list(server.server_state.connections):
            connection.transport.abort()

    loop.add_signal_handler(signal.SIGUSR1, cut)
    threading.Thread(target=lambda: (sys.stdin.read(), loop.call_soon_threadsafe(ending.set)), daemon=True).start()
    port = server.servers[0].sockets[0].getsockname()[1]
    state = {"url": f"http://127.0.0.1:{port}", "pid": os.getpid(), "blocks": made[0].state().cached_blocks}
    os.write(1, f"{json.dumps(state)}\n".encode())
    for events in cache.passing(10_000_000, 10**9):
        publish(events)
        try:
            async with asyncio.timeout(STEP_SECONDS):
                await ending.wait()
            break
        except TimeoutError:
            continue
    server.should_exit = server.force_exit = True
    await serving
    publisher.shutdown()


async def until(condition: Callable[[], bool]) -> None:
    """Return when ``condition`` holds."""
    while True:
        if condition():
            return
        await asyncio.sleep(0.05)


def main() -> None:
    """Fork the workers and wait for them."""
    workers, blocks, batches, buffer = map(int, sys.argv[1:])
    import vllm.distributed.kv_events  # noqa: F401  (once, before the forks)

    with tempfile.TemporaryDirectory(prefix="feed-") as folder:
        tempfile.tempdir = str(Path(folder))
        children = []
        for number in range(workers):
            pid = os.fork()
            if pid == 0:
                asyncio.run(serve(number, blocks, batches, buffer))
                os._exit(0)
            children.append(pid)
        for pid in children:
            os.waitpid(pid, 0)


if __name__ == "__main__":
    main()
