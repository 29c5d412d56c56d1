"""The dashboards of the chart: of metrics and labels that there are, and unknown where something is."""

import inspect
import json
import re
from itertools import combinations
from typing import Any

import pytest
from charts.dashboards.__main__ import DASHBOARDS, generated
from charts.dashboards.grafana import WIDTH, Annotation, Dashboard, Kind, Panel, model
from charts.dashboards.service import SERVICE

from fixtures.exported import ADDED, exported
from pointsman.api.protocol.names import Role
from pointsman.api.v1alpha1.llmservice import Routing
from pointsman.planner.core.encode import decision as encode_decision
from pointsman.planner.core.layout import inputs as layout_inputs

PANELS = [(board, panel) for board in DASHBOARDS for panel in board.panels]
MARKS = [(board, mark) for board in DASHBOARDS for mark in board.annotations]
SELECTOR = re.compile(r"([a-zA-Z_:][\w:]*)\{([^}]*)\}")
GROUPED = re.compile(r"\b(?:by|on|group_left) \(([^)]*)\)")
LEGEND = re.compile(r"\{\{(\w+)\}\}")


def each(panel: tuple[Dashboard, Panel]) -> str:
    return f"{panel[0].uid}: {panel[1].title}"


def each_mark(mark: tuple[Dashboard, Annotation]) -> str:
    return f"{mark[0].uid}: {mark[1].name}"


def words(text: str) -> set[str]:
    return {word.strip() for word in text.split(",") if word.strip()}


def test_the_committed_files_are_what_the_panels_say() -> None:
    stale = [path.name for path, text in generated().items() if not path.exists() or path.read_text() != text]
    assert not stale, "run 'make dashboards'"
    folder = next(iter(generated())).parent
    assert sorted(path.name for path in folder.iterdir()) == sorted(path.name for path in generated())


@pytest.mark.parametrize("panel", PANELS, ids=each)
def test_every_query_uses_metrics_and_labels_that_are_exported(panel: tuple[Dashboard, Panel]) -> None:
    for query in panel[1].queries:
        assert set(LEGEND.findall(query.legend)) <= known_labels(query.expr), query.legend


def known_labels(expr: str) -> set[str]:
    """The labels of all metrics of an expression, after a check that they are exported."""
    chosen = SELECTOR.findall(expr)
    assert chosen, expr
    assert re.findall(r"\b(?:pointsman_|vllm:)\w+", expr) == [name for name, _ in chosen], "all have braces"
    known: set[str] = set()
    for name, matchers in chosen:
        assert name in exported(), name
        labels = exported()[name] | ADDED
        assert set(re.findall(r"(\w+)(?:=~|!~|!=|=)", matchers)) <= labels, (name, matchers)
        known |= labels
    for group in GROUPED.findall(expr):
        assert words(group) <= known, (expr, group)
    return known


@pytest.mark.parametrize("mark", MARKS, ids=each_mark)
def test_a_mark_is_of_exported_metrics_and_names_its_reason(mark: tuple[Dashboard, Annotation]) -> None:
    shown = mark[1]
    assert known_labels(shown.expr)
    (kept, _) = GROUPED.findall(shown.expr)
    for text in (shown.title, shown.text):
        assert "reason" in LEGEND.findall(text)
        assert set(LEGEND.findall(text)) <= words(kept)
    made = [each for each in model(mark[0])["annotations"]["list"] if each["name"] == shown.name]
    assert [each["target"]["expr"] for each in made] == [shown.expr]


def test_each_state_of_a_role_has_its_number_name_and_colour() -> None:
    (history,) = (panel for _, panel in PANELS if panel.kind is Kind.STATES)
    (query,) = history.queries
    asked = {
        role: number for number, role in re.findall(r'(\d) \* \(pointsman_worker_role\{[^}]*role="(\w+)"', query.expr)
    }
    (made,) = (each for each in model(SERVICE)["panels"] if each["title"] == history.title)
    (mapping,) = made["fieldConfig"]["defaults"]["mappings"]
    assert {each["text"]: number for number, each in mapping["options"].items()} == asked
    assert asked.keys() == {str(role) for role in Role}
    assert len({each["color"] for each in mapping["options"].values()}) == len(asked)


def test_the_planners_numbers_are_asked_for_by_the_names_that_they_have() -> None:
    asked = " ".join(query.expr for _, panel in PANELS for query in panel.queries)
    inputs = set(re.findall(r'pointsman_planner_input\{[^}]*name="(\w+)"', asked))
    numbers = set(re.findall(r'pointsman_planner_routing\{[^}]*name="(\w+)"', asked))
    assert len(inputs) > 8
    written = inspect.getsource(layout_inputs) + inspect.getsource(encode_decision)
    assert {name for name in inputs if f'"{name}":' not in written} == set()
    assert numbers <= {field.alias for field in Routing.model_fields.values()}


@pytest.mark.parametrize("panel", PANELS, ids=each)
def test_a_label_in_a_legend_is_still_there_after_aggregation(panel: tuple[Dashboard, Panel]) -> None:
    for query in panel[1].queries:
        outer = re.match(r"(?:sum|max|count|histogram_quantile)\b(?: by \(([^)]*)\))?", query.expr)
        if outer is not None:
            assert set(LEGEND.findall(query.legend)) <= words(outer[1] or ""), query.expr


@pytest.mark.parametrize("panel", PANELS, ids=each)
def test_a_panel_says_what_it_shows_and_never_makes_a_number_of_what_is_unknown(
    panel: tuple[Dashboard, Panel],
) -> None:
    shown = panel[1]
    assert shown.description.endswith(".")
    assert shown.unit
    for query in shown.queries:
        assert "vector(" not in query.expr
        assert "absent" not in query.expr


@pytest.mark.parametrize("board", DASHBOARDS, ids=lambda board: board.uid)
def test_panels_lie_side_by_side_and_none_on_another(board: Dashboard) -> None:
    made = model(board)
    spots = [panel["gridPos"] for panel in made["panels"]]
    assert len({panel["id"] for panel in made["panels"]}) == len(spots)
    assert all(spot["x"] + spot["w"] <= WIDTH for spot in spots)

    def apart(one: dict[str, Any], other: dict[str, Any]) -> bool:
        beside: bool = one["x"] + one["w"] <= other["x"] or other["x"] + other["w"] <= one["x"]
        above: bool = one["y"] + one["h"] <= other["y"] or other["y"] + other["h"] <= one["y"]
        return beside or above

    assert all(apart(one, other) for one, other in combinations(spots, 2))


@pytest.mark.parametrize("board", DASHBOARDS, ids=lambda board: board.uid)
def test_every_variable_that_is_used_is_defined(board: Dashboard) -> None:
    text = json.dumps(model(board))
    used = set(re.findall(r"\$\{?([a-z]\w*)", text)) - {"__rate_interval", "__interval"}
    assert used <= {"datasource", *(variable.name for variable in board.variables)}
