"""Who may be picked: decode workers whose model is known, suspects last, those tried already not at all."""

from collections import Counter

from pointsman.api.protocol.names import Role
from pointsman.gateway.processor import Model
from pointsman.gateway.types import WorkerKey
from pointsman.serving.block_hashes import chained_block_hashes
from pointsman.serving.ejection import FAILURES_IN_A_ROW
from unit.gateway.fleet_world import INFO, MODEL, World


def test_prefill_workers_and_workers_of_unknown_model_get_no_client_requests() -> None:
    assert World("a", "b", prefill="p").reachable() == {"a", "b"}
    assert World("a", known=False).pick() is None


def test_a_suspect_is_used_only_when_there_is_no_other_and_only_for_a_moment() -> None:
    world = World("a", "b")
    world.fleet.failed(WorkerKey("a"), unreachable=True)
    assert world.reachable() == {"b"}
    assert world.reachable("b") == {"a"}
    world.now_s += 2.1
    assert world.reachable() == {"a", "b"}
    world.now_s += 2.1
    world.fleet.failed(WorkerKey("a"), unreachable=True)
    world.fleet.answered(WorkerKey("a"))
    assert world.reachable() == {"b"}, "the answer is to a request that was there before"
    world.now_s += 4.1
    assert world.reachable() == {"a", "b"}


def test_of_workers_that_fail_at_most_half_are_avoided_and_of_those_out_of_reach_all_but_one() -> None:
    for unreachable, left in ((False, 2), (True, 1)):
        world = World("a", "b", "c")
        for name in "ab":
            for _ in range(FAILURES_IN_A_ROW):
                world.fleet.failed(WorkerKey(name), unreachable=unreachable)
                world.now_s += 0.01
        assert len(world.reachable()) == left
        assert "c" in world.reachable()


def test_workers_of_two_tokenizers_each_get_their_share_of_the_requests() -> None:
    world = World("a", "b", "c", "d")
    other = Model(INFO.model_copy(update={"digest": "other"}), None, text_verified=True, chat_verified=True)
    for name in "ab":
        world.fleet.set_model(WorkerKey(name), other)
    drawn = Counter(model.info.digest for _ in range(400) if (model := world.fleet.draw_model()) is not None)
    assert sum(drawn.values()) == 400
    assert min(drawn.values()) > 100


def test_who_was_tried_is_not_tried_again() -> None:
    world = World("a", "b")
    assert world.reachable("a") == {"b"}
    assert world.pick("a", "b") is None


def test_ids_of_one_tokenizer_never_go_to_a_worker_of_another() -> None:
    world = World("a", "b")
    other = Model(INFO.model_copy(update={"digest": "other"}), None, text_verified=True, chat_verified=True)
    world.fleet.set_model(WorkerKey("b"), other)
    for _ in range(10):
        pick = world.pick(digest=MODEL.digest)
        assert pick is not None
        assert pick.worker.name == "a"


def test_requests_for_an_adapter_go_to_workers_that_have_it() -> None:
    """While a rollout adds one, some workers have it and others would answer 404."""
    world = World("a", "b")
    adapted = Model(INFO.model_copy(update={"adapters": ("french",)}), None, text_verified=True, chat_verified=True)
    world.fleet.set_model(WorkerKey("b"), adapted)
    for _ in range(10):
        pick = world.fleet.pick(prompt_tokens=1, chain=(), digest=None, avoid=(), adapter="french")
        assert pick is not None
        assert pick.worker.name == "b"
        assert world.fleet.draw_model("french") is adapted
    assert world.fleet.pick(prompt_tokens=1, chain=(), digest=None, avoid=(WorkerKey("b"),), adapter="french") is None
    assert world.fleet.draw_model("german") is None


def test_the_worker_that_holds_the_prefix_is_picked() -> None:
    world = World("a", "b", "c")
    prompt = tuple(range(40))
    world.fleet.index.stored_chain(WorkerKey("b"), chained_block_hashes(prompt, 4), parent=None)
    pick = world.pick(tokens=prompt)
    assert pick is not None
    assert (pick.worker.name, pick.choice.chosen.overlap_tokens) == ("b", 40)


def test_prompts_that_prefill_workers_compute_do_not_drive_others_from_a_cached_prefix() -> None:
    chosen = {}
    for prefill in (None, "p"):
        world = World("a", "b", prefill=prefill)
        prompt = tuple(range(40))
        world.fleet.index.stored_chain(WorkerKey("b"), chained_block_hashes(prompt, 4), parent=None)
        world.fleet.book.begin(WorkerKey("b"), prompt_tokens=60, overlap_tokens=0)
        pick = world.pick(tokens=prompt)
        assert pick is not None
        chosen[prefill] = pick.worker.name
    assert chosen == {None: "a", "p": "b"}


def test_a_worker_that_left_is_forgotten_with_its_cache_and_the_last_model_stays_known() -> None:
    world = World("a")
    world.fleet.index.stored_chain(WorkerKey("a"), [1], parent=None)
    world.discover()
    assert world.pick() is None
    assert len(world.fleet.index) == 0
    assert world.fleet.model is not None
    world.discover("a")
    assert world.pick() is None, "a pod that comes back tells its model again"


def test_the_report_holds_the_whole_routable_set_with_what_is_in_flight() -> None:
    world = World("a", prefill="p")
    world.pick()
    report = world.fleet.report("gw-0")
    assert [(e.worker, e.role, e.in_flight) for e in report.endpoints] == [
        ("a", Role.DECODE, 1),
        ("p", Role.PREFILL, 0),
    ]
    assert report.synced
