"""The section on random traces says what is kept, and who wins."""

from typing import Any

import pytest
from bench.planner.dynamo import random_page
from bench.planner.dynamo.configurations import CONFIGURATIONS
from bench.planner.sources import in_dynosim


def run(goodput: float, gpu_hours: float) -> dict[str, Any]:
    return {"goodput": goodput, "gpu_hours": gpu_hours, "changes": 4}


def trace(seed: int, ours: dict[str, Any], dynamo: dict[str, Any]) -> dict[str, Any]:
    """All of Dynamo's configurations are alike, but for the first."""
    first, *others = CONFIGURATIONS
    return {
        "seed": seed, "load": "step", "start_s": 60, "requests": 5000, "planner": in_dynosim(), "ours": ours,
        "dynamo": {first: dynamo, **dict.fromkeys(others, run(0.5, 4.0))}, "causal": {"hold": run(0.9, 2.5)},
    }  # fmt: skip


def section(monkeypatch: pytest.MonkeyPatch, *traces: dict[str, Any]) -> str:
    monkeypatch.setattr(random_page, "read_kept", lambda: {str(each["seed"]): each for each in traces})
    return random_page.section()


def test_nothing_is_said_before_anything_is_measured(monkeypatch: pytest.MonkeyPatch) -> None:
    assert section(monkeypatch) == ""


def test_the_means_are_of_the_same_traces_and_the_cost_is_beside_ours(monkeypatch: pytest.MonkeyPatch) -> None:
    page = section(monkeypatch, trace(9, run(0.9, 2.0), run(0.8, 4.0)), trace(10, run(1.0, 1.0), run(0.6, 4.0)))
    assert "2 traces" in page
    assert "| Pointsman | 0.950 | 0.900 | 1.00× | 4 |" in page
    of_each = f"| Dynamo, best of {len(CONFIGURATIONS)} of each trace | 0.700 | 0.600 | 2.83× | 4 |"
    assert of_each in page  # √(2 · 4)
    assert page.index("| 9 | step") < page.index("| 10 | step")  # by number, not by name
    assert "**0." not in page
    assert "earlier state" not in page


@pytest.mark.parametrize(
    ("dynamo", "marked"),
    [
        (run(0.93, 2.03), "**0.930 / 2.03**"),
        (run(0.93, 2.06), "0.930 / 2.06 |"),  # dearer
        (run(0.905, 1.5), "0.905 / 1.50 |"),  # no more
    ],
)
def test_who_has_clearly_more_for_no_more_is_bold(
    monkeypatch: pytest.MonkeyPatch, dynamo: dict[str, Any], marked: str
) -> None:
    page = section(monkeypatch, trace(1, run(0.9, 2.0), dynamo))
    assert marked in page
    assert page.count("**0.") == marked.startswith("**")


def test_who_has_more_goodput_is_counted_at_any_cost_and_at_ours(monkeypatch: pytest.MonkeyPatch) -> None:
    traces = (
        trace(1, run(0.9, 2.0), run(0.93, 2.03)),  # more for no more
        trace(2, run(0.9, 2.0), run(1.0, 8.0)),  # more, and dearer
        trace(3, run(0.9, 2.0), run(0.905, 8.0)),  # hardly more
        trace(4, run(0.9, 2.0), run(0.8, 1.0)),
    )
    monkeypatch.setattr(random_page, "read_kept", lambda: {str(each["seed"]): each for each in traces})
    lines = random_page.dynamo_wins().splitlines()
    assert lines[0].startswith("On the 4 [traces nobody made it for](#traces-nobody-made-it-for)")
    assert lines[-2:] == [
        "| all, whatever they cost | 3 of 4 | 2 | 0.909 | 0.900 | 1.69× |",
        "| those for at most Pointsman's GPU-hours (2 %) | 1 of 2 | 1 | 0.865 | 0.900 | 0.71× |",
    ]
    monkeypatch.setattr(random_page, "read_kept", lambda: {"3": traces[2]})
    assert random_page.dynamo_wins().rstrip().endswith(" | there is none | | | | |")
    monkeypatch.setattr(random_page, "read_kept", dict)
    assert random_page.dynamo_wins() == ""


def test_figures_of_an_earlier_planner_are_said_to_be(monkeypatch: pytest.MonkeyPatch) -> None:
    page = section(monkeypatch, trace(1, run(0.9, 2.0), run(0.8, 2.0)) | {"planner": "another"})
    assert "of an earlier state" in page
