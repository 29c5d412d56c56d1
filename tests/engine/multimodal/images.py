"""Images of random pixels, and chats with them as a gateway sends them to workers."""

import base64
import hashlib
import random
import struct
import zlib
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from fixtures.engines import MODEL


@dataclass(frozen=True)
class Image:
    """A PNG."""

    content: bytes

    @property
    def item(self) -> str:
        """Its hash, which gateways set as its uuid."""
        return hashlib.sha256(self.content).hexdigest()

    @property
    def part(self) -> dict[str, Any]:
        """A content part of a chat."""
        uri = f"data:image/png;base64,{base64.b64encode(self.content).decode()}"
        return {"type": "image_url", "image_url": {"url": uri}, "uuid": self.item}


def image_of(dice: random.Random, side: int = 112) -> Image:
    """A square of random pixels that no cache has seen."""
    rows = b"".join(b"\0" + dice.randbytes(3 * side) for _ in range(side))

    def chunk(kind: bytes, data: bytes) -> bytes:
        return struct.pack("!I", len(data)) + kind + data + struct.pack("!I", zlib.crc32(kind + data))

    header = struct.pack("!IIBBBBB", side, side, 8, 2, 0, 0, 0)
    pixels = chunk(b"IDAT", zlib.compress(rows, 1))
    return Image(b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", header) + pixels + chunk(b"IEND", b""))


def chat_of(images: Sequence[Image], text: str, **more: Any) -> dict[str, Any]:
    """A request for a greedy answer."""
    parts = [*(image.part for image in images), {"type": "text", "text": text}]
    return {
        "model": MODEL,
        "messages": [{"role": "user", "content": parts}],
        "max_tokens": 24,
        "temperature": 0,
        "ignore_eos": True,
        "return_token_ids": True,
        **more,
    }


def words_of(dice: random.Random, letters: int) -> str:
    """Random letters, one token each."""
    return "".join(dice.choice("abcdefghijklmnopqrstuvwxyz ") for _ in range(letters))
