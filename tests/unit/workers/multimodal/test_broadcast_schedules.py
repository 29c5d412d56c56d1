"""Entry rank and other ranks through seeded schedules of delays, errors, aborts, late stamps and lost ranks.

Time is model time. Messages between two ranks keep their order; nothing else does. Whatever happens, every request has
to end once on every rank, and on all ranks alike.
"""

import heapq
from collections import Counter, defaultdict
from collections.abc import Callable, Sequence
from functools import partial
from itertools import count
from random import Random

import pytest

from pointsman.workers.multimodal.broadcast.entry import (
    ENTRY_RANK,
    EntryAction,
    EntryMachine,
    Free,
    Prepare,
    Resolve,
    SendEnd,
    SendParcel,
    SendVerdict,
)
from pointsman.workers.multimodal.broadcast.errors import BroadcastError, PendingMemoryFull
from pointsman.workers.multimodal.broadcast.messages import ErrorEnvelope, ErrorKind
from pointsman.workers.multimodal.broadcast.modes import AutoRule, Mode, Stamp
from pointsman.workers.multimodal.broadcast.receiving import (
    Drop,
    Materialise,
    ReceivingAction,
    ReceivingMachine,
    ResolveHere,
    SendReport,
)

SCHEDULES = 400  # of 25 requests each
REQUESTS = 25
MAX_PENDING_BYTES = 400
MODES = (Mode.SYNC, Mode.ASYNC, Mode.DELAYED, Mode.COMBINED)

DELIVERED = "delivered"


def failure(rank: int, sequence: int) -> ErrorEnvelope:
    return ErrorEnvelope(ErrorKind.MATERIALISE, f"rank {rank} cannot materialise {sequence}", "ValueError")


class OtherRankModel:
    """A rank beside the entry rank: its machine, and what its shell would do."""

    def __init__(self, model: "GroupModel", rank: int) -> None:
        self.model = model
        self.rank = rank
        self.machine = ReceivingMachine()
        self.alive = True
        self.arrived: set[int] = set()
        self.ready: set[int] = set()  # materialised
        self.discarded: set[int] = set()
        self.stamps: dict[int, Stamp] = {}
        self.outcomes: dict[int, str] = {}
        self.cut = False  # it has seen the end of its connection

    def run(self, actions: Sequence[ReceivingAction]) -> None:
        for action in actions:
            match action:
                case Materialise(sequence):
                    self.later(partial(self.materialise, sequence))
                case SendReport(sequence, error):
                    self.model.report(self.rank, sequence, error)
                case ResolveHere(sequence, error):
                    assert sequence not in self.outcomes, "inputs end once"
                    assert error is not None or sequence in self.ready, "delivered where they are"
                    self.outcomes[sequence] = DELIVERED if error is None else error.message
                case Drop():
                    pass

    def hear(self, event: Callable[["OtherRankModel"], None]) -> None:
        if self.alive and not self.cut:
            event(self)

    def later(self, what: Callable[[], None]) -> None:
        self.model.at(lambda: what() if self.alive else None)

    def materialise(self, sequence: int) -> None:
        error = failure(self.rank, sequence) if (self.rank, sequence) in self.model.failing else None
        if error is None:
            self.ready.add(sequence)
        self.run(self.machine.materialised(sequence, error))

    def expect(self, stamp: Stamp) -> None:
        if not self.alive:
            return
        self.stamps[stamp.sequence] = stamp
        self.run(self.machine.expect(stamp))
        if stamp.mode is Mode.DELAYED:
            self.later(lambda: self.get_inputs(stamp.sequence))

    def get_inputs(self, sequence: int) -> None:
        """What a thread does that needs the inputs: it waits for the parcel, then materialises."""
        if sequence in self.outcomes or sequence in self.discarded:
            return
        if sequence in self.arrived:
            self.materialise(sequence)
        else:
            self.later(lambda: self.get_inputs(sequence))

    def parcel(self, sequence: int, raw: bool) -> None:
        self.arrived.add(sequence)
        if not raw:
            self.ready.add(sequence)
        self.run(self.machine.raw_arrived(sequence) if raw else self.machine.object_arrived(sequence))
        self.later(
            lambda: self.model.to_entry(self.rank, lambda entry: entry.released(self.rank, sequence))
        )  # a parcel is read until some time later


class GroupModel:
    """A group, its network and its clock."""

    def __init__(self, seed: int) -> None:
        self.rng = Random(seed)
        self.world_size = self.rng.choice((1, 2, 2, 4, 4))
        self.entry = EntryMachine(self.world_size, MAX_PENDING_BYTES)
        self.entry_alive = True
        self.others = {rank: OtherRankModel(self, rank) for rank in range(1, self.world_size)}
        self.failing: set[tuple[int, int]] = set()
        self.fail_share = self.rng.choice((0.0, 0.1, 0.4))
        self.stamps: dict[int, Stamp] = {}
        self.outcomes: dict[int, str] = {}
        self.own: set[int] = set()  # materialised on the entry rank, from raw inputs
        self.freed: set[int] = set()
        self.refused = 0
        self.now_s = 0.0
        self._order = count()
        self._events: list[tuple[float, int, Callable[[], None]]] = []
        self._links_s: dict[tuple[str, int], float] = defaultdict(float)

    def at(self, what: Callable[[], None], delay_s: float | None = None) -> None:
        delay_s = self.rng.expovariate(1.0) if delay_s is None else delay_s
        heapq.heappush(self._events, (self.now_s + delay_s, next(self._order), what))

    def in_order(self, link: tuple[str, int], what: Callable[[], None]) -> None:
        """``what`` after everything that went over ``link`` before."""
        self._links_s[link] = max(self._links_s[link], self.now_s) + self.rng.expovariate(3.0)
        self.at(what, self._links_s[link] - self.now_s)

    def to_entry(self, rank: int, event: Callable[[EntryMachine], list[EntryAction]]) -> None:
        self.in_order(("to entry", rank), lambda: self.run(event(self.entry)) if self.entry_alive else None)

    def report(self, rank: int, sequence: int, error: ErrorEnvelope | None) -> None:
        self.to_entry(rank, lambda entry: entry.reported(rank, sequence, error))

    def to_others(self, event: Callable[[OtherRankModel], None]) -> None:
        for rank, other in self.others.items():
            self.in_order(("from entry", rank), partial(other.hear, event))

    def run(self, actions: Sequence[EntryAction]) -> None:
        for action in actions:
            match action:
                case Prepare(sequence):
                    self.at(partial(self.prepare, sequence))
                case SendParcel(sequence):
                    self.send_parcel(sequence)
                case SendVerdict(sequence, error):
                    self.send_verdict(sequence, error)
                case SendEnd(error):
                    self.send_end(error)
                case Resolve(sequence, error):
                    assert sequence not in self.outcomes, "inputs end once"
                    raw = self.stamps[sequence].mode.sends_raw
                    assert error is not None or not raw or sequence in self.own, "delivered where they are"
                    self.outcomes[sequence] = DELIVERED if error is None else error.message
                case Free(sequence):
                    assert sequence not in self.freed, "memory is freed once"
                    assert sequence in self.outcomes, "memory is freed after the end"
                    self.freed.add(sequence)
        assert self.entry.pending_bytes >= 0

    def send_parcel(self, sequence: int) -> None:
        raw = self.stamps[sequence].mode.sends_raw
        self.to_others(lambda other: other.parcel(sequence, raw))

    def send_verdict(self, sequence: int, error: ErrorEnvelope | None) -> None:
        self.to_others(lambda other: other.run(other.machine.verdict(sequence, error)))

    def send_end(self, error: ErrorEnvelope) -> None:
        self.to_others(lambda other: other.run(other.machine.end(error)))

    def submit(self, number: int) -> None:
        if not self.entry_alive:
            return
        mode = self.rng.choice(MODES)
        try:
            stamp, actions = self.entry.submit(f"r{number}", self.rng.randint(1, 100), mode)
        except PendingMemoryFull:
            self.refused += 1
            self.at(lambda: self.submit(number))  # the request waits
            return
        except BroadcastError:
            return  # the group has ended
        assert self.entry.pending_bytes <= MAX_PENDING_BYTES + 100 * REQUESTS  # objects are larger than raw inputs
        self.stamps[stamp.sequence] = stamp
        for rank in range(self.world_size):
            if self.rng.random() < self.fail_share:
                self.failing.add((rank, stamp.sequence))
        late_s = 20.0 if self.rng.random() < 0.1 else 0.0
        for other in self.others.values():  # the engine's own way of bringing requests to ranks
            self.at(partial(other.expect, stamp), self.rng.expovariate(1.0) + late_s * self.rng.random())
        self.run(actions)
        if not mode.in_background:
            self.prepare(stamp.sequence)
        if mode is Mode.DELAYED:
            self.at(lambda: self.materialise_own(stamp.sequence))
        if self.rng.random() < 0.15:
            self.abort(stamp)

    def abort(self, stamp: Stamp) -> None:
        def cancel() -> None:
            if self.entry_alive:
                self.run(self.entry.cancel(stamp.sequence))

        if self.rng.random() < 0.7:  # else only other ranks drop the request: nobody may wait for them
            self.at(cancel)
        for other in self.others.values():

            def discard(o: OtherRankModel = other) -> None:
                if o.alive and stamp.sequence in o.stamps:
                    o.discarded.add(stamp.sequence)
                    o.run(o.machine.discard(stamp.sequence))

            self.at(discard, self.rng.expovariate(0.5))

    def prepare(self, sequence: int) -> None:
        if not self.entry_alive:
            return
        raw = self.stamps[sequence].mode.sends_raw
        error = failure(ENTRY_RANK, sequence) if (ENTRY_RANK, sequence) in self.failing and not raw else None
        self.run(self.entry.prepared(sequence, error, self.rng.randint(1, 100)))
        if self.stamps[sequence].mode is Mode.COMBINED:
            self.at(lambda: self.materialise_own(sequence))

    def materialise_own(self, sequence: int) -> None:
        if self.entry_alive:
            error = failure(ENTRY_RANK, sequence) if (ENTRY_RANK, sequence) in self.failing else None
            if error is None:
                self.own.add(sequence)
            self.run(self.entry.reported(ENTRY_RANK, sequence, error))

    def kill(self, rank: int) -> None:
        if rank == ENTRY_RANK:
            self.entry_alive = False
            lost = ErrorEnvelope(ErrorKind.RANK_LOST, "rank 0 is lost")
            for number, other in self.others.items():

                def cut(o: OtherRankModel = other) -> None:
                    o.cut = True
                    o.run(o.machine.end(lost))

                # What it sent before may arrive, or be lost with it.
                if self.rng.random() < 0.5:
                    self.in_order(("from entry", number), cut)
                else:
                    cut()
        else:
            self.others[rank].alive = False
            self.in_order(("to entry", rank), lambda: self.run(self.entry.lost(rank, "killed")))

    def go(self) -> None:
        while self._events:
            self.now_s, _, what = heapq.heappop(self._events)
            assert self.now_s < 10_000, "it does not come to an end"
            what()


def played(seed: int, killed: str) -> GroupModel:
    """The group of a schedule, at its end."""
    model = GroupModel(seed)
    for number in range(REQUESTS):
        model.at(partial(model.submit, number), model.rng.uniform(0, 20))
    if killed != "nobody" and model.world_size > 1:
        victim = ENTRY_RANK if killed == "the entry rank" else model.rng.choice(list(model.others))
        model.at(lambda: model.kill(victim), model.rng.uniform(0, 30))
    model.go()
    if model.entry_alive:
        model.run(model.entry.close())
    model.go()
    return model


@pytest.mark.parametrize("killed", ["nobody", "another rank", "the entry rank"])
def test_every_request_ends_once_and_alike_on_every_rank(killed: str) -> None:
    ends: Counter[str] = Counter()
    refused = 0
    schedules = {"nobody": SCHEDULES, "another rank": 100, "the entry rank": 100}[killed]
    for seed in range(schedules):
        model = played(seed, killed)
        survivors = [other for other in model.others.values() if other.alive]
        for sequence in model.stamps:
            outcomes = [other.outcomes[sequence] for other in survivors]
            if model.entry_alive:
                outcomes.append(model.outcomes[sequence])
                assert len(set(outcomes)) <= 1, f"seed {seed}, {sequence}: {outcomes}"
            else:  # a rank may have heard the last verdicts and another not: it knows that the group is lost
                assert len(set(outcomes) - {"rank 0 is lost"}) <= 1, f"seed {seed}, {sequence}: {outcomes}"
            ends.update(outcome.split(" ")[0] for outcome in outcomes[:1])
        for other in survivors:
            assert other.machine.pending == 0
        if model.entry_alive:
            assert model.entry.pending_bytes == 0
            assert model.entry.pending == 0
            assert set(model.freed) == set(model.stamps)
        refused += model.refused
    assert ends[DELIVERED] > 0 and ends["request"] > 0 and refused > 0, ends  # some of each was seen
    if killed == "nobody":
        assert sum(ends.values()) >= 10_000


def test_inputs_that_do_not_fit_are_refused_with_the_numbers_and_fit_later() -> None:
    entry = EntryMachine(2, 100)
    stamp, _ = entry.submit("first", 60, Mode.ASYNC)
    with pytest.raises(
        PendingMemoryFull,
        match="request second have 50 bytes, and 60 bytes are pending: together they must be at most 100",
    ):
        entry.submit("second", 50, Mode.ASYNC)
    entry.prepared(stamp.sequence, None, 90)
    with pytest.raises(PendingMemoryFull, match="90 bytes are pending"):
        entry.submit("second", 50, Mode.ASYNC)
    entry.released(1, stamp.sequence)
    entry.submit("second", 50, Mode.ASYNC)


def test_a_cancel_after_the_verdict_changes_nothing() -> None:
    entry = EntryMachine(2, 100)
    stamp, _ = entry.submit("r", 60, Mode.ASYNC)
    assert entry.prepared(stamp.sequence, None, 60) == [SendParcel(0), Resolve(0, None)]
    assert entry.cancel(stamp.sequence) == []
    assert entry.released(1, stamp.sequence) == [Free(0)]


def test_the_first_error_is_that_of_every_rank_and_later_ones_change_nothing() -> None:
    entry = EntryMachine(4, 100)
    entry.submit("r", 1, Mode.COMBINED)
    entry.prepared(0, None, 1)
    first = failure(2, 0)
    assert entry.reported(1, 0, None) == []
    assert entry.reported(2, 0, first) == [SendVerdict(0, first), Resolve(0, first)]
    assert entry.reported(3, 0, failure(3, 0)) == []


def test_closing_waits_for_what_is_undecided_and_refuses_what_is_new() -> None:
    entry = EntryMachine(2, 100)
    entry.submit("r", 1, Mode.ASYNC)
    assert entry.close() == []
    with pytest.raises(BroadcastError, match="shut down"):
        entry.submit("s", 1, Mode.ASYNC)
    assert [type(each) for each in entry.prepared(0, None, 1)] == [SendParcel, Resolve, SendEnd, Free]


@pytest.mark.parametrize(
    ("raw_mib", "concurrent", "ranks", "cores", "mode"),
    [(1, 0, 2, 64, Mode.ASYNC), (11, 0, 2, 64, Mode.COMBINED), (11, 40, 2, 64, Mode.ASYNC), (11, 0, 4, 2, Mode.ASYNC)],
)
def test_auto_has_every_rank_materialise_only_large_inputs_and_only_with_cores_to_spare(
    raw_mib: int, concurrent: int, ranks: int, cores: int, mode: Mode
) -> None:
    assert AutoRule(cores=cores).choose(raw_mib << 20, concurrent, ranks) is mode
