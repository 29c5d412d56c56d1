"""How long prefilled KV may be pulled, and what the prefill worker knows of it."""

from hypothesis import given
from hypothesis import strategies as st

from pointsman.workers.core.leases import LeaseLedger, usable_until_s

TIMES = st.floats(0, 1e6)
SECONDS = st.floats(0.1, 1e3)


@given(published_s=TIMES, lease_s=SECONDS, delay_s=st.floats(0, 1e3))
def test_nothing_is_pulled_in_the_last_third_of_a_lease_however_late_its_answer(
    published_s: float, lease_s: float, delay_s: float
) -> None:
    """Whenever the lease began after the publication, a pull before the limit is within two thirds of it."""
    began_s = published_s + delay_s
    last_pull_s = usable_until_s(published_s, lease_s)
    assert last_pull_s - began_s <= lease_s * 2 / 3 + 1e-6


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
