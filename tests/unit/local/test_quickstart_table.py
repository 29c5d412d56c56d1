"""The live table says what is known, and '-' for what is not."""

from datetime import UTC, datetime, timedelta
from typing import Any

from rich.console import Console

from pointsman.api.protocol.control import WorkerPhase, WorkerState
from pointsman.api.protocol.names import ROLE_LABEL, ROUTABLE_LABEL, Role
from pointsman.api.v1alpha1 import LLMService
from pointsman.api.v1alpha1.plan import Plan
from pointsman.kube.pods import Pod
from pointsman.local.observation import EventView, ServiceView, WorkerView
from pointsman.local.quickstart.table import TrafficView, line, render
from pointsman.local.traffic import Api, PrefillPath, Prompt, Record, summarise

NOW = datetime(2026, 1, 1, tzinfo=UTC)


def service(*, generation: int = 1, observed: int = 1, ready: str = "True", threshold: int | None = None) -> LLMService:
    condition = {
        "type": "Ready", "status": ready, "reason": "AsDesired" if ready == "True" else "WorkersStarting",
        "message": "1 of 2 decode workers", "lastTransitionTime": NOW, "observedGeneration": observed,
    }  # fmt: skip
    return LLMService.model_validate(
        {
            "metadata": {"name": "chat", "namespace": "default", "generation": generation},
            "spec": {"model": {"source": "file:///models/tiny", "servedName": "tiny"}, "worker": {"gpus": 0}},
            "status": {
                "summary": "1P2D", "conditions": [condition],
                "routing": None if threshold is None else {"maxLocalPrefillTokens": threshold},
            },
        }
    )  # fmt: skip


def worker(name: str, *, state: WorkerState | None, ready: str = "True") -> WorkerView:
    metadata = {"name": name, "namespace": "default", "uid": name, "resourceVersion": "1"}
    labels = {ROLE_LABEL: "decode", ROUTABLE_LABEL: "true"}
    status = {"phase": "Running", "podIP": "127.1.1.2", "conditions": [{"type": "Ready", "status": ready}]}
    return WorkerView(Pod.model_validate({"metadata": {**metadata, "labels": labels}, "status": status}), state)


def state(**fields: Any) -> WorkerState:
    known: dict[str, Any] = {
        "worker": "w", "instance": "i", "phase": WorkerPhase.SERVING, "role": Role.DECODE, "in_flight": 7,
        "in_flight_tokens": 70, "queued_prefills": 0, "leases": 0, "block_size": 128, "kv_compatibility": "k",
    }  # fmt: skip
    return WorkerState(**(known | fields))


def plan(sequence: int, *, phase: str, message: str = "why") -> Plan:
    return Plan.model_validate(
        {
            "metadata": {"name": f"chat-{sequence:05}", "namespace": "default", "uid": "u", "resourceVersion": "1"},
            "spec": {
                "serviceRef": {"name": "chat"}, "sequence": sequence, "mode": "Active", "observedAt": NOW,
                "pools": {"prefill": {"replicas": 2}, "decode": {"replicas": 1}},
                "changesLayout": True, "reason": "PrefillShort", "message": message, "expiresAt": NOW,
            },
            "status": {"phase": phase},
        }
    )  # fmt: skip


def shown(view: ServiceView | None, traffic: TrafficView | None = None) -> str:
    console = Console(width=160, record=True, file=open("/dev/null", "w"))  # noqa: SIM115, PTH123
    console.print(render(view, traffic))
    return console.export_text()


def test_a_worker_that_answers_shows_its_own_words_and_one_that_does_not_shows_dashes() -> None:
    view = ServiceView(NOW, service(), workers=(worker("chat-a-0", state=state()), worker("chat-a-1", state=None)))
    rows = [row.split() for row in shown(view).splitlines() if row.startswith("chat-a")]
    assert rows[0] == ["chat-a-0", "Decode", "Serving", "yes", "7", "0", "0", "-"]
    assert rows[1] == ["chat-a-1", "Decode", "Running", "yes", "-", "-", "-", "-"]


def test_a_worker_whose_pod_is_not_ready_is_not_routable_whatever_its_label_says() -> None:
    assert not worker("chat-a-0", state=state(), ready="False").routable
    assert worker("chat-a-0", state=state()).routable


def test_conditions_of_an_older_spec_are_no_news_of_the_new_one() -> None:
    view = ServiceView(NOW, service(generation=2, observed=1))
    assert not view.ready
    assert "Ready unknown" in shown(view)


def test_a_service_that_is_not_ready_says_why() -> None:
    assert "1 of 2 decode workers" in shown(ServiceView(NOW, service(ready="False")))


def test_traffic_shows_failures_paths_and_what_happened_lately() -> None:
    prompt = Prompt(0, Api.CHAT, True, 4, text="a")
    good = Record(prompt, 0.0, 1.0, 200, token_seconds=(0.1, 0.13), path=PrefillPath.REMOTE, finish_reason="stop")
    bad = Record(prompt, 0.0, 1.0, 503, error="HTTP 503")
    traffic = TrafficView(summarise([good, bad]), summarise([good]), 10)
    text = shown(ServiceView(NOW, service()), traffic)
    assert "requests 2 (1 failed), prefill local 0 remote 1" in text
    assert "TTFT p50 100 ms, ITL p50 30 ms worst 30 ms" in text


def test_events_are_shown_with_their_age() -> None:
    event = EventView(NOW - timedelta(seconds=12), "WorkerReady", "llmservice/chat", "chat-a-0 serves as Decode")
    text = shown(ServiceView(NOW, service(), events=(event,)))
    assert "12s" in text
    assert "chat-a-0 serves as Decode" in text


def test_the_newest_plan_is_one_line_with_its_reason_and_phase() -> None:
    plans = (
        plan(1, phase="Completed"),
        plan(2, phase="Executing", message="2P1D keeps 98% without another GPU"),
    )
    text = shown(ServiceView(NOW, service(threshold=640), plans=plans))
    assert "plan chat-00002 Executing: 2P1D, PrefillShort: 2P1D keeps 98% without another GPU" in text
    assert "chat-00001" not in text
    assert "threshold 640 tokens" in text
    assert "threshold" not in shown(ServiceView(NOW, service())), "the planner has published none: nothing is claimed"


def test_a_published_threshold_is_shown_without_any_plan() -> None:
    assert "threshold 640 tokens" in line(ServiceView(NOW, service(threshold=640)), None)


def test_without_a_terminal_the_same_is_one_line() -> None:
    view = ServiceView(NOW, service(), workers=(worker("chat-a-0", state=state()),))
    assert line(view, None) == "1P2D Ready=True AsDesired | 0:Decode serving in flight 7"
    assert line(None, None) == "waiting for the service"
