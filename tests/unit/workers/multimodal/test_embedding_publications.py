"""Which embeddings can be fetched from an encode worker."""

from itertools import count

from pointsman.workers.multimodal.exchange.publications import HeldBytes, Outstanding, Publication, RequestKeys


def test_each_request_publishes_its_items_under_keys_of_its_own() -> None:
    numbers = count()
    keys = RequestKeys(lambda: f"key {next(numbers)}")
    assert keys.publish("one", ["a", "b", "a"]) == [Publication("one", "a", "key 0"), Publication("one", "b", "key 1")]
    assert keys.publish("one", ["a", "b", "a"]) == [], "it was preempted and begins again"
    assert keys.publish("two", ["a"]) == [Publication("two", "a", "key 2")]
    assert keys.finished("one") == {"a": "key 0", "b": "key 1"}
    assert keys.finished("one") == {}
    assert keys.finished("two") == {"a": "key 2"}


def test_an_item_is_published_in_the_step_that_has_it() -> None:
    outstanding = Outstanding()
    one, two, other = (Publication(*each) for each in (("one", "a", "0"), ("two", "a", "1"), ("two", "b", "2")))
    outstanding.add([one, two, other])
    assert outstanding.computed({"a", "c"}) == [one, two]
    assert outstanding.computed({"a"}) == []
    outstanding.finished({"two"})
    assert len(outstanding) == 0, "an aborted request leaves nothing"


def test_the_oldest_embeddings_go_when_there_is_no_memory_for_a_new_one() -> None:
    held = HeldBytes(100, timeout_s=30.0)
    assert held.put("a", 40, 0.0) == []
    assert held.put("b", 40, 1.0) == []
    assert held.put("c", 40, 2.0) == ["a"]
    assert held.put("d", 90, 3.0) == ["b", "c"]
    assert held.put("e", 500, 4.0) == ["d"], "one that is larger than all has room for itself alone"


def test_what_the_server_has_dropped_by_itself_counts_no_more() -> None:
    held = HeldBytes(100, timeout_s=30.0)
    held.put("a", 90, 0.0)
    assert held.put("b", 90, 30.0) == []
