"""The wire contract."""

import re
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pointsman.api.protocol import names
from pointsman.api.protocol.control import WorkerPhase, WorkerState
from pointsman.api.protocol.names import Role
from pointsman.api.protocol.prefill import MalformedPrefillRequest, PrefillRequest

ROOT = Path(__file__).parents[3]

REQUEST = PrefillRequest(
    request_id="r-1",
    reply_to="inbox.1",
    model="m",
    block_size=128,
    kv_compatibility="c0ffee",
    decode_worker="chat-d-0",
    token_ids=(1, 2, 3),
)


@given(
    ids=st.lists(st.integers(min_value=0, max_value=2**32 - 1), min_size=1, max_size=300), salt=st.none() | st.text()
)
def test_a_prefill_request_survives_its_frame(ids: list[int], salt: str | None) -> None:
    request = REQUEST.model_copy(update={"token_ids": tuple(ids), "cache_salt": salt})
    assert PrefillRequest.decode(request.encode()) == request


@given(cut=st.integers(min_value=0, max_value=11), junk=st.binary(max_size=40))
def test_a_damaged_frame_is_refused_never_half_read(cut: int, junk: bytes) -> None:
    whole = REQUEST.encode()
    with pytest.raises(MalformedPrefillRequest):
        PrefillRequest.decode(whole[: len(whole) - 12 - cut])
    with pytest.raises(MalformedPrefillRequest):
        PrefillRequest.decode(b"\xff\xff\xff\x7f" + junk)


def test_an_ipv6_address_is_bracketed_in_a_url() -> None:
    assert names.address_url("http", "10.0.0.7", 8000) == "http://10.0.0.7:8000"
    assert names.address_url("tcp", "fd00::7", 5557) == "tcp://[fd00::7]:5557"


def test_no_room_makes_the_url_of_a_pod_by_hand() -> None:
    by_hand = re.compile(r"""f["'](http|tcp)://\{[^}]*(ip|addr)[^}]*\}""")
    rooms = ("crds", "kube", "serving", "operator", "planner", "gateway", "workers")
    sources = [path for room in rooms for path in (ROOT / room / "src").rglob("*.py")]
    assert len(sources) > 100
    assert [path.name for path in sources if by_hand.search(path.read_text())] == []


def test_services_of_one_name_in_two_namespaces_share_no_subject() -> None:
    here = names.prefill_subject("team-a", "uid-1", "c0ffee")
    there = names.prefill_subject("team-b", "uid-2", "c0ffee")
    assert here != there
    assert here.startswith(names.prefill_subjects("team-a", "uid-1").removesuffix("*"))


@pytest.mark.parametrize("bad", ["", "a.b", "a*", ">", "a b"])
def test_a_subject_token_that_would_reach_further_is_refused(bad: str) -> None:
    with pytest.raises(ValueError, match="subject token"):
        names.prefill_subject(bad, "uid", "kv")
    with pytest.raises(ValueError, match="subject token"):
        names.reply_inbox_prefix("ns", "uid", bad)


def test_role_labels_round_trip_and_foreign_ones_are_none() -> None:
    assert [Role.from_label(role.label) for role in Role] == list(Role)
    assert Role.from_label("embed") is None
    assert Role.from_label(None) is None


def test_absent_fields_of_a_state_are_unknown_and_stay_absent_on_the_wire() -> None:
    state = WorkerState(
        worker="w",
        instance="i",
        phase=WorkerPhase.IDLE,
        in_flight=0,
        in_flight_tokens=0,
        queued_prefills=0,
        leases=0,
        block_size=128,
        kv_compatibility="k",
    )
    assert state.kv_usage is None
    assert "kvUsage" not in state.wire()
    assert WorkerState.model_validate_json(state.wire()) == state
    assert state.idle
    assert not state.model_copy(update={"leases": 1}).idle
