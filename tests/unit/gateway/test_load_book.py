"""What a gateway has in flight never drifts, in whatever order requests come and go."""

from hypothesis import given
from hypothesis import strategies as st

from pointsman.gateway.core.load_book import LoadBook
from pointsman.gateway.types import WorkerKey

W = WorkerKey("w")


def test_a_request_is_pending_until_its_first_token_and_then_active() -> None:
    book = LoadBook()
    entry = book.begin(W, prompt_tokens=100, overlap_tokens=30)
    assert (book.of(W).pending_requests, book.of(W).pending_tokens, book.of(W).active_tokens) == (1, 70, 0)
    entry.produced(1)
    assert (book.of(W).pending_requests, book.of(W).pending_tokens, book.of(W).active_tokens) == (0, 0, 101)
    entry.produced(4)
    assert book.of(W).active_tokens == 105
    entry.end()
    entry.end()
    entry.produced(1)
    assert (book.of(W).in_flight, book.of(W).active_tokens) == (0, 0)


@given(st.lists(st.tuples(st.integers(1, 500), st.integers(0, 600), st.lists(st.integers(0, 9), max_size=5))))
def test_when_all_have_ended_nothing_is_left(requests: list[tuple[int, int, list[int]]]) -> None:
    counted = [0]
    book = LoadBook(counted=lambda new_tokens: min(new_tokens, counted[0]))
    entries = []
    for most, (prompt, overlap, _) in enumerate(requests):  # another bound for each
        counted[0] = 50 * most
        entries.append(book.begin(W, prompt_tokens=prompt, overlap_tokens=overlap, streamed=bool(prompt % 2)))
    for entry, (_, _, bursts) in zip(entries, requests, strict=True):
        for tokens in bursts:
            entry.produced(tokens)
    assert book.of(W).in_flight == len(requests)
    for entry in entries:
        entry.end()
    totals = book.of(W)
    assert (book.awaited_tokens, book.awaited_prompts) == (0, 0)
    assert (totals.pending_requests, totals.pending_tokens, totals.active_requests, totals.active_tokens) == (0,) * 4


def test_a_worker_that_left_is_kept_until_its_last_request_ends() -> None:
    book = LoadBook()
    entry = book.begin(W, prompt_tokens=1, overlap_tokens=0)
    book.sweep(set())
    assert book.of(W).in_flight == 1
    entry.end()
    book.sweep(set())
    assert book.of(W).last_chosen == 0
