"""Large bodies are taken and sent piece by piece, because the event loop would copy one of 100 MiB for 50 ms."""

import asyncio
from collections.abc import AsyncIterator
from typing import Final

from pointsman.gateway.off_loop import OffLoop

PIECE_BYTES: Final = 256 * 1024


class ArrivingBody:
    """Collects a body. One buffer that grows would be moved at times, and copied at the end."""

    def __init__(self) -> None:
        self.size_bytes = 0
        self._pieces: list[bytes] = []
        self._last = bytearray()  # clients may send many pieces of one byte

    def add(self, piece: bytes) -> None:
        """The next bytes."""
        self.size_bytes += len(piece)
        self._last += piece
        if len(self._last) >= PIECE_BYTES:
            self._pieces.append(bytes(self._last))
            self._last.clear()

    async def whole(self, off_loop: OffLoop) -> bytes:
        """All bytes. Call it once."""
        return await off_loop.run(self.size_bytes, self._join)

    def _join(self) -> bytes:
        self._pieces.append(bytes(self._last))
        whole = b"".join(self._pieces)  # of much it lets other threads run meanwhile
        self._pieces.clear()
        return whole


def in_pieces(body: bytes, headers: dict[str, str]) -> bytes | AsyncIterator[bytes]:
    """``body`` as aiohttp is to send it. ``headers`` get its length if it is large, or it would be sent in chunks."""
    if len(body) <= PIECE_BYTES:
        return body
    headers["Content-Length"] = str(len(body))
    return _pieces(body)


async def _pieces(body: bytes) -> AsyncIterator[bytes]:
    for start in range(0, len(body), PIECE_BYTES):
        yield body[start : start + PIECE_BYTES]
        await asyncio.sleep(0)  # a fast reader takes piece after piece without letting others run
