"""The HTML report: one file, no script, nothing loaded from anywhere. It is well-formed XML: tests read it."""

from collections.abc import Mapping, Sequence
from html import escape
from typing import Any, Final

from pointsman.planner.replay.pictures import layout_changes, picture
from pointsman.planner.replay.table import at_start, figure_rows, layout

_STYLE: Final = """
:root{color-scheme:light dark;--ink:#24292f;--dim:#57606a;--bg:#fff;--edge:#d0d7de;--soft:#f6f8fa}
@media (prefers-color-scheme:dark){:root{--ink:#e6edf3;--dim:#8b949e;--bg:#0d1117;--edge:#30363d;--soft:#161b22}}
body{font:15px/1.5 system-ui,sans-serif;color:var(--ink);background:var(--bg);max-width:1000px;margin:2rem auto;padding:0 1rem}
h1{font-size:1.5rem;margin-bottom:.2rem}h2{font-size:1.15rem;margin-top:2rem}p.dim,.dim{color:var(--dim)}svg{max-width:100%;height:auto}
table{border-collapse:collapse;width:100%;font-size:14px}th,td{text-align:left;padding:.3rem .6rem;border-bottom:1px solid var(--edge);vertical-align:top}
td.n{text-align:right;font-variant-numeric:tabular-nums;white-space:nowrap}code,pre{background:var(--soft);border-radius:4px;padding:.1rem .3rem}
pre{padding:.6rem;overflow:auto}summary{cursor:pointer}.bad{color:#cf222e}.good{color:#2da44e}
"""  # noqa: E501 - a style sheet


def page(document: Mapping[str, Any], comparison: Sequence[str] = ()) -> str:
    """A replay's document as a page. ``comparison``: sentences of ``--compare``."""
    trace, policy, simulation = document["trace"], document["policy"], document["simulation"]
    title = f"{policy['name']} on {trace['name']}"
    parts = [
        f"<h1>Replay: {escape(title)}</h1>",
        f'<p class="dim">{escape(_what_ran(trace, simulation))}</p>',
        f"<pre>{escape(document['command'])}</pre>",
        *(f"<p>{escape(sentence)}</p>" for sentence in comparison),
        "<h2>What it came to</h2>",
        _figures(document),
        "<h2>Over time</h2>",
        '<p class="dim">Purple lines are the decisions that changed the layout; their numbers are those of the table '
        "below.</p>",
        picture(document, title),
        "<h2>Decisions</h2>",
        _decisions(document),
        "<h2>Policy</h2>",
        f"<pre>{escape(policy['text'])}</pre>",
    ]
    notes = "".join(f"<li>{escape(note)}</li>" for note in trace["notes"])
    if notes:
        parts.append(f"<h2>What was assumed</h2><ul>{notes}</ul>")
    body = "\n".join(parts)
    return (
        '<!DOCTYPE html>\n<html xmlns="http://www.w3.org/1999/xhtml" lang="en"><head><meta charset="utf-8"/>'
        '<meta name="viewport" content="width=device-width, initial-scale=1"/>'
        f"<title>{escape(title)} · pointsman replay</title><style>{_STYLE}</style></head>\n"
        f"<body>\n{body}\n</body></html>\n"
    )


def _what_ran(trace: Mapping[str, Any], simulation: Mapping[str, Any]) -> str:
    workers = f"{at_start(simulation)} at the start"
    return (
        f"{trace['requests']} requests in {trace['duration_s'] / 60:.1f} min; {simulation['model']} on "
        f"{simulation['gpu']}, {simulation['engine']}, TP {simulation['tp']}; {workers}, a new worker takes "
        f"{simulation['startup_s']:g} s; planner: {simulation['planner']}; seed {simulation['seed']}"
    )


def _figures(document: Mapping[str, Any]) -> str:
    rows = "".join(
        f'<tr><td>{escape(name)}</td><td class="n">{escape(value)}</td><td class="dim">{escape(note)}</td></tr>'
        for name, value, note in figure_rows(document)
    )
    return f"<table><tbody>{rows}</tbody></table>"


def _decisions(document: Mapping[str, Any]) -> str:
    changes = layout_changes(document)
    if not changes:
        return '<p class="dim">The layout was never changed.</p>'
    rows = "".join(_decision(number, decision) for number, decision in enumerate(changes, start=1))
    head = "<tr><th></th><th>at</th><th>to</th><th>reason</th><th>why</th></tr>"
    return f"<table><thead>{head}</thead><tbody>{rows}</tbody></table>"


def _decision(number: int, decision: Mapping[str, Any]) -> str:
    inputs = "".join(f"<li>{escape(name)}: {value:g}</li>" for name, value in decision["inputs"].items())
    others = "".join(
        f"<li>{a['prefill']}P{a['decode']}D ({escape(a['action'])}, {a['gpus']} GPUs): "
        f"{a['expected_attainment']:.1%} expected, serves in {a['lead_s']:.0f} s"
        f"{'; ' + escape(a['rejected_because']) if a['rejected_because'] else ''}</li>"
        for a in decision["alternatives"]
    )
    more = f"<p>Numbers used:</p><ul>{inputs}</ul>" + (f"<p>Considered:</p><ul>{others}</ul>" if others else "")
    return (
        f'<tr id="d{number}"><td class="n">{number}</td><td class="n">{decision["at_s"]:.0f} s</td>'
        f'<td class="n">{layout(decision)}</td><td>{escape(decision["reason"])}</td>'
        f"<td><details><summary>{escape(decision['message'])}</summary>{more}</details></td></tr>"
    )
