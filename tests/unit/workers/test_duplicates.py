"""What a prefill worker remembers of requests."""

from pointsman.api.protocol.prefill import PrefillOutcome, PrefillReply
from pointsman.workers.core.duplicates import SeenRequests


def reply(request_id: str) -> PrefillReply:
    return PrefillReply(request_id=request_id, outcome=PrefillOutcome.DONE, prefill_worker="p")


def test_an_answer_is_known_for_as_long_as_its_kv_may_be() -> None:
    seen = SeenRequests(keep_s=30)
    seen.answer(reply("a"), 0)
    seen.answer(reply("b"), 20)
    known = seen.answered("a", 29)
    assert known is not None
    assert (known.reply, known.at_s) == (reply("a"), 0)
    assert seen.answered("a", 30) is None
    assert seen.answered("b", 49) is not None
    assert seen.answered("c", 49) is None


def test_a_cancellation_counts_for_a_request_that_comes_later() -> None:
    seen = SeenRequests(keep_s=30, keep_cancelled=2)
    assert not seen.is_cancelled("a")
    seen.cancel("a", 0)
    assert seen.is_cancelled("a")
    seen.cancel("b", 600)
    assert seen.is_cancelled("a"), "it may lie in the queue for as long as its deadline allows"
    seen.cancel("c", 601)
    seen.cancel("d", 602)
    assert not seen.is_cancelled("a"), "forgotten after many others"
