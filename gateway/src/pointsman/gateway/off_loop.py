"""Work that would stall the event loop, in a few threads."""

import asyncio
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Final, TypeVar

T = TypeVar("T")

INLINE_BYTES: Final = 64 * 1024
"""JSON up to this size is decoded or encoded on the loop: less than a millisecond."""

THREADS: Final = 2


class OffLoop:
    """At most `THREADS` pieces of work at one time; what waits is bounded by the requests in flight."""

    def __init__(self) -> None:
        self._threads = ThreadPoolExecutor(THREADS, thread_name_prefix="json")

    async def run(self, size_bytes: int, work: Callable[[], T]) -> T:
        """``work()``, in a thread if its input has more than `INLINE_BYTES`. Raises what ``work`` raises."""
        if size_bytes <= INLINE_BYTES:
            return work()
        return await asyncio.get_running_loop().run_in_executor(self._threads, work)

    def close(self) -> None:
        """Start nothing more; what runs ends by itself."""
        self._threads.shutdown(wait=False, cancel_futures=True)
