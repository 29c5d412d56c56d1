"""From the image parts of a chat to images that can be sent: fetched or decoded, checked, named by their content."""

import asyncio
import base64
import binascii
import hashlib
import re
import time
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Final

from pointsman.gateway.core import image_limits
from pointsman.gateway.core.image_header import NotAnImage, read_header
from pointsman.gateway.core.image_limits import ImageLimits
from pointsman.gateway.core.image_parts import ImagePart
from pointsman.gateway.images.fetching import ImageFetcher
from pointsman.gateway.off_loop import OffLoop
from pointsman.serving.image_tokens import estimated_image_tokens

PIECE_BYTES: Final = 3 * 64 * 1024
"""Base64 holds the interpreter while it works, so it gets pieces: a multiple of 3 (and, in base64, of 4) bytes."""

_DATA_URL: Final = re.compile(r"data:[^,]{0,256};base64,", re.IGNORECASE)

Charge = Callable[[int], None]
"""Takes so many more bytes of the request's share of memory. Raises Overloaded."""


@dataclass(frozen=True, slots=True)
class Image:
    """An image of a request. ``id``: SHA-256 of its bytes, in hex.

    ``data_url``: ASCII, JSON-safe; ``tokens``: an estimate of the image's tokens in the prompt.
    """

    id: str
    data_url: bytes
    size_bytes: int
    tokens: int

    @property
    def stand_in(self) -> list[int]:
        """As many token ids as the image has tokens, equal for equal images: they stand for it in block hashes."""
        words = [int(self.id[start : start + 8], 16) for start in range(0, 64, 8)]
        return (words * (self.tokens // len(words) + 1))[: self.tokens]


async def load(
    parts: Sequence[ImagePart],
    *,
    body_bytes: int,
    limits: ImageLimits,
    fetcher: ImageFetcher,
    off_loop: OffLoop,
    charge: Charge,
    fetched: Callable[[float], None] = lambda _seconds: None,
    clock: Callable[[], float] = time.monotonic,
) -> list[Image]:
    """The images of ``parts``, in order. Equal URLs are fetched once, and all at one time.

    What is fetched is charged, and counted towards the largest body, as if the client had sent it as a data URL: as
    often as it occurs, because the engine's body will have it so often. ``body_bytes``: what the client did send.
    ``fetched`` gets how long each fetch took, s. Raises ImageInvalid and what ``charge`` raises.
    """
    if len(parts) > limits.max_images:
        raise image_limits.too_many(len(parts), limits)
    first = {_source(part): part for part in reversed(parts)}
    occurrences = Counter(_source(part) for part in parts)
    filled_bytes = body_bytes

    async def one(part: ImagePart) -> Image:
        if _is_data(part):
            data = await off_loop.run(len(part.url), lambda: _decoded(part, limits))
        else:
            counted = 0

            def arrived(size_bytes: int) -> None:
                nonlocal counted, filled_bytes
                total = base64_bytes(size_bytes) * occurrences[part.url]
                filled_bytes += total - counted
                if filled_bytes > limits.max_body_bytes:
                    raise image_limits.too_large_together(limits)
                charge(total - counted)
                counted = total

            began_s = clock()
            data = await fetcher.fetch(part.url, part.param, arrived)
            fetched(clock() - began_s)
        return await off_loop.run(len(data), lambda: _image(data, part, limits))

    try:
        async with asyncio.TaskGroup() as group:
            tasks = {source: group.create_task(one(part)) for source, part in first.items()}
    except ExceptionGroup as failures:
        raise failures.exceptions[0] from failures
    return [tasks[_source(part)].result() for part in parts]


def _source(part: ImagePart) -> str:
    """Equal for images that are fetched once. Data URLs are not compared: to hash megabytes would stall the loop."""
    return part.param if _is_data(part) else part.url


def _is_data(part: ImagePart) -> bool:
    return part.url[:5].lower() == "data:"


def base64_bytes(size_bytes: int) -> int:
    """Characters of so many bytes in base64."""
    return -(-size_bytes // 3) * 4


def _decoded(part: ImagePart, limits: ImageLimits) -> bytes:
    """The bytes of a data URL. Raises ImageInvalid."""
    head = _DATA_URL.match(part.url)
    if head is None:
        raise image_limits.bad_url(part.param, "is a data URL without ';base64,'")
    size_bytes = (len(part.url) - head.end()) // 4 * 3
    if size_bytes > limits.max_bytes + 2:
        raise image_limits.too_large(part.param, limits)
    pieces = []
    step = PIECE_BYTES // 3 * 4
    try:
        text = part.url.encode("ascii")
        for start in range(head.end(), len(text), step):
            pieces.append(binascii.a2b_base64(text[start : start + step], strict_mode=True))
    except (UnicodeEncodeError, binascii.Error) as error:
        raise image_limits.bad_url(part.param, "is a data URL with invalid base64") from error
    data = b"".join(pieces)
    if len(data) > limits.max_bytes:
        raise image_limits.too_large(part.param, limits)
    return data


def _image(data: bytes, part: ImagePart, limits: ImageLimits) -> Image:
    """``data`` checked and ready to send. Raises ImageInvalid."""
    try:
        header = read_header(data)
    except NotAnImage as error:
        raise image_limits.not_an_image(part.param, str(error)) from error
    if header.pixels > limits.max_pixels:
        raise image_limits.too_many_pixels(part.param, header.width, header.height, limits)
    pieces = [f"data:{header.media_type};base64,".encode()]
    for start in range(0, len(data), PIECE_BYTES):
        pieces.append(base64.b64encode(data[start : start + PIECE_BYTES]))
    return Image(
        hashlib.sha256(data).hexdigest(),
        b"".join(pieces),
        len(data),
        estimated_image_tokens(header.width, header.height),
    )
