"""The pure part of the gateway: no I/O, no asyncio, no clock; import-linter holds it to that."""
