"""How long prefilled KV may be pulled, and what the prefill worker knows of it."""

from dataclasses import dataclass

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pointsman.workers.core.leases import LeaseLedger, LeaseStart, began_s, usable_until_s

TIMES = st.floats(0, 1e6)
SECONDS = st.floats(0.1, 1e3)
DELAYS = st.floats(0, 1e3)


@dataclass(frozen=True)
class Story:
    """One remote prefill in true time, on two hosts whose clocks have nothing to do with each other."""

    published_s: float
    queued_s: float
    prefill_s: float
    reply_s: float  # how long the reply was on its way, or until it was sent again
    decode_clock_s: float  # what the decode worker's clock is ahead of the truth …
    prefill_clock_s: float  # … and the prefill worker's
    observed: tuple[float, ...]  # moments, as shares of the prefill, at which it was observed to run
    late_observation_s: float  # the last observation may come so long after the end: its process was stopped
    readings: tuple[tuple[float, float], ...]  # (when it was taken after the publication, how long it was on its way)

    @property
    def ended_s(self) -> float:
        return self.published_s + self.queued_s + self.prefill_s

    def claimed_s(self) -> float | None:
        """What the prefill worker puts into its reply."""
        taken_s = self.published_s + self.queued_s
        lease = LeaseStart(taken_s + self.prefill_clock_s)
        lease.heard(self.published_s + self.decode_clock_s, taken_s + self.prefill_clock_s)
        for share in sorted(self.observed):
            lease.runs(taken_s + share * self.prefill_s + self.prefill_clock_s)
        lease.runs(self.ended_s + self.late_observation_s + self.prefill_clock_s)
        for after_s, way_s in self.readings:
            read_s = self.published_s + after_s
            lease.heard(read_s + self.decode_clock_s, read_s + way_s + self.prefill_clock_s)
        return lease.on_their_clock_s


stories = st.builds(
    Story,
    published_s=TIMES, queued_s=DELAYS, prefill_s=DELAYS, reply_s=DELAYS,
    decode_clock_s=st.floats(-1e6, 1e6), prefill_clock_s=st.floats(-1e6, 1e6),
    observed=st.lists(st.floats(0, 1), max_size=5).map(tuple), late_observation_s=DELAYS,
    readings=st.lists(st.tuples(DELAYS, DELAYS), max_size=4).map(tuple),
)  # fmt: skip


@given(story=stories, lease_s=SECONDS, claims=st.booleans())
def test_nothing_is_pulled_in_the_last_third_of_a_lease_whatever_the_delays_and_clocks(
    story: Story, lease_s: float, claims: bool
) -> None:
    arrived_s = story.ended_s + story.reply_s
    began = began_s(
        story.claimed_s() if claims else None,  # None: a prefill worker of an earlier version
        published_s=story.published_s + story.decode_clock_s,
        now_s=arrived_s + story.decode_clock_s,
    )
    last_pull_s = usable_until_s(began, lease_s) - story.decode_clock_s
    assert last_pull_s - story.ended_s <= lease_s * 2 / 3 + 1e-6


def test_a_lease_is_counted_from_the_end_of_a_long_prefill() -> None:
    lease = LeaseStart(100.0)  # queued for 40 s by then
    lease.heard(5060.0, 100.0)  # the decode worker published at 5060 on its clock
    lease.heard(5100.01, 100.02)  # it still waits
    for second in range(101, 161):
        lease.runs(second)
    assert lease.on_their_clock_s == pytest.approx(5100.01 + 159 - 100.02)
    began = began_s(lease.on_their_clock_s, published_s=5060.0, now_s=5160.5)
    assert usable_until_s(began, 30.0) == pytest.approx(5160.5 + 20.0, abs=2.0)


def test_without_a_confirmation_the_time_on_the_queue_counts_as_age() -> None:
    lease = LeaseStart(100.0)
    lease.heard(5060.0, 100.0)
    assert lease.on_their_clock_s == 5060.0


@pytest.mark.parametrize(("claimed_s", "believed_s"), [(None, 10.0), (-5.0, 10.0), (12.0, 12.0), (1e9, 15.0)])
def test_a_begin_before_the_publication_or_after_the_reply_is_not_believed(
    claimed_s: float | None, believed_s: float
) -> None:
    assert began_s(claimed_s, published_s=10.0, now_s=15.0) == believed_s


def test_a_lease_ends_when_its_kv_is_pulled() -> None:
    ledger = LeaseLedger(lease_s=30)
    ledger.begin("a", 100)
    ledger.begin("b", 105)
    ledger.end("a")
    ledger.end("never heard of")
    assert ledger.outstanding(110, engine_holds_blocks=True) == {"b": 5}


def test_a_lease_over_its_time_counts_while_the_engine_holds_blocks() -> None:
    ledger = LeaseLedger(lease_s=30)
    ledger.begin("a", 0)
    assert ledger.outstanding(31, engine_holds_blocks=True) == {"a": 31}, "heartbeats may have extended it"
    assert ledger.outstanding(32, engine_holds_blocks=False) == {}
    assert ledger.outstanding(33, engine_holds_blocks=True) == {}, "it does not come back"


def test_an_engine_that_holds_no_block_has_no_lease_even_if_nobody_said_so() -> None:
    ledger = LeaseLedger(lease_s=30)
    ledger.begin("a", 0)
    assert ledger.outstanding(0.5, engine_holds_blocks=False) == {"a": 0.5}, "its gauges may lag behind"
    assert ledger.outstanding(1, engine_holds_blocks=False) == {}


def test_without_a_word_of_the_engine_a_lease_ends_by_time() -> None:
    ledger = LeaseLedger(lease_s=30)
    ledger.begin("a", 0)
    assert ledger.outstanding(29, engine_holds_blocks=None) == {"a": 29}
    assert ledger.outstanding(30, engine_holds_blocks=None) == {}


def test_no_lease_counts_for_ever() -> None:
    ledger = LeaseLedger(lease_s=30)
    ledger.begin("a", 0)
    assert ledger.outstanding(119, engine_holds_blocks=True) == {"a": 119}
    assert ledger.outstanding(120, engine_holds_blocks=True) == {}


def test_two_stalls_in_a_row_do_not_make_a_lease_look_younger() -> None:
    lease = LeaseStart(0.0)
    lease.runs(5.0, longest_gap_s=6.0)  # the prefill ends just afterwards, and its answer is read after 45 s
    lease.runs(40.0, longest_gap_s=6.0)
    lease.runs(45.0, longest_gap_s=6.0)
    assert lease.earliest_s == 40.0, "a process that is stopped once and then runs is believed again"
    stopped_twice = LeaseStart(0.0)
    for now_s in (5.0, 40.0, 80.0):
        stopped_twice.runs(now_s, longest_gap_s=6.0)
    assert stopped_twice.earliest_s == 0.0
