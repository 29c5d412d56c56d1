"""Sender and receiver through seeded schedules of delays, losses, repetitions, crashes and small buffers.

Time is model time.

Half of the connections write straight into the other side's memory, piece by piece, as RDMA does. At each piece, the
blocks on both sides must still be those of its request. On the others the language side takes a whole part where it
wants it, as with TCP and shared memory.
"""

import heapq
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial
from itertools import count
from math import inf
from random import Random

import pytest

from pointsman.workers.multimodal.transfer.actions import (
    CloseLink,
    Delivered,
    Ended,
    ReceiverAction,
    Send,
    SenderAction,
    Write,
)
from pointsman.workers.multimodal.transfer.allocator import (
    BlockUsage,
    MetadataAllocation,
    ReqToMetadataBlockAllocator,
)
from pointsman.workers.multimodal.transfer.buffers import Embedding, MultimodalDataBuffers
from pointsman.workers.multimodal.transfer.errors import BadMessage, NoAllocation
from pointsman.workers.multimodal.transfer.messages import (
    Cancel,
    Failed,
    Fetch,
    Offer,
    Part,
    Resume,
    ToEncode,
    ToLanguage,
    decode,
    encode,
)
from pointsman.workers.multimodal.transfer.receiver import EmbeddingReceiver
from pointsman.workers.multimodal.transfer.sender import EmbeddingSender

EMBEDDING_BYTES = 5
TIMEOUT_S = 10.0
LONG_TIMEOUT_S = 1e6  # a schedule without faults never needs it, unless transfers wait for each other
MAX_DELAY_S = 2.0
MAX_REQUEST_TOKENS = 8192
FAULTY_SCHEDULES = 400  # of 25 transfers each
SCHEDULES = 100  # of 60


def embedding(request_id: str, tokens: int) -> Embedding:
    """Other bytes for each request."""
    rng = Random(request_id)
    return Embedding(tokens, *(rng.randbytes(tokens * size) for size in (EMBEDDING_BYTES, 4, 12)))


def machine(
    kind: type[EmbeddingSender | EmbeddingReceiver],
    allocator: ReqToMetadataBlockAllocator,
    buffers: MultimodalDataBuffers,
    timeout_s: float,
) -> EmbeddingSender | EmbeddingReceiver:
    if issubclass(kind, EmbeddingReceiver):
        return kind(allocator, buffers, timeout_s, MAX_REQUEST_TOKENS)
    return kind(allocator, buffers, timeout_s)


@dataclass
class Host:
    """One process: its blocks and its machine."""

    name: str
    allocator: ReqToMetadataBlockAllocator
    machine: EmbeddingSender | EmbeddingReceiver
    buffers: MultimodalDataBuffers

    @classmethod
    def start(
        cls, name: str, kind: type[EmbeddingSender | EmbeddingReceiver], rng: Random, tokens: int, timeout_s: float
    ) -> "Host":
        size, default = rng.randint(1, 6), rng.randint(1, 4)
        blocks = default + 1 + rng.randint(0, 8)
        if kind is EmbeddingSender:
            blocks = max(default + 1, -(-tokens // size)) + rng.choice((0, 0, 5))
        allocator = ReqToMetadataBlockAllocator(blocks * size, size, default)
        buffers = MultimodalDataBuffers(allocator, EMBEDDING_BYTES)
        return cls(name, allocator, machine(kind, allocator, buffers, timeout_s), buffers)


@dataclass
class Link:
    """One connection. ``writes``: under way, each to be reported exactly once."""

    encode: Host
    language: Host
    sizes_first: bool
    one_sided: bool
    open: bool = True
    writes: set[int] = field(default_factory=set)


class World:
    """Hosts, connections and what is on its way, in model time."""

    def __init__(self, seed: int, *, faults: bool) -> None:
        self.rng = Random(seed)
        self.faults = faults
        self.timeout_s = TIMEOUT_S if faults else LONG_TIMEOUT_S
        self.now_s = 0.0
        self.events: list[tuple[float, int, Callable[[], None]]] = []
        self.numbers = count()
        self.max_tokens = self.rng.choice((3, 12, 60))
        self.sizes_first_share = self.rng.choice((0, 0.5, 1))  # of the connections
        self.encoders = [self.host(EmbeddingSender) for _ in range(self.rng.randint(1, 3))]
        self.languages = [self.host(EmbeddingReceiver) for _ in range(self.rng.randint(1, 3))]
        self.links: dict[int, Link] = {}
        self.results: dict[tuple[int, int], str | None] = {}  # of each transfer: its request, None once it has ended
        self.requests: dict[tuple[int, int], str] = {}
        self.lengths: dict[str, int] = {}
        self.counts: Counter[str] = Counter()
        self.timers: dict[str, float] = {}

    def host(self, kind: type[EmbeddingSender | EmbeddingReceiver]) -> Host:
        return Host.start(f"{kind.__name__}-{next(self.numbers)}", kind, self.rng, self.max_tokens, self.timeout_s)

    def after(self, seconds: float, what: Callable[[], None]) -> None:
        heapq.heappush(self.events, (self.now_s + seconds, next(self.numbers), what))

    def delay_s(self) -> float:
        return self.rng.uniform(0, MAX_DELAY_S) if self.rng.random() < 0.3 else self.rng.uniform(0, 0.02)

    def link(self, encode: Host, language: Host) -> int:
        for number, each in self.links.items():
            if each.open and each.encode is encode and each.language is language:
                return number
        number = next(self.numbers)
        self.links[number] = Link(
            encode, language, self.rng.random() < self.sizes_first_share, one_sided=self.rng.random() < 0.5
        )
        return number

    def request(self) -> None:
        """A request begins on both sides, in either order."""
        request_id = f"r{len(self.lengths)}"
        self.lengths[request_id] = self.rng.randint(1, self.max_tokens)
        encode, language = self.rng.choice(self.encoders), self.rng.choice(self.languages)
        self.after(self.rng.uniform(0, 1.5), lambda: self.put(encode, request_id))
        self.after(self.rng.uniform(0, 1.5), lambda: self.fetch(encode, language, request_id))

    def put(self, host: Host, request_id: str) -> None:
        if host not in self.encoders:
            return
        machine = host.machine
        assert isinstance(machine, EmbeddingSender)
        if self.faults and self.rng.random() < 0.05:
            self.act(host, machine.fail(request_id, "the image cannot be decoded", self.now_s))
        else:
            self.act(host, machine.put(request_id, embedding(request_id, self.lengths[request_id]), self.now_s))

    def fetch(self, encode: Host, language: Host, request_id: str) -> None:
        if language not in self.languages or encode not in self.encoders:
            return
        peer = self.link(encode, language)
        machine = language.machine
        assert isinstance(machine, EmbeddingReceiver)
        known = self.lengths[request_id] if self.rng.random() < 0.3 else None
        number, actions = machine.fetch(
            peer,
            request_id,
            self.now_s,
            sizes_first=self.links[peer].sizes_first,
            one_sided=self.links[peer].one_sided,
            num_tokens=known,
        )
        self.results[peer, number] = self.requests[peer, number] = request_id
        self.act(language, actions)
        if self.faults and self.rng.random() < 0.1:
            self.counts["cancelled"] += 1
            self.after(self.rng.uniform(0, 3), lambda: self.act(language, machine.cancel(peer, number, self.now_s)))

    def act(self, host: Host, actions: Sequence[SenderAction | ReceiverAction]) -> None:
        if host not in self.encoders and host not in self.languages:
            return
        for action in actions:
            link = self.links[action.peer]
            match action:
                case Send():
                    self.send(action, link)
                case Write():
                    link.writes.add(action.transfer)
                    if link.open:
                        self.write(action, link, 0)
                    else:
                        self.stop_writes(action.peer)
                case CloseLink():
                    self.counts["closed"] += 1
                    self.close(action.peer)
                case Delivered():
                    request_id = self.end(action)
                    assert action.embedding == embedding(request_id, self.lengths[request_id]), "mixed data"
                    self.counts["delivered"] += 1
                case Ended():
                    self.end(action)
                    self.counts["failed"] += 1
        if host.allocator.usage.used_blocks == host.allocator.num_blocks:
            way = (
                "sizes first"
                if self.sizes_first_share == 1
                else "default first"
                if not self.sizes_first_share
                else "both"
            )
            self.counts["full"] += 1
            self.counts[f"full, {way}, {type(host.machine).__name__}"] += 1
        deadline_s = host.machine.next_deadline_s
        if self.timers.get(host.name, inf) > deadline_s:
            self.timers[host.name] = deadline_s
            self.after(max(0, deadline_s - self.now_s), lambda: self.expire(host))

    def end(self, action: Delivered | Ended) -> str:
        request_id = self.results[action.peer, action.transfer]
        assert request_id is not None, "a result is reported once"
        self.results[action.peer, action.transfer] = None
        return request_id

    def expire(self, host: Host) -> None:
        self.timers.pop(host.name, None)
        self.act(host, host.machine.expire(self.now_s))

    def send(self, action: Send, link: Link) -> None:
        for _ in range(2 if self.faults and self.rng.random() < 0.05 else 1):
            if self.faults and self.rng.random() < 0.03:
                self.counts["lost"] += 1
                continue
            self.after(self.delay_s(), lambda: self.receive(action, link))

    def receive(self, action: Send, link: Link) -> None:
        if not link.open:
            return
        match action.message:
            case Fetch() | Resume() | Cancel():
                assert isinstance(link.encode.machine, EmbeddingSender)
                self.act(link.encode, link.encode.machine.receive(action.peer, action.message, self.now_s))
            case Offer() | Part() | Failed():
                assert isinstance(link.language.machine, EmbeddingReceiver)
                self.act(link.language, link.language.machine.receive(action.peer, action.message, self.now_s))

    def write(self, action: Write, link: Link, done: int) -> None:
        """A token at a time, from memory to memory. It may stand still until somebody closes the connection."""
        machine = link.encode.machine
        assert isinstance(machine, EmbeddingSender)
        if action.transfer not in link.writes:
            return  # the connection was closed, and this reported
        if done == action.num_tokens:
            self.send(Send(action.peer, action.part), link)
            self.after(self.delay_s(), lambda: self.written(action, link))
            return
        request_id = self.requests[action.peer, action.transfer]
        assert link.encode.allocator._owners.get(action.source) == request_id, "blocks are read that were freed"
        if not link.one_sided:
            self.take(action, link)
            self.after(self.delay_s(), lambda: self.write(action, link, action.num_tokens))
            return
        assert link.language.allocator._owners.get(action.target) == request_id, "blocks are written that were freed"
        source = link.encode.buffers.get_buf_chunk_info(action.source, action.start_token + done, 1)
        target = link.language.buffers.get_buf_chunk_info(action.target, done, 1)
        for to, from_ in zip(link.language.buffers.views(target), link.encode.buffers.views(source), strict=True):
            to[:] = from_
        if self.faults and self.rng.random() < 0.01:
            self.counts["stuck"] += 1
            return
        slow = self.faults and self.rng.random() < 0.1
        self.after(
            self.rng.uniform(0, 1.0 if slow else 0.005),
            lambda: self.write(action, link, done + 1),
        )

    def written(self, action: Write, link: Link) -> None:
        """Some time after its Part, nothing reads the source of a write any more."""
        machine = link.encode.machine
        assert isinstance(machine, EmbeddingSender)
        if action.transfer in link.writes:
            link.writes.remove(action.transfer)
            assert link.encode.allocator._owners.get(action.source) == self.requests[action.peer, action.transfer]
            self.act(link.encode, machine.written(action.peer, action.transfer, self.now_s))

    def take(self, action: Write, link: Link) -> None:
        """The language side copies the part where it wants it, if it still does."""
        assert isinstance(link.language.machine, EmbeddingReceiver)
        places = link.language.machine.place(action.peer, action.transfer, action.start_token, action.num_tokens)
        if places is None:
            self.counts["unwanted"] += 1
            return
        chunks = link.encode.buffers.get_buf_chunk_info(action.source, action.start_token, action.num_tokens)
        for place, view in zip(places, link.encode.buffers.views(chunks), strict=True):
            place[:] = view

    def close(self, peer: int) -> None:
        """No write of the connection lands any more; each side hears of it in its own time."""
        link = self.links[peer]
        if not link.open:
            return
        link.open = False
        encode, language = link.encode.machine, link.language.machine
        assert isinstance(encode, EmbeddingSender)
        assert isinstance(language, EmbeddingReceiver)
        self.stop_writes(peer)
        self.after(self.delay_s(), lambda: self.act(link.encode, encode.closed(peer, self.now_s)))
        self.after(self.delay_s(), lambda: self.act(link.language, language.closed(peer, self.now_s)))

    def stop_writes(self, peer: int) -> None:
        """Report the writes of a closed connection as failed."""
        link = self.links[peer]
        machine = link.encode.machine
        assert isinstance(machine, EmbeddingSender)
        for transfer in sorted(link.writes):
            report = partial(machine.write_failed, peer, transfer, "the connection is closed")
            self.after(self.delay_s(), partial(self.report, link.encode, report))
        link.writes.clear()

    def report(self, host: Host, report: Callable[[float], list[SenderAction]]) -> None:
        self.act(host, report(self.now_s))

    def cut(self) -> None:
        """A connection breaks."""
        if self.links:
            self.close(self.rng.choice([*self.links]))

    def crash(self) -> None:
        """A process is gone; another one takes its place."""
        side = self.rng.choice((self.encoders, self.languages))
        host = side.pop(self.rng.randrange(len(side)))
        self.counts["crashed"] += 1
        for peer, link in self.links.items():
            if host in (link.encode, link.language):
                self.close(peer)
                if host is link.language:
                    for key in [key for key in self.results if key[0] == peer]:
                        self.results[key] = None  # who waited for it is gone, too
        side.append(self.host(type(host.machine)))

    def run(self, requests: int) -> None:
        for _ in range(requests):
            self.after(self.rng.uniform(0, 6), self.request)
        if self.faults:
            for _ in range(self.rng.randint(0, 3)):
                self.after(self.rng.uniform(0, 9), self.crash)
            for _ in range(self.rng.randint(0, 2)):
                self.after(self.rng.uniform(0, 9), self.cut)
        for _ in range(200_000):
            if not self.events:
                break
            self.now_s, _, what = heapq.heappop(self.events)
            what()
        assert not self.events, "the schedule ends"
        assert set(self.results.values()) <= {None}, "every transfer has its result"
        for host in (*self.encoders, *self.languages):
            assert host.allocator.usage.used_blocks == 0, f"{host.name} leaked"
            assert host.machine.next_deadline_s == inf
            if isinstance(host.machine, EmbeddingSender):
                assert not host.machine._of_peer, "ended transfers are forgotten"
            self.counts += Counter({name: number for name, number in host.machine.counts.items() if number})


def test_every_schedule_ends_with_the_right_bytes_and_no_block_lost_whatever_breaks() -> None:
    total: Counter[str] = Counter()
    for seed in range(FAULTY_SCHEDULES):
        world = World(seed, faults=True)
        world.run(requests=25)
        total += world.counts
    for what in (
        "delivered",
        "failed",
        "lost",
        "stuck",
        "closed",
        "crashed",
        "cancelled",
        "full",
        "resumes",
        "timed_out",
    ):
        assert total[what] > FAULTY_SCHEDULES / 4, (what, total)
    for way in ("default first", "sizes first"):
        for side in ("EmbeddingSender", "EmbeddingReceiver"):
            assert total[f"full, {way}, {side}"] > FAULTY_SCHEDULES, total


def test_without_faults_every_transfer_succeeds_however_small_the_buffers() -> None:
    total: Counter[str] = Counter()
    for seed in range(SCHEDULES):
        world = World(seed, faults=False)
        world.run(requests=60)
        assert world.counts["delivered"] == 60, f"seed {seed}: {world.counts}"
        assert not world.counts["timed_out"], f"seed {seed}: {world.counts}"
        total += world.counts
    assert total["resumes"] > 10 * SCHEDULES


Pair = tuple[EmbeddingSender, EmbeddingReceiver, Host, Host]


@pytest.fixture
def pair() -> Pair:
    """Both sides with the numbers of the seed."""
    hosts = []
    for kind in (EmbeddingSender, EmbeddingReceiver):
        allocator = ReqToMetadataBlockAllocator(8192)
        buffers = MultimodalDataBuffers(allocator, EMBEDDING_BYTES)
        hosts.append(Host(kind.__name__, allocator, machine(kind, allocator, buffers, TIMEOUT_S), buffers))
    encode, language = hosts
    assert isinstance(encode.machine, EmbeddingSender)
    assert isinstance(language.machine, EmbeddingReceiver)
    return encode.machine, language.machine, encode, language


def transmit(pair: Pair, number: int, first: list[ReceiverAction]) -> tuple[list[object], Embedding]:
    """All messages and writes of one transfer, in order, and what it delivers."""
    sender, receiver, encode, language = pair
    seen: list[object] = []
    todo: list[SenderAction | ReceiverAction] = list(first)
    while todo:
        action = todo.pop(0)
        match action:
            case Send(message=Fetch() | Resume() | Cancel() as told):
                seen.append(told)
                todo += sender.receive(0, told, 0)
            case Send(message=Offer() | Part() | Failed() as told):
                seen.append(told)
                todo += receiver.receive(0, told, 0)
            case Write():
                chunks = encode.buffers.get_buf_chunk_info(action.source, action.start_token, action.num_tokens)
                places = receiver.place(0, number, action.start_token, action.num_tokens)
                assert places is not None
                blocks = language.buffers.get_buf_chunk_info(action.target, 0, action.num_tokens)
                assert [len(place) for place in places] == [size for _, size in blocks]
                for place, view in zip(places, encode.buffers.views(chunks), strict=True):
                    place[:] = view
                seen.append(action.part)
                todo += receiver.receive(0, action.part, 0)
                todo += sender.written(0, number, 0)
            case Delivered():
                assert not todo
                return seen, action.embedding
    raise AssertionError(f"nothing was delivered: {seen}")


def test_2000_tokens_are_1024_and_976(pair: Pair) -> None:
    sender, receiver, encode, language = pair
    what = embedding("r", 2000)
    assert sender.put("r", what, 0) == []
    number, actions = receiver.fetch(0, "r", 0, sizes_first=False)
    seen, delivered = transmit(pair, number, actions)
    assert seen == [
        Fetch(1, "r", MetadataAllocation(0, 8, 1024)),
        Part(1, 0, 1024, is_last=False),
        Resume(1, MetadataAllocation(0, 8, 976), sent_tokens=1024),
        Part(1, 1024, 976, is_last=True),
    ]
    assert delivered == what
    assert encode.allocator.usage.used_blocks == language.allocator.usage.used_blocks == 0


def test_with_sizes_first_there_is_no_resume(pair: Pair) -> None:
    sender, receiver, _, _ = pair
    what = embedding("r", 2000)
    number, actions = receiver.fetch(0, "r", 0, sizes_first=True)
    assert sender.put("r", what, 0) == []
    seen, delivered = transmit(pair, number, actions)
    assert seen == [
        Fetch(1, "r"),
        Offer(1, 2000),
        Resume(1, MetadataAllocation(0, 16, 2000), sent_tokens=0),
        Part(1, 0, 2000, is_last=True),
    ]
    assert delivered == what
    assert receiver.counts == {"succeeded": 1}


def test_with_a_known_length_there_is_no_offer_either(pair: Pair) -> None:
    sender, receiver, encode, language = pair
    what = embedding("r", 2000)
    sender.put("r", what, 0)
    number, actions = receiver.fetch(0, "r", 0, sizes_first=True, num_tokens=2000)
    seen, delivered = transmit(pair, number, actions)
    assert seen == [Fetch(1, "r", MetadataAllocation(0, 16, 2000)), Part(1, 0, 2000, is_last=True)]
    assert delivered == what
    assert encode.allocator.usage.used_blocks == language.allocator.usage.used_blocks == 0


@pytest.mark.parametrize("num_tokens", [0, -1, 8193, 63 * 128 + 1])
def test_a_known_length_that_cannot_be_reserved_now_waits_for_the_offer(pair: Pair, num_tokens: int) -> None:
    """The last one would take the block that is left for what lies ready."""
    _, receiver, _, language = pair
    _, actions = receiver.fetch(0, "r", 0, sizes_first=True, num_tokens=num_tokens)
    assert actions == [Send(0, Fetch(1, "r"))]
    assert language.allocator.usage.used_blocks == 0


def test_another_length_than_the_known_one_ends_the_transfer(pair: Pair) -> None:
    _, receiver, _, _ = pair
    receiver.fetch(0, "r", 0, sizes_first=True, num_tokens=2000)
    places = receiver.place(0, 1, 0, 1500)
    assert places is not None
    places[3][:4] = (1500).to_bytes(4, "little")
    _, ended = receiver.receive(0, Part(1, 0, 1500, is_last=True), 0)
    assert isinstance(ended, Ended)
    assert "of 1500 tokens" in ended.reason


def test_a_resume_that_overtakes_the_report_of_a_write_is_not_lost(pair: Pair) -> None:
    sender, _, encode, _ = pair
    sender.put("r", embedding("r", 2000), 0)
    sender.receive(0, Fetch(1, "r", MetadataAllocation(0, 8, 1024)), 0)
    resume = Resume(1, MetadataAllocation(0, 8, 976), sent_tokens=1024)
    assert sender.receive(0, resume, 0) == []
    assert sender.receive(0, resume, 0) == [], "it may repeat"
    last = Part(1, 1024, 976, is_last=True)
    assert sender.written(0, 1, 0) == [Write(0, last, MetadataAllocation(0, 16, 2000), resume.allocation)]
    assert sender.receive(0, Resume(1, resume.allocation, sent_tokens=2000), 0) == []
    assert sender.written(0, 1, 0) == []
    assert encode.allocator.usage.used_blocks == 0


def test_an_embedding_that_the_encode_buffer_never_holds_fails_at_once(pair: Pair) -> None:
    sender, receiver, _, _ = pair
    number, (fetch,) = receiver.fetch(0, "r", 0, sizes_first=False)
    assert isinstance(fetch, Send)
    assert isinstance(fetch.message, Fetch)
    sender.receive(0, fetch.message, 0)
    (failed,) = sender.put("r", embedding("r", 8193), 0)
    assert failed == Send(
        0, Failed(number, "num_tokens is 8193: it must be 1 to 8192, the tokens that the buffer holds")
    )


def test_an_embedding_of_wrong_size_is_refused_to_who_puts_it(pair: Pair) -> None:
    with pytest.raises(NoAllocation, match="fill_ids has 1 bytes"):
        pair[0].put("r", Embedding(2, bytes(10), bytes(1), bytes(24)), 0)


def test_an_allocation_without_tokens_is_a_breach_of_protocol(pair: Pair) -> None:
    with pytest.raises(BadMessage, match="num_tokens must be at least 1"):
        pair[0].receive(0, Fetch(1, "r", MetadataAllocation(0, 0, 0)), 0)


@pytest.mark.parametrize(
    "part",
    [Part(1, 0, 1025, is_last=False), Part(1, 0, 0, is_last=False), Part(1, 0, 9, is_last=True)],
)
def test_a_part_that_cannot_be_right_ends_the_transfer(pair: Pair, part: Part) -> None:
    _, receiver, _, language = pair
    receiver.fetch(0, "r", 0, sizes_first=False)
    places = receiver.place(0, 1, 0, 9)
    assert places is not None
    places[3][:4] = (2000).to_bytes(4, "little")
    cancel, ended = receiver.receive(0, part, 0)
    assert cancel == Send(0, Cancel(1))
    assert isinstance(ended, Ended)
    assert "of 2000 tokens" in ended.reason
    assert language.allocator.usage.used_blocks == 8, "the encode worker has not confirmed the end"
    assert receiver.receive(0, Failed(1, "cancelled"), 0) == []
    assert language.allocator.usage.used_blocks == 0


@pytest.mark.parametrize("reported", [0, -1, 8193, 2**31 - 1])
@pytest.mark.parametrize("sizes_first", [True, False])
def test_a_length_that_no_request_has_ends_the_transfer_before_memory_is_allocated(
    pair: Pair, sizes_first: bool, reported: int
) -> None:
    _, receiver, _, language = pair
    receiver.fetch(0, "r", 0, sizes_first=sizes_first)
    if sizes_first:
        cancel, ended = receiver.receive(0, Offer(1, reported), 0)
    else:
        places = receiver.place(0, 1, 0, 9)
        assert places is not None
        places[3][:4] = reported.to_bytes(4, "little", signed=True)
        cancel, ended = receiver.receive(0, Part(1, 0, 9, is_last=False), 0)
    assert cancel == Send(0, Cancel(1))
    assert isinstance(ended, Ended)
    assert str(reported) in ended.reason
    assert not receiver._transfers[0, 1].fields
    receiver.receive(0, Failed(1, "cancelled"), 0)
    assert language.allocator.usage.used_blocks == 0


def test_a_message_is_read_as_it_was_written() -> None:
    told: list[ToEncode | ToLanguage] = [
        Fetch(1, "r", MetadataAllocation(1, 2, 3)), Fetch(1, "r"), Offer(1, 5), Cancel(1), Failed(1, "why"),
        Resume(1, MetadataAllocation(1, 2, 3), 7), Part(1, 2, 3, is_last=True),
    ]  # fmt: skip
    for message in told:
        assert decode(encode(message)) == message


@pytest.mark.parametrize("sizes_first", [True, False])
def test_a_connection_whose_encode_worker_is_silent_is_closed(pair: Pair, sizes_first: bool) -> None:
    _, receiver, _, language = pair
    number, _ = receiver.fetch(0, "r", 0, sizes_first=sizes_first)
    cancel, ended = receiver.expire(TIMEOUT_S)
    assert cancel == Send(0, Cancel(number))
    assert ended == Ended(0, number, "the transfer was waiting for the encode worker for 10 s")
    assert language.allocator.usage.used_blocks == (0 if sizes_first else 8)
    (close,) = receiver.expire(2 * TIMEOUT_S)
    assert close == CloseLink(0, "the encode worker did not end a transfer in 10 s")
    assert receiver.closed(0, 2 * TIMEOUT_S) == []
    assert language.allocator.usage.used_blocks == 0
    assert receiver.next_deadline_s == inf


@pytest.mark.parametrize("writing", [True, False])
def test_a_closed_connection_frees_the_encode_side_as_soon_as_no_write_reads(pair: Pair, writing: bool) -> None:
    sender, _, encode, _ = pair
    sender.put("r", embedding("r", 2000), 0)
    (write,) = sender.receive(0, Fetch(1, "r", MetadataAllocation(0, 8, 1024)), 0)
    part = Part(1, 0, 1024, is_last=False)
    assert write == Write(0, part, MetadataAllocation(0, 16, 2000), MetadataAllocation(0, 8, 1024))
    if not writing:
        sender.written(0, 1, 0)
    assert encode.allocator.usage.used_blocks == 16
    sender.closed(0, 0)
    if writing:
        assert encode.allocator.usage.used_blocks == 16
        sender.write_failed(0, 1, "the connection was closed", 0)
    assert encode.allocator.usage.used_blocks == 0


def test_a_connection_with_too_many_transfers_is_a_breach_of_protocol(
    pair: Pair, monkeypatch: pytest.MonkeyPatch
) -> None:
    sender, _, _, _ = pair
    monkeypatch.setattr("pointsman.workers.multimodal.transfer.sender.MAX_TRANSFERS", 3)
    for number in range(3):
        sender.receive(0, Cancel(number), 0)
    sender.receive(1, Fetch(1, "of another connection"), 0)
    with pytest.raises(BadMessage, match="3 transfers"):
        sender.receive(0, Fetch(3, "r"), 0)
    sender.expire(TIMEOUT_S)
    sender.receive(0, Fetch(3, "r"), TIMEOUT_S)


def test_an_embedding_that_nobody_asked_for_leaves_its_blocks_to_one_that_was() -> None:
    allocator = ReqToMetadataBlockAllocator(3, block_size=1, default_num_blocks=1)
    sender = EmbeddingSender(allocator, MultimodalDataBuffers(allocator, EMBEDDING_BYTES), TIMEOUT_S)
    for request_id in ("first", "second", "third"):
        sender.put(request_id, embedding(request_id, 2), 0)
    assert sender.usage == BlockUsage(3, 0, 1, lent_blocks=2), "the first one is copied before it is asked for"
    assert (sender.usage.occupancy, sender.usage.fragmentation) == (0, 0)
    assert sender.receive(0, Fetch(1, "second"), 0) == [Send(0, Offer(1, 2))]
    assert sender.receive(0, Fetch(2, "first"), 0) == [], "now it waits for its turn"
    sender.put("second", embedding("second", 1), 0)
    assert sender.receive(0, Cancel(1), 0)[1:] == [Send(0, Offer(2, 2))]
    assert allocator.usage.used_blocks == 2
    sender.expire(TIMEOUT_S)
    assert allocator.usage.used_blocks == 0


@pytest.mark.parametrize("again", [False, True])
def test_an_embedding_that_will_not_come_leaves_no_blocks(again: bool) -> None:
    allocator = ReqToMetadataBlockAllocator(8, block_size=1, default_num_blocks=1)
    sender = EmbeddingSender(allocator, MultimodalDataBuffers(allocator, EMBEDDING_BYTES), TIMEOUT_S)
    sender.put("r", embedding("r", 2), 0)
    if again:
        sender.put("r", embedding("r", 3), 0)
    sender.fail("r", "it was dropped", 0)
    assert allocator.usage.used_blocks == 0


def test_a_part_of_other_tokens_than_the_bytes_ends_the_transfer(pair: Pair) -> None:
    _, receiver, _, _ = pair
    receiver.fetch(0, "r", 0, sizes_first=True)
    receiver.receive(0, Offer(1, 2000), 0)
    places = receiver.place(0, 1, 0, 2000)
    assert places is not None
    places[3][:4] = (2000).to_bytes(4, "little")
    _, ended = receiver.receive(0, Part(1, 0, 1000, is_last=False), 0)
    assert isinstance(ended, Ended)
    assert "without its bytes" in ended.reason


def test_a_part_whose_bytes_did_not_come_is_not_taken_from_the_blocks(pair: Pair) -> None:
    """They may still have the bytes of another request."""
    _, receiver, _, language = pair
    receiver.fetch(0, "r", 0, sizes_first=False)
    language.buffers.get_buf(MetadataAllocation(0, 8, 1024))[3][:4] = (9).to_bytes(4, "little")
    _, ended = receiver.receive(0, Part(1, 0, 9, is_last=True), 0)
    assert isinstance(ended, Ended)
    assert "without its bytes" in ended.reason


def test_default_reservations_leave_a_block_for_what_lies_ready() -> None:
    """Or this embedding, and those that the encode side has no blocks for because of it, wait for each other."""
    allocator = ReqToMetadataBlockAllocator(3, block_size=1, default_num_blocks=1)
    receiver = EmbeddingReceiver(
        allocator, MultimodalDataBuffers(allocator, EMBEDDING_BYTES), TIMEOUT_S, MAX_REQUEST_TOKENS
    )
    receiver.fetch(0, "ready", 0, sizes_first=True)
    for number in range(3):
        receiver.fetch(1, f"waits {number}", 0, sizes_first=False)
    assert allocator.usage.used_blocks == 2
    assert receiver.receive(0, Offer(1, 5), 0) == [Send(0, Resume(1, MetadataAllocation(2, 1, 1), sent_tokens=0))]
