"""What the state machines have their shell do. ``peer`` is the number of a connection, never used again."""

from dataclasses import dataclass

from pointsman.workers.multimodal.transfer.allocator import MetadataAllocation
from pointsman.workers.multimodal.transfer.buffers import Embedding
from pointsman.workers.multimodal.transfer.messages import ToEncode, ToLanguage


@dataclass(frozen=True, slots=True)
class Send:
    """Send ``message`` after all earlier ones of this connection."""

    peer: int
    message: ToEncode | ToLanguage


@dataclass(frozen=True, slots=True)
class Write:
    """Write tokens of ``source`` into the peer's ``target``, then report: ``written`` or ``write_failed``, once.

    ``start_token``: the first one, counted in the request; ``num_tokens``: how many.
    """

    peer: int
    transfer: int
    start_token: int
    num_tokens: int
    source: MetadataAllocation
    target: MetadataAllocation


@dataclass(frozen=True, slots=True)
class CloseLink:
    """Close the connection: the peer does not do its part. Report ``closed`` once nothing of it can be written."""

    peer: int
    reason: str


@dataclass(frozen=True, slots=True)
class Delivered:
    """Language side: the whole embedding is here, in memory of its own."""

    peer: int
    transfer: int
    embedding: Embedding


@dataclass(frozen=True, slots=True)
class Ended:
    """Language side: the transfer failed."""

    peer: int
    transfer: int
    reason: str


SenderAction = Send | Write | CloseLink
ReceiverAction = Send | CloseLink | Delivered | Ended
