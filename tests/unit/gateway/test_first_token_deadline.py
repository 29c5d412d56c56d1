"""The time for the first token, as workers are told it."""

import pytest

from pointsman.gateway.errors import RequestInvalid
from pointsman.gateway.first_token_deadline import first_token_deadline


class Clock:
    """Of one process, begun at any value."""

    def __init__(self) -> None:
        self.now_s = 5e6

    def __call__(self) -> float:
        return self.now_s


@pytest.mark.parametrize(
    ("given", "left_ms"),
    [(None, 900_000), ("1500", 1500), (" 1500 ", 1500), ("0", 0), ("999999999999", 900_000)],
)
def test_the_clients_own_limit_counts_up_to_the_gateways(given: str | None, left_ms: int) -> None:
    assert first_token_deadline(given, 900.0, Clock()).left_ms == left_ms


def test_what_is_left_becomes_less_and_never_negative() -> None:
    clock = Clock()
    deadline = first_token_deadline("1500", 900.0, clock)
    clock.now_s += 1.0
    assert deadline.left_ms == 500
    clock.now_s += 1.0
    assert deadline.left_ms == 0


@pytest.mark.parametrize("given", ["soon", "-1", "1.5", "", "1e3", "\u0661", "9" * 13])
def test_what_is_no_number_of_milliseconds_is_refused_with_the_headers_name(given: str) -> None:
    with pytest.raises(RequestInvalid, match="X-Pointsman-Deadline-Ms") as refused:
        first_token_deadline(given, 900.0, Clock())
    assert refused.value.param == "X-Pointsman-Deadline-Ms"
