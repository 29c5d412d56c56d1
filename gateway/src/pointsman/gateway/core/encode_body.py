"""Bodies with images. A data URL is put in as bytes, because encoding megabytes of JSON would hold the interpreter."""

import secrets
from collections.abc import Mapping, Sequence
from typing import Any, Final

import msgspec

from pointsman.gateway.core.requests import MEDIA_OPTIONS

EC_TRANSFER_PARAMS: Final = "ec_transfer_params"
MAX_ENCODED_BYTES: Final = 256 * 1024
"""Of an encode worker's answer to one image."""


class EncodedMalformed(ValueError):
    """The answer of an encode worker has no ``ec_transfer_params``."""


class ImageSlots:
    """Marks in a body where data URLs go. The marks are random, so no text of a client is one."""

    def __init__(self, count: int) -> None:
        self._mark = f"pointsman-image-{secrets.token_hex(16)}-"
        self._count = count

    def part(self, number: int, image: str) -> dict[str, Any]:
        """The part of a message for image ``number``, whose content is named ``image``."""
        return {"type": "image_url", "image_url": {"url": f"{self._mark}{number};"}, "uuid": image}

    def filled(self, body: bytes, data_urls: Sequence[bytes]) -> bytes:
        """``body``, JSON with all the marks in the order of their numbers, with the data URLs in their place."""
        mark = self._mark.encode()
        pieces: list[bytes] = []
        for number, data_url in enumerate(data_urls):
            before, found, body = body.partition(mark + b"%d;" % number)
            if not found:
                raise RuntimeError(f"image {number} of {self._count} is not in the body")
            pieces += (before, data_url)
        return b"".join((*pieces, body))


def encode_body(model: str, image: str, data_url: bytes, request_body: Mapping[str, Any]) -> bytes:
    """The chat that has an encode worker encode one image. ``request_body``: the client's body."""
    slots = ImageSlots(1)
    body = {
        "model": model,
        "messages": [{"role": "user", "content": [slots.part(0, image)]}],
        "max_tokens": 1,
        "stream": False,
    } | {field: request_body[field] for field in MEDIA_OPTIONS if request_body.get(field)}
    return slots.filled(msgspec.json.encode(body), [data_url])


def embedding_key(image: str, request_body: Mapping[str, Any]) -> str:
    """Equal where the embeddings of the image with this id are."""
    options = {field: request_body[field] for field in MEDIA_OPTIONS if request_body.get(field)}
    return image if not options else f"{image}/{msgspec.json.encode(options, order='deterministic').decode()}"


def with_embeddings(body: bytes, params: bytes) -> bytes:
    """``body``, JSON of an object with fields, with ``ec_transfer_params`` (JSON of an object)."""
    return b"".join((memoryview(body)[: body.rindex(b"}")], b',"ec_transfer_params":', params, b"}"))


class _Encoded(msgspec.Struct):
    ec_transfer_params: dict[str, dict[str, Any]]


def read_encoded(answer: bytes) -> bytes:
    """The ``ec_transfer_params`` of an encode worker's answer, as JSON. Raises EncodedMalformed."""
    try:
        found = msgspec.json.decode(answer, type=_Encoded).ec_transfer_params
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        raise EncodedMalformed("the answer has no ec_transfer_params") from error
    if not found:
        raise EncodedMalformed("the answer's ec_transfer_params are empty")
    return msgspec.json.encode(found)


def merged(params: Sequence[bytes]) -> bytes:
    """The ``ec_transfer_params`` of several images as one; empty where there are none."""
    together: dict[str, Any] = {}
    for one in params:
        together |= msgspec.json.decode(one)
    return msgspec.json.encode(together) if together else b""
