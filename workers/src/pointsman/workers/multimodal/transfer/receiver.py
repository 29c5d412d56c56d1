"""The language side of embedding transfers: reserves blocks, puts the parts together, frees the blocks. No I/O.

Default reservations, which wait for the encode side, leave at least one block free. The rest of an embedding, which
lies ready on the encode side, can always have that block. So no two transfers wait for each other's blocks.
"""

from collections import Counter, deque
from collections.abc import Callable
from dataclasses import dataclass
from enum import Enum
from math import inf
from typing import Final

from pointsman.workers.multimodal.transfer.actions import CloseLink, Delivered, Ended, ReceiverAction, Send
from pointsman.workers.multimodal.transfer.allocator import (
    BlockUsage,
    MetadataAllocation,
    ReqToMetadataBlockAllocator,
)
from pointsman.workers.multimodal.transfer.buffers import Embedding, MultimodalDataBuffers
from pointsman.workers.multimodal.transfer.copying import copy
from pointsman.workers.multimodal.transfer.messages import Cancel, Failed, Fetch, Offer, Part, Resume, ToLanguage

MAX_S: Final = 1000  # remembered, should nobody take them
Key = tuple[int, int]
"""(peer, transfer)."""
Allocate = Callable[[int], bytearray | memoryview]


class ReceiverState(Enum):
    """Of one transfer."""

    QUEUED = "queued for a default reservation"
    FETCHING = "waiting for the encode worker"
    AWAITING_BLOCKS = "waiting for blocks of the rest"
    RESUMING = "waiting for the rest"
    STOPPING = "stopping"  # its result is reported; the encode side may still write into its blocks


@dataclass(slots=True)
class _Transfer:
    request_id: str
    begun_s: float
    deadline_s: float
    state: ReceiverState = ReceiverState.QUEUED
    allocation: MetadataAllocation | None = None
    total_tokens: int = 0  # 0: unknown
    received_tokens: int = 0
    fields: tuple[memoryview, ...] = ()  # of the whole embedding, once its length is known
    one_sided: bool = False
    placed: tuple[int, int] | None = None  # first and number of the tokens that came, without a Part yet
    in_place: bool = False  # they are in fields, not in the blocks


class EmbeddingReceiver:
    """All transfers into one buffer. Times are seconds of one clock; a state lasts at most ``timeout_s``.

    ``max_request_tokens``: what an encode worker reports beyond it is not believed, or a wrong one would have any
    amount of memory allocated here.
    ``allocate``: memory of so many bytes, writable, for an embedding to be delivered in.
    ``counts``: transfers by how they ended (``succeeded``, ``failed``, ``timed_out``) and ``resumes``.
    ``seconds``: of the last transfers that succeeded, from ``fetch`` to the last part.
    """

    def __init__(
        self,
        allocator: ReqToMetadataBlockAllocator,
        buffers: MultimodalDataBuffers,
        timeout_s: float,
        max_request_tokens: int,
        allocate: Allocate = bytearray,
    ) -> None:
        self._allocator = allocator
        self._buffers = buffers
        self._timeout_s = timeout_s
        self._max_request_tokens = max_request_tokens
        self._allocate = allocate
        self._transfers: dict[Key, _Transfer] = {}  # in the order in which they began
        self._begun = 0
        self.counts: Counter[str] = Counter()
        self.seconds: deque[float] = deque(maxlen=MAX_S)

    @property
    def usage(self) -> BlockUsage:
        """Blocks of the buffer now."""
        return self._allocator.usage

    @property
    def next_deadline_s(self) -> float:
        """When ``expire`` has something to do; infinity: never."""
        return min((each.deadline_s for each in self._transfers.values()), default=inf)

    def fetch(
        self,
        peer: int,
        request_id: str,
        now_s: float,
        *,
        sizes_first: bool,
        one_sided: bool = False,
        num_tokens: int | None = None,
    ) -> tuple[int, list[ReceiverAction]]:
        """Begin a transfer; returns its number.

        ``sizes_first``: what both sides of the connection can do. ``one_sided``: the encode side writes into the
        blocks; else each part is put where ``place`` says before its Part. ``num_tokens``: the length, if it is known;
        another one then is an error.
        """
        self._begun += 1
        key = (peer, self._begun)
        each = _Transfer(request_id, now_s, now_s + self._timeout_s, one_sided=one_sided)
        self._transfers[key] = each
        if num_tokens is not None and self._reserve(each, num_tokens):
            return self._begun, [Send(peer, Fetch(self._begun, request_id, each.allocation))]
        if sizes_first:
            each.state = ReceiverState.FETCHING
            return self._begun, [Send(peer, Fetch(self._begun, request_id))]
        return self._begun, self._admit(now_s)

    def cancel(self, peer: int, transfer: int, now_s: float) -> list[ReceiverAction]:
        """The request does not need its embedding any more."""
        key = (peer, transfer)
        if key not in self._transfers or self._transfers[key].state is ReceiverState.STOPPING:
            return []
        return [*self._fail(key, "the request was cancelled", "failed", now_s), *self._admit(now_s)]

    def receive(self, peer: int, message: ToLanguage, now_s: float) -> list[ReceiverAction]:
        """A message of an encode worker; one that repeats or comes too late changes nothing."""
        key = (peer, message.transfer)
        each = self._transfers.get(key)
        if each is None:
            return []
        match message:
            case Offer():
                if each.state is not ReceiverState.FETCHING or each.allocation is not None:
                    return []
                actions = self._sized(key, message.total_tokens, now_s)
            case Part():
                actions = self._part(key, message, now_s)
            case Failed():
                if each.state is ReceiverState.STOPPING:
                    self._drop(key)
                    actions = []
                else:
                    actions = self._ended(key, message.reason, "failed")
        return [*actions, *self._admit(now_s)]

    def place(self, peer: int, transfer: int, start_token: int, num_tokens: int) -> tuple[memoryview, ...] | None:
        """Where to put a part: embeddings, fill ids, M-RoPE, aux; None: no transfer waits for it.

        Once the length is known, that is where the embedding is delivered, so that the part is copied once. The views
        stay the transfer's own until its next message or ``closed``.
        """
        each = self._transfers.get((peer, transfer))
        if each is None or not self._expects(each, start_token):
            return None
        assert each.allocation is not None
        if not 0 < num_tokens <= each.allocation.num_tokens:
            return None
        *blocks, aux = self._buffers.views(self._buffers.get_buf_chunk_info(each.allocation, 0, num_tokens))
        if each.fields and start_token + num_tokens > each.total_tokens:
            return None
        each.placed, each.in_place = (start_token, num_tokens), bool(each.fields)
        if not each.in_place:
            return (*blocks, aux)
        return (*self._slices(each, start_token, num_tokens), aux)

    def closed(self, peer: int, now_s: float) -> list[ReceiverAction]:
        """The connection is closed, and nothing of it can be written any more: its transfers are over."""
        actions: list[ReceiverAction] = []
        for key in [key for key in self._transfers if key[0] == peer]:
            if self._transfers[key].state is ReceiverState.STOPPING:
                self._drop(key)
            else:
                actions += self._ended(key, "the connection to the encode worker was closed", "failed")
        return [*actions, *self._admit(now_s)]

    def expire(self, now_s: float) -> list[ReceiverAction]:
        """End what has waited too long."""
        actions: list[ReceiverAction] = []
        for key in [key for key, each in self._transfers.items() if each.deadline_s <= now_s]:
            each = self._transfers[key]
            each.deadline_s = now_s + self._timeout_s
            if each.state is ReceiverState.STOPPING:
                actions.append(CloseLink(key[0], f"the encode worker did not end a transfer in {self._timeout_s:g} s"))
            else:
                reason = f"the transfer was {each.state.value} for {self._timeout_s:g} s"
                actions += self._fail(key, reason, "timed_out", now_s)
        return [*actions, *self._admit(now_s)]

    def _reserve(self, each: _Transfer, num_tokens: int) -> bool:
        """Blocks for the whole embedding, under the rule of default reservations; False: not now."""
        blocks = -(-num_tokens // self._allocator.block_size)
        if not 0 < num_tokens <= self._max_request_tokens or not self._may_reserve(blocks):
            return False
        each.allocation = self._allocator.alloc(num_tokens, each.request_id)
        if each.allocation is None:
            return False
        each.state = ReceiverState.FETCHING
        self._allocate_fields(each, num_tokens)
        return True

    def _may_reserve(self, blocks: int) -> bool:
        return self._reserved_blocks() + blocks < self._allocator.num_blocks

    def _expects(self, each: _Transfer, start_token: int) -> bool:
        waits = each.state in (ReceiverState.FETCHING, ReceiverState.RESUMING)
        return waits and each.allocation is not None and start_token == each.received_tokens

    def _part(self, key: Key, part: Part, now_s: float) -> list[ReceiverAction]:
        each = self._transfers[key]
        if each.state is ReceiverState.STOPPING and part.is_last:
            self._drop(key)  # the encode side has ended it, too
            return []
        if not self._expects(each, part.start_token):
            return []
        assert each.allocation is not None
        total = self._buffers.total_tokens(each.allocation)
        received = each.received_tokens + part.num_tokens
        if (
            not 0 < part.num_tokens <= each.allocation.num_tokens
            or each.total_tokens not in (0, total)
            or received > total
            or part.is_last is not (received == total)
        ):
            reason = f"the encode worker sent {part} of {total} tokens, after {each.received_tokens} tokens"
            return self._fail(key, reason, "failed", now_s)
        if total > self._max_request_tokens:
            return self._fail(key, self._too_long(total), "failed", now_s)
        if not each.one_sided and each.placed != (part.start_token, part.num_tokens):
            return self._fail(key, f"the encode worker sent {part} without its bytes", "failed", now_s)
        if not each.fields:
            self._allocate_fields(each, total)
        if not each.in_place:
            chunks = self._buffers.get_buf_chunk_info(each.allocation, 0, part.num_tokens)
            places = self._slices(each, part.start_token, part.num_tokens)
            for place, view in zip(places, self._buffers.views(chunks[:3]), strict=True):
                copy(place, view)
        each.placed, each.in_place = None, False
        each.received_tokens = received
        if not part.is_last:
            return self._sized(key, total, now_s)
        self.counts["succeeded"] += 1
        self.seconds.append(now_s - each.begun_s)
        self._drop(key)
        return [Delivered(*key, Embedding(total, *each.fields))]

    def _allocate_fields(self, each: _Transfer, total_tokens: int) -> None:
        each.total_tokens = total_tokens
        each.fields = tuple(
            memoryview(self._allocate(total_tokens * size)).cast("B") for size in self._buffers.token_bytes
        )

    def _slices(self, each: _Transfer, start_token: int, num_tokens: int) -> tuple[memoryview, ...]:
        return tuple(
            whole[start_token * size : (start_token + num_tokens) * size]
            for whole, size in zip(each.fields, self._buffers.token_bytes, strict=True)
        )

    def _sized(self, key: Key, total_tokens: int, now_s: float) -> list[ReceiverAction]:
        """The length is known: nothing is held until there are blocks for what is missing."""
        each = self._transfers[key]
        if not 0 < total_tokens <= self._max_request_tokens:
            return self._fail(key, self._too_long(total_tokens), "failed", now_s)
        self._release(each)
        each.total_tokens = total_tokens
        each.state, each.deadline_s = ReceiverState.AWAITING_BLOCKS, now_s + self._timeout_s
        return []

    def _too_long(self, total_tokens: int) -> str:
        return f"the encode worker reported {total_tokens} tokens: a request has 1 to {self._max_request_tokens}"

    def _admit(self, now_s: float) -> list[ReceiverAction]:
        """Give free blocks away: first to what lies ready on an encode side, then to default reservations."""
        actions: list[ReceiverAction] = []
        for (peer, transfer), each in self._transfers.items():
            if each.state is ReceiverState.AWAITING_BLOCKS:
                rest = each.total_tokens - each.received_tokens
                each.allocation = self._allocator.alloc_up_to(rest, each.request_id)
                if each.allocation is None:
                    return actions
                if not each.fields:
                    self._allocate_fields(each, each.total_tokens)
                each.state, each.deadline_s = ReceiverState.RESUMING, now_s + self._timeout_s
                if each.received_tokens:
                    self.counts["resumes"] += 1
                actions.append(Send(peer, Resume(transfer, each.allocation, each.received_tokens)))
        for (peer, transfer), each in self._transfers.items():
            if each.state is ReceiverState.QUEUED:
                if not self._may_reserve(self._allocator.default_num_blocks):
                    return actions
                each.allocation = self._allocator.alloc_default(each.request_id)
                if each.allocation is None:
                    return actions
                each.state, each.deadline_s = ReceiverState.FETCHING, now_s + self._timeout_s
                actions.append(Send(peer, Fetch(transfer, each.request_id, each.allocation)))
        return actions

    def _reserved_blocks(self) -> int:
        """Blocks of reservations made before the encode side reported, or whose end it has not confirmed."""
        states = (ReceiverState.FETCHING, ReceiverState.STOPPING)
        held = (each.allocation for each in self._transfers.values() if each.state in states)
        return sum(allocation.num_blocks for allocation in held if allocation is not None)

    def _fail(self, key: Key, reason: str, count: str, now_s: float) -> list[ReceiverAction]:
        """End a transfer that the encode side has not ended."""
        each = self._transfers[key]
        if each.state is ReceiverState.QUEUED:
            return self._ended(key, reason, count)
        each.state, each.deadline_s, each.fields = ReceiverState.STOPPING, now_s + self._timeout_s, ()
        self.counts[count] += 1
        return [Send(key[0], Cancel(key[1])), Ended(*key, reason)]

    def _ended(self, key: Key, reason: str, count: str) -> list[ReceiverAction]:
        self._drop(key)
        self.counts[count] += 1
        return [Ended(*key, reason)]

    def _drop(self, key: Key) -> None:
        self._release(self._transfers.pop(key))

    def _release(self, each: _Transfer) -> None:
        if each.allocation is not None:
            self._allocator.free(each.allocation, each.request_id)
            each.allocation = None
