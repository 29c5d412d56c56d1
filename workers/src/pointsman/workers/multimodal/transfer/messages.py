"""What the two sides of an embedding transfer send each other: MessagePack, one message a frame.

A connection has one language side, which opens it, and one encode side. ``transfer`` is a number that the language side
gives to each transfer of a connection, ascending and never used again.
"""

from typing import Final

import msgspec

from pointsman.workers.multimodal.transfer.allocator import MetadataAllocation

VERSION: Final = 1


class Challenge(msgspec.Struct, frozen=True, tag="challenge"):
    """First message, from the encode side."""

    nonce: bytes


class LanguageHello(msgspec.Struct, frozen=True, tag="language_hello"):
    """Second message. ``proof``: see ``connection``; ``paths``: data paths this side can use, best first."""

    version: int
    nonce: bytes
    proof: bytes
    paths: tuple[str, ...]
    sizes_first: bool
    embedding_bytes: int


class EncodeHello(msgspec.Struct, frozen=True, tag="encode_hello"):
    """Third message: what was agreed. What ``path`` needs in addition follows."""

    proof: bytes
    path: str
    sizes_first: bool


class Refused(msgspec.Struct, frozen=True, tag="refused"):
    """Third message instead: the encode side closes the connection."""

    reason: str


class Fetch(msgspec.Struct, frozen=True, tag="fetch"):
    """Language side: send the embedding of ``request_id`` into ``allocation``.

    Without an allocation the encode side first reports the size.
    """

    transfer: int
    request_id: str
    allocation: MetadataAllocation | None = None


class Offer(msgspec.Struct, frozen=True, tag="offer"):
    """Encode side: the embedding is ready and has ``total_tokens``."""

    transfer: int
    total_tokens: int


class Resume(msgspec.Struct, frozen=True, tag="resume"):
    """Language side: send what follows the first ``sent_tokens`` into ``allocation``."""

    transfer: int
    allocation: MetadataAllocation
    sent_tokens: int


class Part(msgspec.Struct, frozen=True, tag="part"):
    """Encode side: the tokens from ``start_token`` on are in the allocation.

    ``is_last``: the seed's status ``Success``, after which the encode side holds nothing; else ``Transferring``.
    """

    transfer: int
    start_token: int
    num_tokens: int
    is_last: bool


class Failed(msgspec.Struct, frozen=True, tag="failed"):
    """Encode side: the transfer is over and nothing more is written into the language side's blocks."""

    transfer: int
    reason: str


class Cancel(msgspec.Struct, frozen=True, tag="cancel"):
    """Language side: end the transfer. The answer is ``Failed``, whatever the encode side knows of it."""

    transfer: int


class Payload(msgspec.Struct, frozen=True, tag="payload"):
    """TCP data path: the frame is followed by embeddings, fill ids, M-RoPE and aux of ``num_tokens`` tokens."""

    transfer: int
    start_token: int
    num_tokens: int


class Pull(msgspec.Struct, frozen=True, tag="pull"):
    """Shared-memory data path: copy these ``chunks`` of the encode side's region, then answer ``Pulled``."""

    transfer: int
    start_token: int
    num_tokens: int
    chunks: tuple[tuple[int, int], ...]


class Pulled(msgspec.Struct, frozen=True, tag="pulled"):
    """Answer to ``Pull``; also if the language side did not want the bytes any more."""

    transfer: int
    start_token: int


class NixlTarget(msgspec.Struct, frozen=True, tag="nixl_target"):
    """NIXL data path, language side, first: where to write. Empty ``metadata``: NIXL does not work here.

    ``address``: of the region, which has ``num_blocks`` blocks of ``block_size`` tokens; ``probe_address``: of bytes
    for the first write, which only tries the connection.
    """

    metadata: bytes
    address: int = 0
    probe_address: int = 0
    num_blocks: int = 0
    block_size: int = 0


class NixlReady(msgspec.Struct, frozen=True, tag="nixl_ready"):
    """Answer to ``NixlTarget``: whether the first write came through. If not, the data path is TCP."""

    usable: bool


class Incoming(msgspec.Struct, frozen=True, tag="incoming"):
    """NIXL data path: a write begins. The language side lets it progress until ``Landed``."""

    transfer: int
    start_token: int
    num_tokens: int


class Landed(msgspec.Struct, frozen=True, tag="landed"):
    """NIXL data path: the write is in the language side's blocks."""

    transfer: int
    start_token: int


ToEncode = Fetch | Resume | Cancel
ToLanguage = Offer | Part | Failed
Message = (
    Challenge | LanguageHello | EncodeHello | Refused | Fetch | Resume | Cancel | Offer | Part | Failed
    | Payload | Pull | Pulled | NixlTarget | NixlReady | Incoming | Landed
)  # fmt: skip

encode: Final = msgspec.msgpack.Encoder().encode
decode: Final = msgspec.msgpack.Decoder(Message).decode
