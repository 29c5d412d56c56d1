"""Which groups NCCL connects, and how a user excludes it."""

from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pointsman.workers.elastic.engine.transports import CARD_BYTES, NO_CARD, all_beat, card, nccl_connects
from pointsman.workers.elastic.instance.settings import InstanceSettings

VERSION = (2, 29, 7)
FIRST, SECOND, THIRD = (card(VERSION, bytes([number] * 16)) for number in (1, 2, 3))
OLD = card((2, 28, 3), bytes([4] * 16))
EARLIER = [bytes(CARD_BYTES), bytes([0, 2, 0, 29, 0, 7, *[5] * 16])]
"""What members published before they sent beats: without a GPU, and with NCCL 2.29.7."""
TOKEN = "a-token-of-the-tests"
REQUIRED = {"namespace": "n", "service_uid": "u", "worker": "i-0", "model": "m", "control_token": TOKEN}


@pytest.mark.parametrize(
    ("cards", "connects"),
    [
        ([FIRST, SECOND], True),
        ([FIRST, SECOND, THIRD], True),
        ([FIRST, FIRST], False),
        ([FIRST, SECOND, FIRST], False),
        ([FIRST, NO_CARD], False),
        ([NO_CARD, NO_CARD], False),
        ([FIRST, OLD], False),
        *[([each, other], False) for each in EARLIER for other in (FIRST, NO_CARD, EARLIER[0])],
    ],
)
def test_nccl_connects_members_with_a_gpu_each_and_one_version_of_it(cards: list[bytes], connects: bool) -> None:
    assert nccl_connects(cards) is connects
    assert {len(each) for each in cards} == {CARD_BYTES}


def test_members_watch_each_other_if_all_send_beats() -> None:
    assert all_beat([FIRST, OLD, NO_CARD])
    for each in EARLIER:
        assert not all_beat([FIRST, each])
        assert not all_beat([NO_CARD, each])


@given(st.lists(st.sampled_from([FIRST, SECOND, THIRD, OLD, NO_CARD]), min_size=2, max_size=8), st.randoms())
def test_the_order_of_members_does_not_matter(cards: list[bytes], rng: Random) -> None:
    shuffled = list(cards)
    rng.shuffle(shuffled)
    assert nccl_connects(cards) == nccl_connects(shuffled)


def test_a_user_can_exclude_nccl_in_the_pod_template(monkeypatch: pytest.MonkeyPatch) -> None:
    assert InstanceSettings.model_validate(REQUIRED).tensor_transport == "auto"
    monkeypatch.setenv("ELASTIC_TENSOR_TRANSPORT", "gloo")
    assert InstanceSettings.model_validate(REQUIRED).tensor_transport == "gloo"
