"""A request that kills workers kills two, and one that fails everywhere is given up."""

from hypothesis import given
from hypothesis import strategies as st

from pointsman.gateway.core.moves import AnswerMoves, AttemptEnd, MoveLimits, RequestMoves
from pointsman.gateway.types import WorkerKey

LIMITS = MoveLimits(max_attempts=8, max_moves=3)


def failed(moves: AnswerMoves, worker: str, end: AttemptEnd) -> str | None:
    return moves.failed(WorkerKey(worker), worker, end)


def test_the_second_death_is_the_last_also_of_one_worker_that_came_back() -> None:
    for second in ("a", "b"):
        moves = RequestMoves(LIMITS).for_answer()
        assert failed(moves, "a", AttemptEnd.DIED) is None
        over = failed(moves, second, AttemptEnd.DIED)
        assert over is not None
        assert over.startswith("2 workers failed while answering this request (a")
        assert moves.killed


def test_a_worker_that_is_still_dying_dies_once() -> None:
    """Its socket takes connections for a moment after its streams broke."""
    moves = RequestMoves(LIMITS).for_answer()
    assert failed(moves, "a", AttemptEnd.DIED) is None
    for _ in range(5):
        assert failed(moves, "a", AttemptEnd.LOST) is None
    assert not moves.killed
    over = failed(moves, "b", AttemptEnd.LOST)
    assert over is not None
    assert "2 workers failed while answering this request (a, b)" in over


def test_a_prompt_that_kills_workers_before_they_answer_kills_two() -> None:
    moves = RequestMoves(LIMITS).for_answer()
    assert failed(moves, "a", AttemptEnd.LOST) is None
    assert failed(moves, "a", AttemptEnd.LOST) is None
    assert failed(moves, "b", AttemptEnd.LOST) is not None


def test_answers_of_one_request_share_its_deaths_but_not_the_death_of_one_worker_that_all_were_at() -> None:
    request = RequestMoves(LIMITS)
    answers = [request.for_answer() for _ in range(4)]
    assert [failed(answer, "a", AttemptEnd.DIED) for answer in answers] == [None] * 4
    assert failed(answers[0], "b", AttemptEnd.DIED) is not None
    assert failed(answers[1], "c", AttemptEnd.FAILED) is not None, "the others end as well"


def test_prefill_workers_that_died_with_the_prompt_count_in_place_of_the_worker_that_reports_them() -> None:
    moves = RequestMoves(LIMITS).for_answer()
    assert moves.failed(WorkerKey("a"), "a", AttemptEnd.DIED, ["prefill-0"]) is None
    assert moves.deaths == 1
    over = moves.failed(WorkerKey("b"), "b", AttemptEnd.DIED, ["prefill-1"])
    assert over is not None
    assert over.startswith("2 workers failed while answering this request (prefill-0, prefill-1)")
    both = RequestMoves(LIMITS).for_answer()
    assert both.failed(WorkerKey("a"), "a", AttemptEnd.DIED, ["prefill-0", "prefill-1"]) is not None
    assert both.killed


@given(st.lists(st.sampled_from(list(AttemptEnd)), min_size=8, max_size=20))
def test_whatever_happens_the_limits_hold(ends: list[AttemptEnd]) -> None:
    moves = RequestMoves(LIMITS).for_answer()
    for number, end in enumerate(ends):
        over = failed(moves, f"w{number}", end)
        before = ends[: number + 1]
        begun = sum(one is not AttemptEnd.NOT_BEGUN for one in before)
        dead = sum(one in (AttemptEnd.DIED, AttemptEnd.LOST) for one in before)  # each at another worker
        assert (over is not None) == (dead >= 2 or begun > 3 or number + 1 >= 8)
        if over is not None:
            return
