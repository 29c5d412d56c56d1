"""The benchmark of the request path measures what its rows say, on a load of a few prompts."""

import pytest
from bench.request_path import ours
from bench.request_path.__main__ import COMMAND
from bench.request_path.load import Load
from bench.rows import listed

from pointsman.gateway.core.index import KvIndex

SMALL = Load(workers=4, prompts_per_worker=4, blocks=8, holders=2, finds=50)


def test_ours_measures_every_figure_of_the_rows() -> None:
    figures = ours.measure(SMALL, decisions=20)
    peer = {"full_hit": 1.0, "half_hit": 2.0, "one_block_events": 3.0, "batched_blocks": 4.0, "hashing_us": 5.0}
    found = listed("request_path", COMMAND, [figures], [peer])
    assert all(each.ours > 0 for each in found)
    assert [each.peer for each in found if each.peer is not None] == [1.0, 2.0, 3.0, 4.0, 5.0]
    assert found[0].peer_name == "Dynamo's RadixTree"


def test_the_load_is_the_same_each_time_and_as_large_as_it_says() -> None:
    prompts = SMALL.prompts()
    assert prompts == SMALL.prompts()
    assert (len(prompts), {len(chain) for chain, _ in prompts}) == (8, {8})
    assert {len(set(holders)) for _, holders in prompts} == {2}
    index, _ = ours.filled(SMALL, 3)
    assert index.pairs == 4 * 4 * 8
    for half, (chain, holders) in zip(SMALL.half_hits(), prompts, strict=True):
        assert index.matches(chain) == {ours.key(worker): 8 for worker in holders}
        assert index.matches(half) == {ours.key(worker): 4 for worker in holders}


def test_a_search_that_finds_the_wrong_thing_is_no_figure(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(KvIndex, "matches", lambda _index, _chain: {})
    with pytest.raises(RuntimeError, match="the index found"):
        ours.measure(SMALL, decisions=1)
