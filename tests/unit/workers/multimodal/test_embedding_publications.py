"""Which embeddings can be fetched from an encode worker."""

from pointsman.workers.multimodal.exchange.publications import EmbeddingCache, Outstanding, Publication
from pointsman.workers.multimodal.transfer.buffers import Embedding


def embedding(size_bytes: int) -> Embedding:
    """One token of this size."""
    return Embedding(1, bytes(size_bytes), bytes(4), bytes(12))


def test_an_item_is_published_once_in_the_step_that_has_it() -> None:
    outstanding = Outstanding()
    outstanding.add([Publication("one", "a"), Publication("two", "a"), Publication("two", "b")])
    assert outstanding.computed({"a", "c"}) == ["a"]
    assert outstanding.computed({"a"}) == []
    outstanding.finished({"two"})
    assert len(outstanding) == 0, "an aborted request leaves nothing"


def test_the_embeddings_used_last_stay_when_there_is_no_memory_for_all() -> None:
    cache = EmbeddingCache(100)
    for item in ("a", "b"):
        cache.put(item, embedding(40))
    assert cache.get("a") == embedding(40)
    cache.put("c", embedding(40))
    assert [item for item in "abc" if cache.get(item)] == ["a", "c"]
    cache.put("a", embedding(10))
    assert cache.size_bytes == 50, "of an item it has the newest"
    cache.put("d", embedding(500))
    assert [item for item in "abcd" if cache.get(item)] == ["d"], "one that is larger than all has room for itself"
    cache.put("e", embedding(1))
    assert cache.size_bytes == 1
