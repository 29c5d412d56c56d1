"""Where an embedding can be fetched, as ``ec_transfer_params`` of a request carry it. Pure.

vLLM has one entry for each item, by the item's hash. An entry names a host that the engine connects to, and embeddings
from there become part of the answer. So the encode worker seals each entry with the service's control token, and an
engine follows sealed entries only: whoever sends a request to a worker cannot choose one. The identity of the encode
worker's model is part of an entry, so that an engine uses embeddings of its own model only.
"""

import hmac
import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any, Final

import msgspec

from pointsman.api.protocol.control import accepted_tokens

EC_TRANSFER_PARAMS: Final = "ec_transfer_params"


@dataclass(frozen=True, slots=True)
class EmbeddingReference:
    """The embedding of the item with hash ``item``: ``num_tokens`` vectors of ``token_bytes`` bytes in ``dtype``.

    ``address``: of the transfer server, ``host:port``. ``key``: the name under which it is fetched there.
    ``model``: the identity of the model that computed it.
    """

    item: str
    address: str
    key: str
    num_tokens: int
    token_bytes: int
    dtype: str
    model: str

    @property
    def size_bytes(self) -> int:
        """Of the whole embedding."""
        return self.num_tokens * self.token_bytes

    def sealed(self, token: str) -> dict[str, Any]:
        """The entry of ``ec_transfer_params``."""
        entry = asdict(self)
        del entry["item"]
        return {**entry, "seal": _seal(self, accepted_tokens(token)[0])}


def references(params: object, token: str) -> dict[str, EmbeddingReference]:
    """The entries of ``params`` that have the seal of the service with this ``token``, by item hash."""
    if not isinstance(params, Mapping):
        return {}
    read = {item: _read(item, entry, token) for item, entry in params.items()}
    return {item: reference for item, reference in read.items() if reference is not None}


class _Entry(msgspec.Struct):
    address: str
    key: str
    num_tokens: int
    token_bytes: int
    dtype: str
    model: str
    seal: str


def _read(item: object, content: object, token: str) -> EmbeddingReference | None:
    try:
        entry = msgspec.convert(content, _Entry)
    except msgspec.ValidationError:
        return None
    if not isinstance(item, str) or not entry.seal.isascii():
        return None
    fields = {name: value for name, value in msgspec.structs.asdict(entry).items() if name != "seal"}
    reference = EmbeddingReference(item, **fields)
    seals = (_seal(reference, each) for each in accepted_tokens(token))
    return reference if any(hmac.compare_digest(entry.seal, seal) for seal in seals) else None


def _seal(reference: EmbeddingReference, token: str) -> str:
    content = json.dumps(["embedding reference", *asdict(reference).values()]).encode()
    return hmac.digest(token.encode(), content, "sha256").hex()
