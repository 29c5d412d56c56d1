"""What the state machines have their shell do. ``peer`` is the number of a connection, never used again."""

from dataclasses import dataclass

from pointsman.workers.multimodal.transfer.allocator import MetadataAllocation
from pointsman.workers.multimodal.transfer.buffers import Embedding
from pointsman.workers.multimodal.transfer.messages import Part, ToEncode, ToLanguage


@dataclass(frozen=True, slots=True)
class Send:
    """Send ``message`` after all earlier ones of this connection."""

    peer: int
    message: ToEncode | ToLanguage


@dataclass(frozen=True, slots=True)
class Write:
    """Write tokens of ``source`` into the peer's ``target`` and send it ``part`` after them.

    Report once, when nothing reads ``source`` any more: ``written``, or ``write_failed``.
    """

    peer: int
    part: Part
    source: MetadataAllocation
    target: MetadataAllocation

    @property
    def transfer(self) -> int:
        """The number of the transfer."""
        return self.part.transfer

    @property
    def start_token(self) -> int:
        """The first token, counted in the request."""
        return self.part.start_token

    @property
    def num_tokens(self) -> int:
        """How many tokens."""
        return self.part.num_tokens


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
