"""Which embeddings are fetched, for whom, and in how much memory."""

import random

import pytest

from pointsman.workers.multimodal.exchange.fetches import (
    Action,
    BeginFetch,
    CancelFetch,
    EmbeddingFetches,
    FetchOutcome,
)
from pointsman.workers.multimodal.exchange.references import EmbeddingReference

TIMEOUT_S = 3.0


def reference(item: str, num_tokens: int = 10) -> EmbeddingReference:
    """An embedding of one byte a token."""
    return EmbeddingReference(item, "127.0.0.1:1", f"key of {item}", num_tokens, 1, "float32", "model")


A, B, C = reference("a"), reference("b"), reference("c")


def test_an_item_is_fetched_once_for_all_requests_that_have_it() -> None:
    fetches = EmbeddingFetches(100, TIMEOUT_S)
    assert fetches.need("one", [A, B], 0) == (False, [BeginFetch(1, A), BeginFetch(2, B)])
    assert fetches.need("two", [A], 0) == (False, [])
    fetches.delivered(1, b"vectors")
    assert fetches.need("two", [A], 1) == (True, [])
    assert fetches.need("one", [A, B], 1) == (False, [])
    fetches.delivered(2, b"more")
    assert fetches.need("one", [A, B], 1) == (True, [])
    assert fetches.take("a") == (A, b"vectors")
    with pytest.raises(KeyError):
        fetches.take("a")
    assert fetches.take("b") == (B, b"more")
    assert fetches.reserved_bytes == 0


def test_a_request_whose_fetch_failed_waits_no_more_and_does_not_try_again() -> None:
    fetches = EmbeddingFetches(100, TIMEOUT_S)
    fetches.need("one", [A], 0)
    fetches.failed(1)
    assert fetches.need("one", [A], 1) == (True, [])
    assert not fetches.is_ready("a")
    assert fetches.need("two", [A], 1) == (False, [BeginFetch(2, A)]), "another request has another embedding"
    fetches.finished("one")
    assert fetches.need("one", [A], 1) == (False, []), "the same id later is another request"


def test_a_fetch_that_takes_too_long_is_cancelled_and_its_memory_given_to_the_next() -> None:
    fetches = EmbeddingFetches(10, TIMEOUT_S)
    assert fetches.need("one", [A], 0) == (False, [BeginFetch(1, A)])
    assert fetches.need("two", [B], 1) == (False, []), "there is memory for one"
    assert fetches.next_deadline_s == TIMEOUT_S
    assert fetches.expire(2.9) == []
    assert fetches.expire(TIMEOUT_S) == [CancelFetch(1), BeginFetch(2, B)]
    assert fetches.need("one", [A], 3) == (True, [])
    fetches.delivered(1, b"too late")
    assert not fetches.is_ready("a")
    assert fetches.counts == {FetchOutcome.TIMED_OUT: 1}


def test_a_request_that_waits_for_memory_too_long_has_its_image_encoded() -> None:
    fetches = EmbeddingFetches(10, TIMEOUT_S)
    fetches.need("one", [A], 0)
    fetches.delivered(1, b"vectors")  # and the engine does not take it
    fetches.need("two", [B], 1)
    assert fetches.expire(4) == []
    assert fetches.need("two", [B], 4) == (True, [])


def test_an_embedding_larger_than_all_memory_is_not_fetched() -> None:
    fetches = EmbeddingFetches(9, TIMEOUT_S)
    assert fetches.need("one", [A], 0) == (True, [])
    assert fetches.counts == {FetchOutcome.TOO_LARGE: 1}


def test_what_the_last_request_no_longer_needs_is_given_up() -> None:
    fetches = EmbeddingFetches(100, TIMEOUT_S)
    fetches.need("one", [A, B], 0)
    fetches.need("two", [A], 0)
    assert fetches.finished("one") == [CancelFetch(2)], "the other one still needs a"
    assert fetches.need("two", [], 0) == (True, [CancelFetch(1)]), "its KV came from elsewhere"
    fetches.need("three", [C], 0)
    fetches.delivered(3, b"vectors")
    fetches.finished("three")
    assert fetches.reserved_bytes == 0


@pytest.mark.parametrize("seed", range(40))
def test_whatever_happens_memory_is_bounded_and_all_of_it_returns(seed: int) -> None:
    dice = random.Random(seed)
    fetches = EmbeddingFetches(limit := 40, TIMEOUT_S)
    items = [reference(f"item {n}", dice.randrange(1, 45)) for n in range(8)]
    requests: dict[str, list[EmbeddingReference]] = {}
    running: set[int] = set()
    now_s, begun = 0.0, 0

    def perform(actions: list[Action]) -> None:
        for action in actions:
            match action:
                case BeginFetch(number):
                    running.add(number)
                case CancelFetch(number):
                    running.remove(number)  # a fetch is cancelled once, and only while it runs

    for _ in range(600):
        now_s += dice.choice((0.0, 0.1, 1.0))
        match dice.randrange(6):
            case 0:
                begun += 1
                requests[f"request {begun}"] = dice.sample(items, dice.randrange(1, 4))
            case 1 if running:
                number = dice.choice(sorted(running))
                running.remove(number)
                perform(fetches.delivered(number, b"") if dice.random() < 0.7 else fetches.failed(number))
            case 2 if requests:
                ended = dice.choice(sorted(requests))
                del requests[ended]
                perform(fetches.finished(ended))
            case 3:
                perform(fetches.expire(now_s))
            case _ if requests:
                name = dice.choice(sorted(requests))
                ready, actions = fetches.need(name, requests[name], now_s)
                perform(actions)
                if ready:  # the engine takes what is there and encodes the rest
                    for each in requests.pop(name):
                        if fetches.is_ready(each.item):
                            fetches.take(each.item)
                    perform(fetches.finished(name))
        assert fetches.reserved_bytes <= limit
    now_s += 2 * TIMEOUT_S
    perform(fetches.expire(now_s))
    for name, needed in requests.items():
        ready, actions = fetches.need(name, needed, now_s)
        perform(actions)
        assert ready or running
        perform(fetches.finished(name))
    assert fetches.reserved_bytes == 0
    assert not running
