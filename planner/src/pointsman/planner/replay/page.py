"""The HTML report: one file, no script, nothing loaded from anywhere. It is well-formed XML: tests read it."""

from collections.abc import Iterator, Mapping
from html import escape
from typing import Any, Final

from pointsman.planner.replay.axes import clock, clock_unit
from pointsman.planner.replay.comparison import Comparison
from pointsman.planner.replay.pictures import layout_changes, picture
from pointsman.planner.replay.table import at_start, figure_rows, instances_in_words, layout, what_ran

_STYLE: Final = """
:root{color-scheme:light dark;--ink:#24292f;--dim:#57606a;--bg:#fff;--edge:#d0d7de;--soft:#f6f8fa;--bad:#cf222e;--good:#1a7f37}
@media (prefers-color-scheme:dark){:root{--ink:#e6edf3;--dim:#8b949e;--bg:#0d1117;--edge:#30363d;--soft:#161b22;--bad:#ff7b72;--good:#3fb950}}
body{font:15px/1.5 system-ui,sans-serif;color:var(--ink);background:var(--bg);max-width:1000px;margin:2rem auto;padding:0 1rem;overflow-wrap:break-word}
h1{font-size:1.5rem;margin-bottom:.2rem}h2{font-size:1.15rem;margin-top:2rem}p.dim,.dim{color:var(--dim)}
figure{margin:0;overflow-x:auto}figure svg{display:block;width:100%;min-width:800px;height:auto}
table{border-collapse:collapse;width:100%;font-size:14px}th,td{text-align:left;padding:.3rem .6rem;border-bottom:1px solid var(--edge);vertical-align:top}
th[scope=row]{font-weight:inherit}th.sub{padding-left:1.6rem}.n{text-align:right;font-variant-numeric:tabular-nums;white-space:nowrap}
code,pre{background:var(--soft);border-radius:4px;padding:.1rem .3rem}pre{padding:.6rem;overflow:auto}pre.wrap{white-space:pre-wrap}
summary{cursor:pointer}details ul{padding-left:1.2rem}ul.short{columns:16rem}.bad{color:var(--bad)}.good{color:var(--good)}
@media (max-width:640px){body{margin:1rem auto}
.folded thead{display:none}.folded tr{display:flex;flex-wrap:wrap;column-gap:.8rem;border-bottom:1px solid var(--edge);padding:.3rem 0}
.folded th,.folded td{border:0;padding:.1rem 0}.folded th{flex-grow:1}.folded th.sub{padding-left:1rem}.folded td:last-child{flex-basis:100%}}
"""  # noqa: E501 - a style sheet
_MARKS: Final = (
    '<p class="dim">Purple lines are the decisions that changed the layout; their numbers, above the workers, are '
    "those of the table below.</p>"
)
_SUB: Final = ' class="sub"'
_LOADS_NOTHING: Final = "default-src 'none'; style-src 'unsafe-inline'"


def page(document: Mapping[str, Any], comparison: Comparison | None = None) -> str:
    """A replay's document as a page, with what it is against a baseline."""
    trace, policy, simulation = document["trace"], document["policy"], document["simulation"]
    title = f"{policy['name']} on {trace['name']}"
    parts = [
        f"<h1>Replay: {escape(title)}</h1>",
        f'<p class="dim">{escape(_what_ran(trace, simulation))}</p>',
        f'<pre class="wrap">{escape(document["command"])}</pre>',
        *(_compared(comparison) if comparison is not None else ()),
        "<h2>Result</h2>",
        _figures(document),
        "<h2>Over time</h2>",
        _MARKS if layout_changes(document) else "",
        f'<figure tabindex="0" aria-label="Over time">{picture(document, title)}</figure>',
        "<h2>Decisions</h2>",
        _decisions(document),
        "<h2>Policy</h2>",
        f"<pre>{escape(policy['text'])}</pre>",
    ]
    notes = "".join(f"<li>{escape(note)}</li>" for note in trace["notes"])
    if notes:
        parts.append(f"<h2>Assumptions</h2><ul>{notes}</ul>")
    body = "\n".join(parts)
    return (
        '<!DOCTYPE html>\n<html xmlns="http://www.w3.org/1999/xhtml" lang="en"><head><meta charset="utf-8"/>'
        f'<meta http-equiv="Content-Security-Policy" content="{_LOADS_NOTHING}"/>'
        '<meta name="viewport" content="width=device-width, initial-scale=1"/>'
        f"<title>{escape(title)} · pointsman replay</title><style>{_STYLE}</style></head>\n"
        f"<body>\n{body}\n</body></html>\n"
    )


def _compared(found: Comparison) -> Iterator[str]:
    yield f"<h2>Against {escape(found.baseline)}</h2>"
    yield f'<p class="{"bad" if found.worse else "good"}">{found.verdict}</p>'
    yield from (f"<p>{escape(sentence)}</p>" for sentence in found.sentences)
    rows = "".join(
        f'<tr><th scope="row">{name}</th><td class="n">{before}</td><td class="n">{after}</td></tr>'
        for name, before, after in found.rows
    )
    head = '<tr><th></th><th class="n">before</th><th class="n">now</th></tr>'
    yield f"<table><thead>{head}</thead><tbody>{rows}</tbody></table>"


def _what_ran(trace: Mapping[str, Any], simulation: Mapping[str, Any]) -> str:
    requests = f"{trace['requests']} requests in {trace['duration_s'] / 60:.1f} min"
    if "group" in simulation:
        return f"{requests}; {what_ran(simulation)}"
    workers = f"{at_start(simulation)} at the start"
    return (
        f"{requests}; {simulation['model']} on "
        f"{simulation['gpu']}, {simulation['engine']}, TP {simulation['tp']}; {workers}, a new worker takes "
        f"{simulation['startup_s']:g} s; planner: {simulation['planner']}; seed {simulation['seed']}"
    )


def _figures(document: Mapping[str, Any]) -> str:
    rows = "".join(
        f'<tr><th scope="row"{_SUB if name.startswith(" ") else ""}>{escape(name.strip())}</th>'
        f'<td class="n">{escape(value)}</td><td class="dim">{escape(note)}</td></tr>'
        for name, value, note in figure_rows(document)
    )
    return f'<table class="folded"><tbody>{rows}</tbody></table>'


def _decisions(document: Mapping[str, Any]) -> str:
    changes = layout_changes(document)
    if not changes:
        return '<p class="dim">The layout was never changed.</p>'
    end_s = changes[-1]["at_s"]
    rows = "".join(_decision(number, decision, end_s) for number, decision in enumerate(changes, start=1))
    head = f'<tr><th></th><th class="n">at, {clock_unit(end_s)}</th><th>to</th><th>reason</th><th>why</th></tr>'
    return f'<table class="folded"><thead>{head}</thead><tbody>{rows}</tbody></table>'


def _alternative(considered: Mapping[str, Any]) -> str:
    if considered["instances"] is not None:
        return instances_in_words(considered["instances"])
    return f"{considered['prefill']}P{considered['decode']}D"


def _decision(number: int, decision: Mapping[str, Any], end_s: float) -> str:
    inputs = "".join(f"<li>{escape(name)}: {value:g}</li>" for name, value in decision["inputs"].items())
    others = "".join(
        f"<li>{_alternative(a)} ({escape(a['action'])}, {a['gpus']} GPUs): "
        f"{a['expected_attainment']:.1%} expected, serves in {a['lead_s']:.0f} s"
        f"{'; ' + escape(a['rejected_because']) if a['rejected_because'] else ''}</li>"
        for a in decision["alternatives"]
    )
    more = f'<p>Numbers used:</p><ul class="short">{inputs}</ul>'
    more += f"<p>Considered:</p><ul>{others}</ul>" if others else ""
    return (
        f'<tr id="d{number}"><td class="n">{number}</td><td class="n">{clock(decision["at_s"], end_s)}</td>'
        f'<td class="n">{layout(decision)}</td><td>{escape(decision["reason"])}</td>'
        f"<td><details><summary>{escape(decision['message'])}</summary>{more}</details></td></tr>"
    )
