"""The encode side of embedding transfers: decides what is written where, and when blocks are free again. No I/O.

An embedding gets blocks of its own only once a language worker has asked for it, in the order in which both were
there. So what holds blocks here waits for nothing but a write, or for the rest that the language side always has a
block for. Before that it is copied into blocks that nobody needs, and loses them to who does.
"""

from collections import Counter, deque
from dataclasses import dataclass, replace
from enum import Enum
from math import inf
from typing import Final

from pointsman.workers.multimodal.transfer.actions import CloseLink, Send, SenderAction, Write
from pointsman.workers.multimodal.transfer.allocator import (
    BlockUsage,
    MetadataAllocation,
    ReqToMetadataBlockAllocator,
)
from pointsman.workers.multimodal.transfer.buffers import Embedding, MultimodalDataBuffers
from pointsman.workers.multimodal.transfer.errors import BadMessage, NoAllocation
from pointsman.workers.multimodal.transfer.messages import Cancel, Failed, Fetch, Offer, Part, Resume, ToEncode

MAX_TRANSFERS: Final = 4096  # of one connection, with those that ended within one time-out
MAX_S: Final = 1000  # remembered, should nobody take them
Key = tuple[int, int]
"""(peer, transfer)."""


class SenderState(Enum):
    """Of one transfer."""

    AWAITING_EMBEDDING = "awaiting embedding"  # fetched before it was encoded
    AWAITING_BLOCKS = "awaiting blocks"
    AWAITING_TARGET = "awaiting target"  # the language side allocates the rest
    WRITING = "writing"
    STOPPING = "stopping"  # over, but a write may still read the blocks


@dataclass(slots=True)
class _Transfer:
    request_id: str
    deadline_s: float
    target: MetadataAllocation | None
    state: SenderState = SenderState.AWAITING_EMBEDDING
    embedding: Embedding | None = None  # until it has blocks
    source: MetadataAllocation | None = None
    next_target: MetadataAllocation | None = None  # for the rest, if it comes before the write is reported
    sent_tokens: int = 0
    claimed_s: float = 0.0  # when it had its embedding
    failure: str = ""  # why it is STOPPING


@dataclass(slots=True)
class _Unclaimed:
    embedding: Embedding
    deadline_s: float
    source: MetadataAllocation | None = None  # blocks that it has already been copied into


class EmbeddingSender:
    """All transfers out of one buffer. Times are seconds of one clock; a state lasts at most ``timeout_s``.

    ``counts``: transfers by how they ended (``succeeded``, ``failed``, ``timed_out``) and ``resumes``.
    ``seconds``: of the last transfers that succeeded, since the embedding and the Fetch for it were both here.
    """

    def __init__(
        self, allocator: ReqToMetadataBlockAllocator, buffers: MultimodalDataBuffers, timeout_s: float
    ) -> None:
        self._allocator = allocator
        self._buffers = buffers
        self._timeout_s = timeout_s
        self._transfers: dict[Key, _Transfer] = {}
        # When to forget each that has ended: a late Fetch must not begin it again. The first in it ended first.
        self._ended: dict[Key, float] = {}
        self._of_peer: Counter[int] = Counter()  # transfers of each connection, with those that have ended
        self._unclaimed: dict[str, _Unclaimed] = {}
        self._queue: deque[Key] = deque()  # AWAITING_BLOCKS, first come first served
        self.counts: Counter[str] = Counter()
        self.seconds: deque[float] = deque(maxlen=MAX_S)

    @property
    def usage(self) -> BlockUsage:
        """Blocks of the buffer now."""
        usage = self._allocator.usage
        lent = sum(each.source.num_blocks for each in self._unclaimed.values() if each.source is not None)
        return replace(usage, used_blocks=usage.used_blocks - lent, lent_blocks=lent)

    @property
    def next_deadline_s(self) -> float:
        """When ``expire`` has something to do; infinity: never."""
        return min(
            *(each.deadline_s for each in self._transfers.values()),
            *(each.deadline_s for each in self._unclaimed.values()),
            next(iter(self._ended.values()), inf),
            inf,
        )

    def put(self, request_id: str, embedding: Embedding, now_s: float) -> list[SenderAction]:
        """The embedding of a request is encoded. It is sent to the first transfer that fetches it, once.

        Raises NoAllocation if a field has another size than ``num_tokens`` tokens have.
        """
        self._buffers.check(embedding)
        key = self._awaiting(request_id)
        if key is not None:
            return self._claim(key, embedding, now_s)
        self._forget(request_id)
        unclaimed = self._unclaimed[request_id] = _Unclaimed(embedding, now_s + self._timeout_s)
        if not self._queue and embedding.num_tokens <= self._buffers.layout.num_tokens:
            unclaimed.source = self._allocator.alloc(embedding.num_tokens, request_id)
            if unclaimed.source is not None:
                self._buffers.set_buf(embedding, unclaimed.source)
        return []

    def fail(self, request_id: str, reason: str, now_s: float) -> list[SenderAction]:
        """The embedding of a request will not come."""
        self._forget(request_id)
        key = self._awaiting(request_id)
        return self._end(key, reason, "failed", now_s) if key is not None else []

    def receive(self, peer: int, message: ToEncode, now_s: float) -> list[SenderAction]:
        """A message of a language worker; one that repeats or comes too late changes nothing.

        Raises BadMessage if there is no token in an allocation, or for too many transfers at once.
        """
        if not isinstance(message, Cancel) and message.allocation is not None and message.allocation.num_tokens < 1:
            raise BadMessage(f"{message}: num_tokens must be at least 1")
        key = (peer, message.transfer)
        match message:
            case Fetch():
                return self._fetch(key, message, now_s)
            case Resume():
                return self._resume(key, message, now_s)
            case Cancel():
                if key in self._transfers:
                    return [*self._end(key, "the language worker cancelled", "failed", now_s), *self._admit(now_s)]
                if key not in self._ended:
                    self._count(key)
                    self._ended[key] = now_s + self._timeout_s
                return [Send(peer, Failed(message.transfer, "the transfer had ended"))]

    def written(self, peer: int, transfer: int, now_s: float) -> list[SenderAction]:
        """A Write was carried out."""
        key = (peer, transfer)
        each = self._transfers[key]
        if each.state is SenderState.STOPPING:
            return [*self._stopped(key, now_s), *self._admit(now_s)]
        assert each.source is not None
        each.sent_tokens += self._tokens_of_part(each)
        each.target, each.next_target = each.next_target, None
        if each.target is not None:
            return self._write(key, now_s)
        each.deadline_s = now_s + self._timeout_s
        if each.sent_tokens < each.source.num_tokens:
            each.state = SenderState.AWAITING_TARGET
            return []
        self.counts["succeeded"] += 1
        self.seconds.append(now_s - each.claimed_s)
        self._drop(key, now_s)
        return self._admit(now_s)

    def write_failed(self, peer: int, transfer: int, reason: str, now_s: float) -> list[SenderAction]:
        """A Write ended early; nothing reads the blocks any more."""
        key = (peer, transfer)
        each = self._transfers[key]
        if each.state is SenderState.WRITING:
            each.state = SenderState.AWAITING_TARGET  # so the blocks are free at once
            return [*self._end(key, reason, "failed", now_s), *self._admit(now_s)]
        return [*self._stopped(key, now_s), *self._admit(now_s)]

    def closed(self, peer: int, now_s: float) -> list[SenderAction]:
        """The connection is closed: its transfers are over. A Write under way is still reported."""
        for key in [key for key in self._transfers if key[0] == peer]:
            self._end(key, "the connection to the language worker was closed", "failed", now_s)
        for key in [key for key in self._ended if key[0] == peer]:
            self._discard(key)
        return self._admit(now_s)

    def expire(self, now_s: float) -> list[SenderAction]:
        """End what has waited too long."""
        actions: list[SenderAction] = []
        for request_id in [each for each, unclaimed in self._unclaimed.items() if unclaimed.deadline_s <= now_s]:
            self._forget(request_id)
            self.counts["timed_out"] += 1
        for key in [key for key, each in self._transfers.items() if each.deadline_s <= now_s]:
            each = self._transfers[key]
            each.deadline_s = now_s + self._timeout_s
            reason = f"the transfer was {each.state.value} for {self._timeout_s:g} s"
            if each.state in (SenderState.WRITING, SenderState.STOPPING):
                actions.append(CloseLink(key[0], reason))
            actions += self._end(key, reason, "timed_out", now_s)
        while self._ended and next(iter(self._ended.values())) <= now_s:
            self._discard(next(iter(self._ended)))
        return [*actions, *self._admit(now_s)]

    def _fetch(self, key: Key, message: Fetch, now_s: float) -> list[SenderAction]:
        if key in self._transfers or key in self._ended:
            return []
        self._count(key)
        each = self._transfers[key] = _Transfer(message.request_id, now_s + self._timeout_s, message.allocation)
        ready = self._unclaimed.pop(message.request_id, None)
        if ready is None:
            return []
        if ready.source is None:
            return self._claim(key, ready.embedding, now_s)
        each.source, each.claimed_s = ready.source, now_s
        return self._begin(key, now_s)

    def _resume(self, key: Key, message: Resume, now_s: float) -> list[SenderAction]:
        each = self._transfers.get(key)
        if each is None or each.source is None:
            return []
        writing = each.state is SenderState.WRITING and each.next_target is None
        sent_tokens = each.sent_tokens + (self._tokens_of_part(each) if writing else 0)
        if not writing and each.state is not SenderState.AWAITING_TARGET:
            return []
        if message.sent_tokens != sent_tokens or sent_tokens == each.source.num_tokens:
            return []
        if message.sent_tokens:
            self.counts["resumes"] += 1
        if writing:
            each.next_target = message.allocation
            return []
        each.target = message.allocation
        return self._write(key, now_s)

    def _awaiting(self, request_id: str) -> Key | None:
        for key, each in self._transfers.items():
            if each.request_id == request_id and each.state is SenderState.AWAITING_EMBEDDING:
                return key
        return None

    def _claim(self, key: Key, embedding: Embedding, now_s: float) -> list[SenderAction]:
        """The transfer has its embedding, and queues for blocks."""
        each = self._transfers[key]
        try:
            self._allocator.blocks_of(embedding.num_tokens)
        except NoAllocation as error:
            return self._end(key, str(error), "failed", now_s)
        each.state, each.embedding, each.claimed_s = SenderState.AWAITING_BLOCKS, embedding, now_s
        each.deadline_s = now_s + self._timeout_s
        self._queue.append(key)
        return self._admit(now_s)

    def _admit(self, now_s: float) -> list[SenderAction]:
        """Give blocks to the first in the queue; a large one is not overtaken, or it would never have its turn."""
        actions: list[SenderAction] = []
        while self._queue:
            key = self._queue[0]
            each = self._transfers[key]
            assert each.embedding is not None
            each.source = self._allocated(each.embedding.num_tokens, each.request_id)
            if each.source is None:
                break
            self._queue.popleft()
            self._buffers.set_buf(each.embedding, each.source)
            each.embedding = None
            actions += self._begin(key, now_s)
        return actions

    def _allocated(self, num_tokens: int, request_id: str) -> MetadataAllocation | None:
        """Blocks, if need be those of embeddings that nobody has asked for; the oldest one loses them first."""
        allocation = self._allocator.alloc(num_tokens, request_id)
        for other, unclaimed in self._unclaimed.items():
            if allocation is not None:
                break
            if unclaimed.source is not None:
                self._allocator.free(unclaimed.source, other)
                unclaimed.source = None
                allocation = self._allocator.alloc(num_tokens, request_id)
        return allocation

    def _forget(self, request_id: str) -> None:
        unclaimed = self._unclaimed.pop(request_id, None)
        if unclaimed is not None and unclaimed.source is not None:
            self._allocator.free(unclaimed.source, request_id)

    def _begin(self, key: Key, now_s: float) -> list[SenderAction]:
        """The transfer has its blocks, with the embedding in them."""
        each = self._transfers[key]
        assert each.source is not None
        if each.target is not None:
            return self._write(key, now_s)
        each.state, each.deadline_s = SenderState.AWAITING_TARGET, now_s + self._timeout_s
        return [Send(key[0], Offer(key[1], each.source.num_tokens))]

    def _write(self, key: Key, now_s: float) -> list[SenderAction]:
        each = self._transfers[key]
        assert each.source is not None
        assert each.target is not None
        each.state, each.deadline_s = SenderState.WRITING, now_s + self._timeout_s
        tokens = self._tokens_of_part(each)
        is_last = each.sent_tokens + tokens == each.source.num_tokens
        return [Write(key[0], Part(key[1], each.sent_tokens, tokens, is_last), each.source, each.target)]

    @staticmethod
    def _tokens_of_part(each: _Transfer) -> int:
        assert each.source is not None
        assert each.target is not None
        return min(each.target.num_tokens, each.source.num_tokens - each.sent_tokens)

    def _end(self, key: Key, reason: str, count: str, now_s: float) -> list[SenderAction]:
        """End a transfer; its blocks are free at once unless a write may still read them."""
        each = self._transfers[key]
        if each.state is SenderState.STOPPING:
            return []
        self.counts[count] += 1
        if each.state is SenderState.AWAITING_BLOCKS:
            self._queue.remove(key)
        each.embedding, each.failure = None, reason
        if each.state is SenderState.WRITING:
            each.state = SenderState.STOPPING
            return []
        return self._stopped(key, now_s)

    def _stopped(self, key: Key, now_s: float) -> list[SenderAction]:
        failure = self._transfers[key].failure
        self._drop(key, now_s)
        return [Send(key[0], Failed(key[1], failure))]

    def _drop(self, key: Key, now_s: float) -> None:
        each = self._transfers.pop(key)
        if each.source is not None:
            self._allocator.free(each.source, each.request_id)
        self._ended[key] = now_s + self._timeout_s

    def _count(self, key: Key) -> None:
        peer = key[0]
        if self._of_peer[peer] >= MAX_TRANSFERS:
            raise BadMessage(f"the connection has {MAX_TRANSFERS} transfers, which is the most at once")
        self._of_peer[peer] += 1

    def _discard(self, key: Key) -> None:
        del self._ended[key]
        self._of_peer[key[0]] -= 1
        if not self._of_peer[key[0]]:
            del self._of_peer[key[0]]
