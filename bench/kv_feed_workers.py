"""The workers of ``bench/kv_feed.py``: run by the interpreter of the engine environment, which has vLLM.

Each worker is a process forked after vLLM was imported once. It prints one line of JSON when its cache is full, and
goes on publishing until standard input ends.
"""

import asyncio
import json
import os
import signal
import sys
from collections.abc import Sequence
from itertools import count
from typing import Any, Final

from fixtures.kv_event_publisher import BLOCK, BUFFER_BATCHES, busy_hours, removed, stored
from fixtures.workers import settings, worker
from pointsman.api.protocol.kv import kv_events_topic
from pointsman.workers.event_sockets import kv_event_endpoints
from waiting import eventually

BLOCKS: Final = 100_000  # in each cache
BATCHES: Final = 20_000  # that were published before anybody asks
STEP_SECONDS: Final = 0.02  # of a busy engine's scheduler
QUEUE_BATCHES: Final = 100_000


async def serve(name: str) -> None:
    """One worker, until it is killed."""
    import uvicorn
    from vllm.distributed.kv_events import KVEventBatch, ZmqEventPublisher

    own = settings(name, block_size=BLOCK)
    endpoints, topic = kv_event_endpoints(own), kv_events_topic(name)
    publisher = ZmqEventPublisher(0, *endpoints, BUFFER_BATCHES, QUEUE_BATCHES, QUEUE_BATCHES, topic)

    def publish(events: Sequence[Any]) -> None:
        publisher.publish(KVEventBatch(ts=0.0, events=list(events)))

    async with worker(own) as running:
        server = uvicorn.Server(uvicorn.Config(running.app, port=0, lifespan="off", log_level="warning"))
        serving = asyncio.create_task(server.serve())
        await eventually(lambda: server.started and running.state.cached_blocks is not None, "it serves")
        for events in busy_hours(BLOCKS, BATCHES):
            publish(events)
            await asyncio.sleep(0)
        await eventually(lambda: running.state.cached_blocks == BLOCKS, "the cache is full")

        def cut() -> None:
            for connection in list(server.server_state.connections):
                connection.transport.abort()

        asyncio.get_running_loop().add_signal_handler(signal.SIGUSR1, cut)
        port = server.servers[0].sockets[0].getsockname()[1]
        answer = {"url": f"http://127.0.0.1:{port}", "pid": os.getpid()}
        os.write(1, f"{json.dumps(answer)}\n".encode())  # at once: eight processes print
        for prompt in count(10_000_000):  # computed in three steps and then evicted
            for event in (*(stored(prompt, first, 4) for first in (0, 4, 8)), removed(prompt, 0, 12)):
                publish([event])
                await asyncio.sleep(STEP_SECONDS)
        await serving


def main() -> None:
    """Fork the workers, and kill them at the end."""
    import vllm.distributed.kv_events  # noqa: F401  (once, before the forks)

    children = []
    for number in range(int(sys.argv[1])):
        children.append(os.fork())
        if not children[-1]:
            asyncio.run(serve(f"w{number}"))
    sys.stdin.read()
    for pid in children:
        os.kill(pid, signal.SIGKILL)


if __name__ == "__main__":
    main()
