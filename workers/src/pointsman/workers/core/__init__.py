"""Pure rules of a worker: no I/O, no asyncio, no clock."""
