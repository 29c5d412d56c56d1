"""Where an embedding can be fetched, as ``ec_transfer_params`` of a request carry it. Pure.

vLLM has one entry for each item, by the item's hash. An entry names a host that the engine connects to, and embeddings
from there become part of the answer. So the encode worker seals each entry with the service's control token, and an
engine follows sealed entries only: whoever sends a request to a worker cannot choose one.
"""

import hmac
import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any, Final

EC_TRANSFER_PARAMS: Final = "ec_transfer_params"
_SEAL: Final = "seal"


@dataclass(frozen=True, slots=True)
class EmbeddingReference:
    """The embedding of the item with hash ``item``: ``num_tokens`` vectors of ``token_bytes`` bytes in ``dtype``.

    ``address``: of the transfer server, ``host:port``. ``key``: the name under which it is fetched there.
    """

    item: str
    address: str
    key: str
    num_tokens: int
    token_bytes: int
    dtype: str

    @property
    def size_bytes(self) -> int:
        """Of the whole embedding."""
        return self.num_tokens * self.token_bytes

    def sealed(self, token: str) -> dict[str, Any]:
        """The entry of ``ec_transfer_params``."""
        entry = asdict(self)
        del entry["item"]
        return {**entry, _SEAL: _seal(self, token)}


def references(params: object, token: str) -> dict[str, EmbeddingReference]:
    """The entries of ``params`` that have the seal of the service with this ``token``, by item hash."""
    if not isinstance(params, Mapping):
        return {}
    read = {item: _read(item, entry, token) for item, entry in params.items()}
    return {item: reference for item, reference in read.items() if reference is not None}


def _read(item: object, entry: object, token: str) -> EmbeddingReference | None:
    if not isinstance(item, str) or not isinstance(entry, Mapping):
        return None
    values = {name: entry.get(name) for name in ("address", "key", "num_tokens", "token_bytes", "dtype")}
    texts, numbers = ("address", "key", "dtype"), ("num_tokens", "token_bytes")
    if not all(isinstance(values[name], str) for name in texts) or not all(
        type(values[name]) is int for name in numbers
    ):
        return None
    reference = EmbeddingReference(item, **values)
    seal = entry.get(_SEAL)
    if not isinstance(seal, str) or not seal.isascii() or not hmac.compare_digest(seal, _seal(reference, token)):
        return None
    return reference


def _seal(reference: EmbeddingReference, token: str) -> str:
    content = json.dumps(["embedding reference", *asdict(reference).values()]).encode()
    return hmac.digest(token.encode(), content, "sha256").hex()
