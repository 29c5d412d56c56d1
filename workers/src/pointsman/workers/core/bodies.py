"""JSON bodies of requests: read once, and given further fields without being written anew. Pure.

A prompt of 128 000 token ids is 1 MB of JSON: each time that it is read or written costs the engine's event loop
milliseconds in which no stream moves.
"""

import json
from collections.abc import Mapping
from typing import Any

import msgspec


def json_object(raw: bytes) -> dict[str, Any] | None:
    """The object in ``raw``; None if it holds none. Raises RecursionError for one that is nested too deeply."""
    try:
        value = msgspec.json.decode(raw)
    except (msgspec.MsgspecError, UnicodeDecodeError):
        # What Python's json (the engine's) takes beyond the standard: NaN, lone surrogates, other encodings.
        try:
            value = json.loads(raw)
        except ValueError:
            return None
    return value if isinstance(value, dict) else None


def dump(body: Mapping[str, Any]) -> bytes:
    """``body`` as JSON that Python's json reads back to the same."""
    return json.dumps(body, separators=(",", ":")).encode()


def as_utf8(raw: bytes, body: Mapping[str, Any]) -> bytes:
    """``raw``, whose object is ``body``, as plain UTF-8 that begins and ends with its braces."""
    text = raw.strip(b" \t\r\n")
    plain = text[:1] == b"{" and b"\0" not in text[:4]  # no byte order mark, one byte an ASCII character
    return text if plain else dump(body)


def with_fields(text: bytes, fields: Mapping[str, Any]) -> bytes:
    """``text`` (from ``as_utf8``, of an object that is not empty) with ``fields`` set.

    They are appended: of fields with one name the last counts.
    """
    return b"%s,%s" % (text[:-1], msgspec.json.encode(fields)[1:]) if fields else text
