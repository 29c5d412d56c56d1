"""Format and size of an image from its first bytes, so that a small file that claims a huge picture is never decoded.

PNG, JPEG, GIF and WebP: the formats that OpenAI's API takes. Nothing is decompressed. Where a format can give more than
one size, the largest that a decoder would allocate counts.
"""

from dataclasses import dataclass
from typing import Final

MAX_BLOCKS: Final = 10_000
"""JPEG segments and GIF blocks read before a file is taken to be no image: a file of tiny ones would take seconds."""

_PNG: Final = b"\x89PNG\r\n\x1a\n"
_JPEG_WITHOUT_LENGTH: Final = frozenset({0x01, *range(0xD0, 0xD8)})
_JPEG_FRAMES: Final = frozenset(range(0xC0, 0xD0)) - {0xC4, 0xC8, 0xCC}
_JPEG_SCAN: Final = 0xDA
_JPEG_END: Final = 0xD9


class NotAnImage(ValueError):
    """The bytes are no image of a known format."""


@dataclass(frozen=True, slots=True)
class ImageHeader:
    """What a file says about itself. ``media_type`` e.g. ``image/png``; ``width`` and ``height`` in pixels, above 0."""

    media_type: str
    width: int
    height: int

    @property
    def pixels(self) -> int:
        """Pixels of the decoded image."""
        return self.width * self.height


def read_header(data: bytes) -> ImageHeader:
    """The header of ``data``. Raises NotAnImage."""
    try:
        found = _read(data)
    except IndexError as error:
        raise NotAnImage("the image ends within its header") from error
    if found.width < 1 or found.height < 1:
        raise NotAnImage("the image has no pixels")
    return found


def _read(data: bytes) -> ImageHeader:
    if data.startswith(_PNG):
        if data[12:16] != b"IHDR":
            raise NotAnImage("the PNG image does not begin with its header")
        return ImageHeader("image/png", _big(data, 16, 4), _big(data, 20, 4))
    if data.startswith(b"\xff\xd8\xff"):
        return _jpeg(data)
    if data.startswith((b"GIF87a", b"GIF89a")):
        return _gif(data)
    if data.startswith(b"RIFF") and data[8:12] == b"WEBP":
        return _webp(data)
    raise NotAnImage("the content is not a PNG, JPEG, GIF or WebP image")


def _jpeg(data: bytes) -> ImageHeader:
    """The largest of the frame headers before the first scan."""
    at, width, height = 2, 0, 0
    for _ in range(MAX_BLOCKS):
        if data[at] != 0xFF:
            raise NotAnImage("the JPEG image has a broken header")
        marker = data[at + 1]
        if marker == 0xFF:  # a fill byte
            at += 1
        elif marker in _JPEG_WITHOUT_LENGTH:
            at += 2
        elif marker in (_JPEG_SCAN, _JPEG_END):
            return ImageHeader("image/jpeg", width, height)
        else:
            if marker in _JPEG_FRAMES:
                height, width = max(height, _big(data, at + 5, 2)), max(width, _big(data, at + 7, 2))
            at += 2 + max(_big(data, at + 2, 2), 2)
    raise NotAnImage(f"the JPEG image has more than {MAX_BLOCKS} segments before its pixels")


def _gif(data: bytes) -> ImageHeader:
    """The screen, grown to its first frame as decoders do."""
    width, height, flags = _little(data, 6, 2), _little(data, 8, 2), data[10]
    at = 13 + (3 << (flags & 7) + 1 if flags & 0x80 else 0)
    steps = 0
    while steps < MAX_BLOCKS:
        steps += 1
        match data[at]:
            case 0x2C:
                left, top = _little(data, at + 1, 2), _little(data, at + 3, 2)
                width = max(width, left + _little(data, at + 5, 2))
                height = max(height, top + _little(data, at + 7, 2))
                return ImageHeader("image/gif", width, height)
            case 0x21:
                at += 2
                while data[at] and steps < MAX_BLOCKS:
                    steps += 1
                    at += 1 + data[at]
                at += 1
            case _:
                raise NotAnImage("the GIF image has no frame")
    raise NotAnImage(f"the GIF image has more than {MAX_BLOCKS} blocks before its first frame")


def _webp(data: bytes) -> ImageHeader:
    kind = data[12:16]
    if kind == b"VP8X":
        return ImageHeader("image/webp", _little(data, 24, 3) + 1, _little(data, 27, 3) + 1)
    if kind == b"VP8 " and data[23:26] == b"\x9d\x01\x2a":
        return ImageHeader("image/webp", _little(data, 26, 2) & 0x3FFF, _little(data, 28, 2) & 0x3FFF)
    if kind == b"VP8L" and data[20] == 0x2F:
        bits = _little(data, 21, 4)
        return ImageHeader("image/webp", (bits & 0x3FFF) + 1, (bits >> 14 & 0x3FFF) + 1)
    raise NotAnImage("the WebP image has a broken header")


def _big(data: bytes, at: int, size: int) -> int:
    return int.from_bytes(_piece(data, at, size), "big")


def _little(data: bytes, at: int, size: int) -> int:
    return int.from_bytes(_piece(data, at, size), "little")


def _piece(data: bytes, at: int, size: int) -> bytes:
    piece = data[at : at + size]
    if len(piece) < size:
        raise IndexError(at + size)
    return piece
