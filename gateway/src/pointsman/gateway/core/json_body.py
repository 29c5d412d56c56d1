"""A request body as bytes: how much it holds, and what it says.

Decoding is one call that nothing interrupts, so what it can cost is bounded before it begins: `Structure` counts the
marks of JSON's syntax while the body arrives. Those inside strings do not count: prompts are full of code.
"""

from dataclasses import dataclass
from typing import Any, Final

import msgspec

from pointsman.api.v1alpha1.limits import gateway_limit
from pointsman.gateway.errors import RequestInvalid

BYTES_PER_CONTAINER: Final = 128
"""Of the largest body: it may have one opening bracket or brace for so many bytes, each of 0.2 µs and 100 bytes."""

BYTES_PER_SEPARATOR: Final = 16
"""Of the largest body: it may have one comma for so many. A prompt of token ids has one for each token; decoding the
two million of the default stops other threads for 80 ms."""

MAX_NESTING: Final = 700
"""Levels of lists and objects. Decoders and encoders give up near 1 000, less the frames of their caller."""

_BYTE_ORDER_MARK: Final = b"\xef\xbb\xbf"


@dataclass(slots=True)
class Structure:
    """Counts of one body, fed piece by piece; of one of ``max_bytes`` at most."""

    max_bytes: int
    containers: int = 0
    separators: int = 0
    _in_string: bool = False
    _cut_escape: bytes = b""

    def feed(self, piece: bytes) -> None:
        """Count ``piece``. Raises RequestInvalid as soon as a count is beyond its bound.

        What is no JSON may be counted wrongly, but only from its first mistake on, where the decoder ends.
        """
        piece = self._cut_escape + piece
        self._cut_escape = b"\\" if (len(piece) - len(piece.rstrip(b"\\"))) % 2 else b""
        texts = piece.replace(b"\\\\", b"").replace(b'\\"', b"").split(b'"')
        outside = b"".join(texts[self._in_string :: 2])
        self.containers += outside.count(b"[") + outside.count(b"{")
        self.separators += outside.count(b",")
        self._in_string ^= len(texts) % 2 == 0
        for count, each, what in (
            (self.containers, BYTES_PER_CONTAINER, "opening brackets and braces"),
            (self.separators, BYTES_PER_SEPARATOR, "commas"),
        ):
            if count > self.max_bytes // each:
                raise RequestInvalid(
                    f"The request body has more than {self.max_bytes // each} {what} outside its strings. Allowed is "
                    f"one per {each} bytes of the largest body ({gateway_limit('max_body_mib')} of the service)."
                )

    @property
    def decoded_bytes(self) -> int:
        """What the values of the body take in memory beside its texts, roughly."""
        return 100 * self.containers + 40 * self.separators


def decode_body(data: bytes) -> Any:
    """The JSON value in ``data`` (UTF-8, with a byte order mark or without). Raises RequestInvalid."""
    try:
        body = msgspec.json.decode(data.removeprefix(_BYTE_ORDER_MARK))
    except (msgspec.MsgspecError, UnicodeDecodeError) as error:
        raise RequestInvalid(f"The request body is not JSON: {error}.") from error
    except RecursionError as error:
        raise _too_deep() from error
    if data.count(b"[") + data.count(b"{") > MAX_NESTING and _deeper_than(body, MAX_NESTING):
        raise _too_deep()
    return body


def _deeper_than(value: Any, levels: int) -> bool:
    """Whether ``value`` has more than ``levels`` levels, found without recursion."""
    level = [value] if isinstance(value, (list, dict)) else []
    for _ in range(levels):
        if not level:
            return False
        level = [
            inner
            for outer in level
            for inner in (outer.values() if type(outer) is dict else outer)
            if type(inner) is list or type(inner) is dict
        ]
    return bool(level)


def _too_deep() -> RequestInvalid:
    return RequestInvalid(f"The request body is nested too deeply; at most {MAX_NESTING} levels are accepted.")
