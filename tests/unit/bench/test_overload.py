"""The benchmark of an overload sends the load it says, and counts as in time what it says."""

import pytest
from bench.overload import Outcome, Overload, Speed, outcome, rows

from pointsman.local.traffic import Prompt, Record

LOAD = Overload(burst=2, followers=3, gap=1.5, prompt_tokens=100)
AT = Speed(alone_s=0.5, prompt_s=0.25)


def answered(prompt: Prompt, ttft_s: float) -> Record:
    return Record(prompt, 0.0, ttft_s + 1, status=200, text="x", token_seconds=(ttft_s, ttft_s + 1))


def test_a_burst_comes_at_once_and_the_others_at_their_share_of_capacity() -> None:
    arrivals = LOAD.arrivals(0.2, "seed")
    assert [at_s for at_s, _ in arrivals] == pytest.approx([0, 0, 0.3, 0.6, 0.9])
    assert len({prompt.token_ids for _, prompt in arrivals}) == 5
    assert arrivals == LOAD.arrivals(0.2, "seed")
    assert arrivals != LOAD.arrivals(0.2, "another")
    assert LOAD.bounds == {"pendingTokensPerPrefillWorker": 250}


def test_in_time_is_a_lone_prompt_and_four_more() -> None:
    prompts = LOAD.prompts(4, "seed")
    found = outcome([answered(p, s) for p, s in zip(prompts, (0.5, 1.5, 1.51, 9.0), strict=True)], AT)
    assert found == Outcome(0.5, (0.5, 1.5, 1.51, 9.0))
    with pytest.raises(RuntimeError, match="request 0 was not answered: HTTP 429"):
        outcome([Record(prompts[0], 0.0, 1.0, status=429, error="HTTP 429: overloaded")], AT)


def test_rows_stand_beside_first_in_first_out() -> None:
    fifo, bounded = Outcome(0.2, (1.0, 5.0, 6.0, 7.0, 8.0)), Outcome(0.6, (1.0, 9.0, 1.0, 1.5, 1.2))
    late, followers, longest = rows(LOAD, [fifo], [bounded])
    assert (late.ours, late.peer, late.ratio, late.met) == (0.4, 0.8, 0.5, True)
    assert late.peer_name == "first in, first out"
    assert (followers.ours, followers.peer) == (1.2, 7.0)
    assert (longest.ours, longest.ratio) == (9.0, 1.125)
