"""The live table: who does what right now, as a rich renderable, and as one line where there is no terminal."""

from collections.abc import Sequence
from dataclasses import dataclass

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from pointsman.api.protocol.names import Role
from pointsman.api.v1alpha1.conditions import ConditionType
from pointsman.api.v1alpha1.plan import Plan
from pointsman.local.observation import ServiceView, WorkerView
from pointsman.local.traffic import Latency, Summary

_ROLE_STYLE = {Role.PREFILL: "cyan", Role.DECODE: "green", Role.ENCODE: "magenta", None: "dim"}
_SHOWN_EVENTS = 5


@dataclass(frozen=True, slots=True)
class TrafficView:
    """The client's side: everything so far, and what ended within the last ``window_seconds``."""

    total: Summary
    lately: Summary
    window_seconds: float


def render(view: ServiceView | None, traffic: TrafficView | None) -> RenderableType:
    """The table for a terminal; ``view`` None while the cluster cannot be seen."""
    if view is None or view.service is None:
        return Text("waiting for the service …", style="dim")
    parts: list[RenderableType] = [_headline(view)]
    parts += [Text(told, overflow="ellipsis", no_wrap=True) for told in (_threshold(view), _newest_plan(view)) if told]
    parts.append(_workers(view))
    if traffic is not None:
        parts.append(_traffic(traffic))
    if view.events:
        parts.append(_events(view))
    return Group(*parts)


def line(view: ServiceView | None, traffic: TrafficView | None) -> str:
    """The same in one line, for logs."""
    if view is None or view.service is None:
        return "waiting for the service"
    parts = [f"{view.service.status.summary or '?'} {_ready_reason(view)}"]
    for worker in view.workers:
        ordinal = worker.name.rpartition("-")[2]
        parts.append(f"{ordinal}:{_role(worker)} {worker.doing.lower()} in flight {_known(worker, 'in_flight')}")
    parts += [_threshold(view), _newest_plan(view)]
    if traffic is not None:
        parts.append(_traffic_line(traffic))
    return " | ".join(part for part in parts if part)


def plan_line(plan: Plan) -> str:
    """A plan as a person reads it: what it wants, why, and how far it is."""
    name = plan.metadata.name
    phase = plan.status.phase.value if plan.status.phase is not None else "new"
    return f"plan {name} {phase}: {plan.spec.target_in_words}, {plan.spec.reason}: {plan.spec.message}"


def _headline(view: ServiceView) -> Text:
    assert view.service is not None
    summary = view.service.status.summary or "starting"
    title = (f"{view.service.metadata.name}  {summary}", "bold")
    headline = Text.assemble(title, f"  {_ready_reason(view)}", overflow="ellipsis", no_wrap=True)
    condition = view.condition(ConditionType.READY)
    if condition is not None and not view.ready:
        headline.append(f": {condition.message}", "dim")
    return headline


def _threshold(view: ServiceView) -> str:
    """Which prompts go to the prefill workers; empty while the planner has published none."""
    routing = view.service.status.routing if view.service is not None else None
    if routing is None or routing.max_local_prefill_tokens is None:
        return ""
    return f"threshold {routing.max_local_prefill_tokens} tokens: longer prompts go to prefill workers"


def _newest_plan(view: ServiceView) -> str:
    newest = max(view.plans, key=lambda plan: plan.spec.sequence, default=None)
    return "" if newest is None else plan_line(newest)


def _ready_reason(view: ServiceView) -> str:
    condition = view.condition(ConditionType.READY)
    return "Ready unknown" if condition is None else f"Ready={condition.status} {condition.reason}"


def _workers(view: ServiceView) -> Table:
    table = Table(box=None, pad_edge=False, header_style="dim")
    for column in ("worker", "role", "phase", "routable"):
        table.add_column(column)
    for column in ("in flight", "queued", "leases", "KV used"):
        table.add_column(column, justify="right")
    for worker in view.workers:
        usage = None if worker.state is None else worker.state.kv_usage
        table.add_row(
            worker.name,
            Text(_role(worker), style=_ROLE_STYLE[worker.role]),
            worker.doing,
            "yes" if worker.routable else "no",
            _known(worker, "in_flight"),
            _known(worker, "queued_prefills"),
            _known(worker, "leases"),
            "-" if usage is None else f"{usage:.0%}",
        )
    return table


def _role(worker: WorkerView) -> str:
    return "no role" if worker.role is None else worker.role.value


def _known(worker: WorkerView, field: str) -> str:
    return "-" if worker.state is None else str(getattr(worker.state, field))


def _traffic(traffic: TrafficView) -> Text:
    return Text(_traffic_line(traffic), style="yellow" if traffic.total.failed_requests == 0 else "bold red")


def _traffic_line(traffic: TrafficView) -> str:
    total, lately = traffic.total, traffic.lately
    return (
        f"requests {total.requests} ({total.failed_requests} failed), prefill local {total.local_prefills} "
        f"remote {total.remote_prefills}; last {traffic.window_seconds:.0f} s: "
        f"TTFT p50 {_ms(lately.ttft.p50_ms)}, ITL p50 {_ms(lately.itl.p50_ms)} worst {_ms(lately.itl.worst_ms)}"
    )


def _events(view: ServiceView) -> Table:
    table = Table(box=None, pad_edge=False, header_style="dim")
    table.add_column("age", min_width=5, no_wrap=True)
    table.add_column("event", min_width=15, no_wrap=True)  # the message gives way, not the reason
    table.add_column("message", overflow="ellipsis", no_wrap=True)
    for event in view.events[-_SHOWN_EVENTS:]:
        age_seconds = max(0.0, (view.at - event.at).total_seconds())
        table.add_row(f"{age_seconds:.0f}s", event.reason, event.note)
    return table


def _ms(value: float | None) -> str:
    return "-" if value is None else f"{value:.0f} ms"


def latency_table(rows: Sequence[tuple[str, Latency, Latency]]) -> Table:
    """Several set-ups side by side: name, ITL of the streams, TTFT of the long prompts."""
    table = Table(box=None, pad_edge=False, header_style="dim")
    table.add_column("", no_wrap=True)
    for column in ("ITL p50", "ITL p99", "ITL worst", "TTFT p50"):
        table.add_column(column, justify="right")
    for name, itl, ttft in rows:
        table.add_row(name, _ms(itl.p50_ms), _ms(itl.p99_ms), _ms(itl.worst_ms), _ms(ttft.p50_ms))
    return table
