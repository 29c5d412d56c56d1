"""Seeded pictures, made without an image library: no two are alike, and each compresses well."""

import base64
import random
import struct
import zlib
from collections.abc import Iterable
from dataclasses import replace
from typing import Final

from pointsman.local.traffic.types import Prompt

_TILE: Final = 14  # pixels; a side of 112 has 8 tiles


def png(width: int, height: int, *, seed: object) -> bytes:
    """A PNG of coloured tiles, ``width`` x ``height`` pixels; the same for the same arguments.

    Raises ValueError for a side below 1.
    """
    if width < 1 or height < 1:
        raise ValueError(f"an image of {width} x {height} pixels has none")
    rng = random.Random(f"{seed}/{width}/{height}")
    rows = bytearray()
    for top in range(0, height, _TILE):
        colours = [rng.randbytes(3) for _ in range(-(-width // _TILE))]
        row = b"\0" + b"".join(colour * _TILE for colour in colours)[: 3 * width]
        rows += row * min(_TILE, height - top)

    def chunk(kind: bytes, content: bytes) -> bytes:
        return struct.pack(">I", len(content)) + kind + content + struct.pack(">I", zlib.crc32(kind + content))

    header = struct.pack(">IIBBBBB", width, height, 8, 2, 0, 0, 0)
    packed = chunk(b"IDAT", zlib.compress(bytes(rows)))
    return b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", header) + packed + chunk(b"IEND", b"")


def png_url(width: int, height: int, *, seed: object) -> str:
    """The same as a data URL."""
    return f"data:image/png;base64,{base64.b64encode(png(width, height, seed=seed)).decode()}"


def with_images(prompt: Prompt, sides: Iterable[int], *, seed: object) -> Prompt:
    """The chat ``prompt`` with square images of these sides, in pixels, that only this prompt and ``seed`` have."""
    urls = (png_url(side, side, seed=f"{seed}/{prompt.index}/{number}") for number, side in enumerate(sides))
    return replace(prompt, images=tuple(urls))
