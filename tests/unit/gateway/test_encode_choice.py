"""Images go to the encode worker with the least work; equal images to the same one where that costs nothing."""

from collections import Counter
from collections.abc import Set

from hypothesis import given
from hypothesis import strategies as st

from pointsman.gateway.core.embedding_book import REUSE_S, EmbeddingBook
from pointsman.gateway.core.encode_choice import Encoder, choose_encoder
from pointsman.gateway.types import WorkerKey
from pointsman.serving.image_tokens import EMBEDDING_BYTES_PER_TOKEN, encodes_remotely, estimated_image_tokens

A, B, C = (WorkerKey(name) for name in "abc")
EVERYWHERE = frozenset({A, B, C})


def idle(*keys: WorkerKey) -> list[Encoder]:
    return [Encoder(key, 0) for key in keys]


def at(book: EmbeddingBook, image: str, there: Set[WorkerKey] = EVERYWHERE) -> WorkerKey | None:
    """The worker that has ``image``."""
    found = book.find(image, there.__contains__)
    return found.worker if found is not None else None


def test_equal_images_meet_at_one_worker_and_different_ones_spread() -> None:
    chosen = [choose_encoder(f"image {number}", 100, idle(A, B, C), None) for number in range(300)]
    assert chosen == [choose_encoder(f"image {number}", 100, idle(C, B, A), None) for number in range(300)]
    assert min(Counter(chosen).values()) > 60


def test_when_a_worker_leaves_only_its_images_move() -> None:
    for number in range(100):
        before = choose_encoder(f"image {number}", 100, idle(A, B, C), None)
        after = choose_encoder(f"image {number}", 100, idle(A, B), None)
        assert after == before or before == C


def test_the_worker_that_has_the_embedding_is_preferred() -> None:
    assert {choose_encoder("cat", 100, idle(A, B, C), holder) for holder in (A, B, C)} == {A, B, C}
    busy = [Encoder(A, 101), Encoder(B, 0)]
    assert choose_encoder("cat", 100, busy, A) == B
    assert choose_encoder("cat", 101, busy, A) == A


@given(st.lists(st.integers(0, 5000), min_size=1, max_size=6), st.integers(1, 2000), st.text(max_size=8))
def test_no_image_waits_longer_than_it_would_take_to_encode_it(pending: list[int], tokens: int, image: str) -> None:
    encoders = [Encoder(WorkerKey(f"w{number}"), tokens_there) for number, tokens_there in enumerate(pending)]
    found = dict(zip([encoder.key for encoder in encoders], pending, strict=True))
    assert found[choose_encoder(image, tokens, encoders, None)] == min(pending)
    assert found[choose_encoder(image, tokens, encoders, encoders[-1].key)] <= min(pending) + tokens


def test_the_book_forgets_what_was_used_longest_ago() -> None:
    book = EmbeddingBook(100 * EMBEDDING_BYTES_PER_TOKEN)
    book.add("one", A, b"{}", 40, 0.0)
    book.add("two", A, b"{}", 40, 0.0)
    book.add("one", A, b"{}", 40, 0.0)  # used again
    book.add("three", A, b"{}", 40, 0.0)
    assert [at(book, image) for image in ("one", "two", "three")] == [A, None, A]
    book.add("four", B, b"{}", 100, 0.0)
    assert at(book, "one") == A, "each worker has a cache of its own"
    book.add("huge", B, b"{}", 101, 0.0)
    assert at(book, "huge") is None
    assert at(book, "four") == B


def test_an_image_is_at_the_worker_that_had_it_last_and_a_worker_that_left_has_none() -> None:
    book = EmbeddingBook(100 * EMBEDDING_BYTES_PER_TOKEN)
    for image in ("one", "two"):
        book.add(image, A, b"{}", 10, 0.0)
    book.add("one", B, b"{}", 10, 0.0)
    assert at(book, "two", {B}) is None
    assert at(book, "one", {B}) == B
    assert len(book) == 1


@given(st.lists(st.tuples(st.integers(0, 9), st.sampled_from([A, B]), st.integers(1, 60)), max_size=60))
def test_the_book_never_has_more_of_a_worker_than_its_cache(added: list[tuple[int, WorkerKey, int]]) -> None:
    book = EmbeddingBook(100 * EMBEDDING_BYTES_PER_TOKEN)
    sizes: dict[str, int] = {}
    for image, worker, tokens in added:
        book.add(str(image), worker, b"{}", tokens, 0.0)
        sizes[str(image)] = tokens
        held = [image for image in sizes if at(book, image) == worker]
        assert sum(sizes[image] for image in held) <= 100
        assert at(book, str(image)) == worker
    assert len(book) == sum(at(book, image) is not None for image in sizes)


def test_an_answer_is_used_again_for_a_while() -> None:
    book = EmbeddingBook(100 * EMBEDDING_BYTES_PER_TOKEN)
    book.add("one", A, b"{}", 40, 100.0)
    found = book.find("one", EVERYWHERE.__contains__)
    assert found is not None and found.params == b"{}"
    assert found.is_fresh(100.0 + REUSE_S - 1) and not found.is_fresh(100.0 + REUSE_S)


def test_without_a_cache_nothing_is_remembered() -> None:
    book = EmbeddingBook(0)
    book.add("one", A, b"{}", 1, 0.0)
    assert len(book) == 0


def test_tokens_of_an_image_grow_with_its_size() -> None:
    assert estimated_image_tokens(1, 1) == 1
    assert estimated_image_tokens(28, 28) == 1
    assert estimated_image_tokens(29, 28) == 2
    assert estimated_image_tokens(1024, 1024) == 37 * 37
    assert estimated_image_tokens(100_000, 100_000) == 16_384
    assert not encodes_remotely(256, 256) and encodes_remotely(257, 256)
    assert encodes_remotely(1, 0)
