"""The control token of a service while it is rotated: what is sent, what is accepted, and what the Secret becomes."""

import pytest

from pointsman.api.protocol.control import accepted_tokens, authorized, rotated
from pointsman.api.protocol.elastic import InstancePresence


def bearer(token: str) -> str:
    return f"Bearer {token}"


@pytest.mark.parametrize(("value", "accepted"), [("", ()), ("one", ("one",)), ("new,old", ("new", "old", "new,old"))])
def test_each_token_of_the_value_is_accepted_and_the_first_is_sent(value: str, accepted: tuple[str, ...]) -> None:
    assert accepted_tokens(value) == accepted


def test_an_old_pod_a_new_pod_and_one_of_an_earlier_version_are_understood_by_a_new_worker() -> None:
    for token in ("new", "old", "new,old"):
        assert authorized(bearer(token), "new,old")
    for token in ("", "other", "old,new", "new,", "n", "\udcff"):
        assert not authorized(bearer(token), "new,old")
    assert not authorized(bearer("old"), "new"), "when the rotation is over"
    assert not authorized("", "new,old")


@pytest.mark.parametrize(
    ("value", "known", "becomes"),
    [
        ("same", "same", "same"),
        ("new", "old", "new,old"),  # replaced by hand
        ("new,old", "old", "new,old"),  # as it should be
        ("new", "new,old", "new"),  # the rotation is over
        ("newer", "new,old", "newer,new,old"),  # a second one while the first goes on
        ("new", "", "new"),
    ],
)
def test_a_token_that_was_replaced_keeps_the_one_that_pods_have(value: str, known: str, becomes: str) -> None:
    assert rotated(value, known) == becomes


def test_an_instance_proves_itself_to_a_manager_that_has_both_tokens() -> None:
    for token in ("new,old", "new", "old"):
        assert InstancePresence.proved("i", "http://i", token).proves("new,old")
    assert not InstancePresence.proved("i", "http://i", "other").proves("new,old")
