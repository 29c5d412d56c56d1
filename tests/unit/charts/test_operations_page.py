"""Who looks up a panel, an alert, a condition or a reason finds it, and no other is there.

Panels are in docs/operate/monitoring.md, alerts in docs/operate/alerts.md, where reasons show in
docs/operate/conditions.md, the rest in docs/operate/operations.md.
"""

import re
from pathlib import Path
from typing import Any

import yaml
from charts.dashboards.__main__ import DASHBOARDS
from charts.dashboards.elastic import ELASTIC
from charts.dashboards.service import SERVICE

from pointsman.api.v1alpha1.conditions import ConditionType, PlannerHealth, Reason
from pointsman.api.v1alpha1.plannerpolicy import PolicyConditionType
from pointsman.operator.core.elastic.status import _SERVES_WITH as SERVES_WITH
from pointsman.operator.core.status import SERVED
from pointsman.planner.core.types import Reason as PlannerReason

ROOT = Path(__file__).parents[3]
PAGE = (ROOT / "docs/operate/operations.md").read_text()
ALERTS = (ROOT / "docs/operate/alerts.md").read_text()
CONDITIONS = (ROOT / "docs/operate/conditions.md").read_text()
RUNBOOKS = (ROOT / "docs/operate/runbooks.md").read_text()
MONITORING = (ROOT / "docs/operate/monitoring.md").read_text()
RULES: list[dict[str, Any]] = [
    rule
    for group in yaml.safe_load((ROOT / "charts/pointsman/files/alerts.yaml").read_text())["groups"]
    for rule in group["rules"]
]


def table(first_heading: str, page: str = PAGE) -> list[list[str]]:
    """The rows of all tables whose first column is headed so, cell by cell."""
    tables = page.split(f"\n| {first_heading} |")[1:]
    lines = [line for found in tables for line in found.split("\n\n", 1)[0].splitlines()[2:]]
    return [[cell.strip() for cell in line.strip("|").split(" | ")] for line in lines]


def words(cell: str) -> list[str]:
    return re.findall(r"`([A-Za-z]+)`", cell)


def first_words(first_heading: str, page: str = PAGE) -> list[str]:
    return [word for row in table(first_heading, page) for word in words(row[0])]


def test_every_alert_is_there_once_with_its_severity() -> None:
    told = {row[0].strip("` "): row[1] for row in table("alert", ALERTS)}
    assert told == {rule["alert"]: rule["labels"]["severity"] for rule in RULES}


def test_every_condition_and_every_reason_is_there_once_and_no_other() -> None:
    assert sorted(first_words("condition")) == sorted(kind.value for kind in ConditionType)
    assert sorted(first_words("reason")) == sorted(str(reason) for reason in Reason)
    assert sorted(first_words("reason of `PlannerHealthy`")) == sorted(str(reason) for reason in PlannerHealth)


def test_every_condition_has_its_reasons_and_every_reason_its_meaning() -> None:
    kinds = [*(kind.value for kind in ConditionType), *(kind.value for kind in PolicyConditionType)]
    assert sorted(first_words("condition", CONDITIONS)) == sorted(kinds)
    assert sorted(first_words("reason", CONDITIONS)) == sorted(str(reason) for reason in Reason)
    of_conditions = {word for row in table("condition", CONDITIONS) for word in words(row[2])}
    failures = {row[0]: set(words(row[1])) for row in table("also on", CONDITIONS)}
    assert of_conditions.union(*failures.values()) - {"Planning"} == {str(reason) for reason in Reason}


def test_failures_show_on_ready_as_the_operator_reports_them() -> None:
    failures = {row[0]: set(words(row[1])) for row in table("also on", CONDITIONS)}
    assert failures["nothing else"] == {str(reason) for reason in SERVED}
    (of_services,) = (reasons for where, reasons in failures.items() if "not of a group" in where)
    assert of_services == {str(reason) for reason in SERVES_WITH} - failures["nothing else"] - {"ObjectRefused"}


def test_reasons_of_decisions_that_it_names_are_reasons() -> None:
    (row,) = (row for row in table("what you see") if "nothing happens" in row[0])
    named = set(re.findall(r"`([A-Z][a-z]+[A-Z][A-Za-z]+|Unsatisfiable)`", row[1]))
    assert len(named) == 3
    assert named <= {str(reason) for reason in PlannerReason}


def test_every_row_of_the_dashboards_of_one_service_or_group_is_described_in_its_order() -> None:
    assert [row[0].strip() for row in table("row", MONITORING)] == [row.title for row in SERVICE.rows]
    assert [row[0].strip() for row in table("row of an elastic group", MONITORING)] == [
        row.title for row in ELASTIC.rows
    ]


def test_every_dashboard_and_every_panel_that_it_quotes_is_one() -> None:
    for board in DASHBOARDS:
        assert f"**{board.title}**" in MONITORING
    titles = {panel.title for board in DASHBOARDS for panel in board.panels}
    titles |= {row.title for row in (*SERVICE.rows, *ELASTIC.rows)} | {board.title for board in DASHBOARDS}
    quoted = set(re.findall(r'"([A-Z][^"]+)"', ALERTS + PAGE + RUNBOOKS))
    quoted -= {"Shadow", "External", "Approved", "Denied"}
    assert len(quoted) > 4
    assert quoted <= titles
