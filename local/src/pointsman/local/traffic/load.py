"""Load on one endpoint: a closed loop of N clients, each sending its next prompt when its last was answered, or the
arrivals of a trace, each at its time."""

import asyncio
from collections.abc import AsyncIterator, Callable, Iterable, Iterator, Sequence
from contextlib import asynccontextmanager

from pointsman.local.traffic.client import Endpoint
from pointsman.local.traffic.types import Prompt, Record


async def closed_loop(
    endpoint: Endpoint,
    prompts: Iterable[Prompt],
    *,
    clients: int,
    stop: asyncio.Event | None = None,
    on_record: Callable[[Record], None] | None = None,
) -> list[Record]:
    """Send ``prompts`` with ``clients`` at a time until they or ``stop`` end it; answers begun are always awaited.

    Returns the records in the order the answers ended; ``on_record`` sees each as it ends.
    """
    if clients < 1:
        raise ValueError(f"clients is {clients}: it must be 1 or more")
    pending: Iterator[Prompt] = iter(prompts)
    records: list[Record] = []

    async def client() -> None:
        for prompt in pending:  # shared: each prompt goes to exactly one client
            if stop is not None and stop.is_set():
                return
            record = await endpoint.send(prompt)
            records.append(record)
            if on_record is not None:
                on_record(record)

    async with asyncio.TaskGroup() as group:
        for _ in range(clients):
            group.create_task(client())
    return records


async def open_loop(endpoint: Endpoint, asked: Sequence[tuple[float, Prompt]]) -> list[Record]:
    """Send each prompt at its time, in seconds from now, whatever became of those before; records in the order given.

    As the arrivals of a trace: a slow service does not slow its clients down.
    """
    begin_s = asyncio.get_running_loop().time()

    async def at(due_s: float, prompt: Prompt) -> Record:
        await asyncio.sleep(begin_s + due_s - asyncio.get_running_loop().time())
        return await endpoint.send(prompt)

    async with asyncio.TaskGroup() as group:
        tasks = [group.create_task(at(due_s, prompt)) for due_s, prompt in asked]
    return [task.result() for task in tasks]


class Traffic:
    """Load that runs beside something else. ``records`` grows while it runs."""

    def __init__(self, on_record: Callable[[Record], None] | None = None) -> None:
        self.records: list[Record] = []
        self._on_record = on_record
        self._grown = asyncio.Event()

    def add(self, record: Record) -> None:
        """Take one finished request."""
        self.records.append(record)
        if self._on_record is not None:
            self._on_record(record)
        self._grown.set()

    @property
    def failed(self) -> list[Record]:
        """The requests that got no whole, regular answer."""
        return [record for record in self.records if not record.served]

    async def until(self, condition: Callable[[list[Record]], bool], *, timeout_seconds: float) -> None:
        """Wait until ``condition`` holds for the records so far; raises TimeoutError with what was seen."""
        try:
            async with asyncio.timeout(timeout_seconds):
                while not condition(self.records):
                    self._grown.clear()
                    await self._grown.wait()
        except TimeoutError:
            raise TimeoutError(
                f"the traffic did not get there within {timeout_seconds:.0f} s: {len(self.records)} requests answered, "
                f"{len(self.failed)} failed; last failure: {self.failed[-1].error if self.failed else 'none'}"
            ) from None

    async def answered(self, count: int, *, timeout_seconds: float) -> None:
        """Wait until ``count`` more requests than now have ended."""
        target = len(self.records) + count
        await self.until(lambda records: len(records) >= target, timeout_seconds=timeout_seconds)


@asynccontextmanager
async def running_load(
    endpoint: Endpoint,
    prompts: Iterable[Prompt],
    *,
    clients: int,
    on_record: Callable[[Record], None] | None = None,
) -> AsyncIterator[Traffic]:
    """Closed-loop load for the length of a ``with`` block; on leaving, what is in flight is awaited and counted."""
    traffic, stop = Traffic(on_record), asyncio.Event()
    task = asyncio.create_task(closed_loop(endpoint, prompts, clients=clients, stop=stop, on_record=traffic.add))
    try:
        yield traffic
        stop.set()
        await task
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
