"""Dashboards as Grafana reads them, from what a person writes: rows of panels, panels of queries.

Source of the form: Grafana's dashboard JSON model (schema version 39, Grafana 10.3 and newer). What is unknown is a
gap, never 0.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Any, Final

WIDTH: Final = 24
HEIGHT: Final = 8
UNKNOWN: Final = "unknown"
NOTHING: Final = "none seen"
ANNOTATION_STEP: Final = "30s"  # at least: marks that are no further apart are one
_STATE_COLOURS: Final = ("blue", "orange", "purple", "green")
_SCHEMA_VERSION: Final = 39
_DATASOURCE: Final = {"type": "prometheus", "uid": "${datasource}"}


class Kind(StrEnum):
    """How a panel shows its queries."""

    LINES = "lines"
    STACKED = "stacked"  # lines on top of each other: parts of a whole
    BARS = "bars"  # on top of each other: counts of things that happen now and then
    NAMES = "names"  # the legends of the series that there are now
    STATES = "states"  # a bar for each series, in the colour of the state that its value stands for


@dataclass(frozen=True, slots=True)
class Query:
    """One PromQL expression. ``legend`` names labels as ``{{label}}``; ``dashed``: what was promised or told."""

    expr: str
    legend: str
    dashed: bool = False


@dataclass(frozen=True, slots=True)
class Panel:
    """``unit`` is one of Grafana's; what is above ``worse_above`` is red.

    ``empty`` is what stands there without any series: unknown, unless the panel shows what happens now and then.
    ``states``: of ``Kind.STATES``, what the values 1, 2, … stand for.
    """

    title: str
    description: str
    unit: str
    queries: tuple[Query, ...]
    kind: Kind = Kind.LINES
    most: float | None = None
    worse_above: float | None = None
    empty: str = UNKNOWN
    states: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Annotation:
    """Marks in all panels, where ``expr`` is above 0. ``title`` and ``text`` name labels as ``{{label}}``.

    ``expr`` is asked for at each step of the time range, and ``$__interval`` in it is that step.
    """

    name: str
    expr: str
    title: str
    text: str
    colour: str


@dataclass(frozen=True, slots=True)
class Row:
    """Panels side by side."""

    title: str
    panels: tuple[Panel, ...]


@dataclass(frozen=True, slots=True)
class Variable:
    """A choice at the top of the dashboard: the values of a label, as ``label_values(query)`` finds them."""

    name: str
    label: str
    query: str


@dataclass(frozen=True, slots=True)
class Dashboard:
    """One file. ``uid`` is its address in Grafana and stays."""

    uid: str
    title: str
    description: str
    variables: tuple[Variable, ...]
    rows: tuple[Row, ...]
    annotations: tuple[Annotation, ...] = ()

    @property
    def panels(self) -> Iterator[Panel]:
        """All panels, from top to bottom."""
        for row in self.rows:
            yield from row.panels


def model(dashboard: Dashboard) -> dict[str, Any]:
    """The dashboard as Grafana's JSON model."""
    return {
        "uid": dashboard.uid,
        "title": dashboard.title,
        "description": dashboard.description,
        "tags": ["pointsman"],
        "schemaVersion": _SCHEMA_VERSION,
        "version": 1,
        "editable": True,
        "graphTooltip": 1,  # one crosshair through all panels
        "refresh": "30s",
        "time": {"from": "now-1h", "to": "now"},
        "timezone": "",
        "annotations": {"list": [_annotation(annotation) for annotation in dashboard.annotations]},
        "links": [
            {
                "type": "dashboards",
                "title": "Pointsman",
                "tags": ["pointsman"],
                "asDropdown": False,
                "includeVars": True,
                "keepTime": True,
            }
        ],
        "templating": {"list": [_datasource(), *(_variable(variable) for variable in dashboard.variables)]},
        "panels": list(_panels(dashboard.rows)),
    }


def _datasource() -> dict[str, Any]:
    return {"name": "datasource", "label": "Data source", "type": "datasource", "query": "prometheus", "refresh": 1}


def _variable(variable: Variable) -> dict[str, Any]:
    return {
        "name": variable.name,
        "label": variable.label,
        "type": "query",
        "datasource": _DATASOURCE,
        "query": {"qryType": 1, "query": variable.query, "refId": "PrometheusVariableQueryEditor-VariableQuery"},
        "refresh": 2,  # also when the time range changes: services come and go
        "sort": 1,
        "multi": False,
        "includeAll": False,
    }


def _annotation(annotation: Annotation) -> dict[str, Any]:
    return {
        "name": annotation.name,
        "datasource": _DATASOURCE,
        "enable": True,
        "hide": False,
        "iconColor": annotation.colour,
        "target": {"refId": "Anno", "expr": annotation.expr, "interval": ANNOTATION_STEP},
        "titleFormat": annotation.title,
        "textFormat": annotation.text,
        "tagKeys": "",
        "useValueForTime": False,
    }


def _panels(rows: Sequence[Row]) -> Iterator[dict[str, Any]]:
    number, y = 0, 0
    for row in rows:
        number += 1
        yield {"id": number, "type": "row", "title": row.title, "collapsed": False, "panels": [], "gridPos": _at(0, y)}
        y += 1
        width = WIDTH // len(row.panels)
        for index, panel in enumerate(row.panels):
            number += 1
            place = {"x": index * width, "y": y, "w": width, "h": HEIGHT}
            yield {"id": number, "gridPos": place, **_panel(panel)}
        y += HEIGHT


def _at(x: int, y: int) -> dict[str, int]:
    return {"x": x, "y": y, "w": WIDTH, "h": 1}


def _panel(panel: Panel) -> dict[str, Any]:
    references = [chr(ord("A") + index) for index in range(len(panel.queries))]
    instant = panel.kind is Kind.NAMES
    made: dict[str, Any] = {
        "title": panel.title,
        "description": panel.description,
        "datasource": _DATASOURCE,
        "targets": [
            {
                "refId": reference,
                "datasource": _DATASOURCE,
                "editorMode": "code",
                "expr": query.expr,
                "legendFormat": query.legend,
                "instant": instant,
                "range": not instant,
            }
            for reference, query in zip(references, panel.queries, strict=True)
        ],
        "fieldConfig": {
            "defaults": _defaults(panel),
            "overrides": [
                _dashed(reference) for reference, query in zip(references, panel.queries, strict=True) if query.dashed
            ],
        },
    }
    if instant:
        options = {
            "reduceOptions": {"calcs": ["lastNotNull"], "fields": "", "values": False},
            "textMode": "name",
            "colorMode": "none",
            "graphMode": "none",
            "justifyMode": "auto",
            "orientation": "horizontal",
        }
        return {**made, "type": "stat", "options": options}
    if panel.kind is Kind.STATES:
        bars: dict[str, Any] = {
            "mergeValues": True,
            "showValue": "never",
            "alignValue": "left",
            "rowHeight": 0.8,
            "legend": {"displayMode": "list", "placement": "bottom", "showLegend": True},
            "tooltip": {"mode": "single"},
        }
        return {**made, "type": "state-timeline", "options": bars}
    options = {
        "legend": {"displayMode": "table", "placement": "bottom", "showLegend": True, "calcs": ["lastNotNull", "max"]},
        "tooltip": {"mode": "multi", "sort": "desc"},
    }
    return {**made, "type": "timeseries", "options": options}


def _defaults(panel: Panel) -> dict[str, Any]:
    bars = panel.kind is Kind.BARS
    stacked = panel.kind in (Kind.BARS, Kind.STACKED)
    steps: list[dict[str, Any]] = [{"color": "green", "value": None}]
    if panel.worse_above is not None:
        steps.append({"color": "red", "value": panel.worse_above})
    found: dict[str, Any] = {
        "unit": panel.unit,
        "noValue": panel.empty,
        "min": 0,
        "thresholds": {"mode": "absolute", "steps": steps},
    }
    if panel.kind is Kind.STATES:
        states = zip(panel.states, _STATE_COLOURS, strict=False)
        found["mappings"] = [
            {
                "type": "value",
                "options": {
                    str(number): {"text": text, "color": colour, "index": number - 1}
                    for number, (text, colour) in enumerate(states, start=1)
                },
            }
        ]
        found["custom"] = {"fillOpacity": 80, "lineWidth": 0, "spanNulls": False}
    elif panel.kind is not Kind.NAMES:
        found["custom"] = {
            "drawStyle": "bars" if bars else "line",
            "fillOpacity": 60 if bars else 20 if stacked else 0,
            "lineWidth": 1,
            "showPoints": "auto",  # a sample between two gaps is a point, not nothing
            "spanNulls": False,
            "stacking": {"mode": "normal" if stacked else "none", "group": "A"},
            "thresholdsStyle": {"mode": "off" if panel.worse_above is None else "dashed"},
        }
    if panel.most is not None:
        found["max"] = panel.most
    return found


def _dashed(reference: str) -> dict[str, Any]:
    return {
        "matcher": {"id": "byFrameRefID", "options": reference},
        "properties": [
            {"id": "custom.lineStyle", "value": {"fill": "dash", "dash": [8, 6]}},
            {"id": "custom.lineWidth", "value": 2},
            {"id": "custom.fillOpacity", "value": 0},
            {"id": "custom.stacking", "value": {"mode": "none"}},
        ],
    }
