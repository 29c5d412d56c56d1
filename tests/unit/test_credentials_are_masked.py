"""User and password of a URL appear in no log, condition, Event, error or output of any process."""

import io
import json
import logging
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, cast

import pytest
from pydantic import Field, SecretStr

from pointsman.api.v1alpha1.conditions import Condition, ConditionStatus
from pointsman.api.v1alpha1.plannerpolicy import PlannerPolicySpec
from pointsman.api.v1alpha1.strict import StrictError
from pointsman.kube.client import Kube
from pointsman.kube.events import EventRecorder, Reference
from pointsman.operator.core.nats_logins import Login
from pointsman.operator.errors import StreamNotDeleted
from pointsman.operator.streams import PrefillStreams
from pointsman.planner.errors import PlannerError, PrometheusFailed
from pointsman.planner.prometheus import Prometheus
from pointsman.planner.replay import record_command
from pointsman.process.arguments import CommandParser
from pointsman.process.errors import BadSettings
from pointsman.process.logs import configure_logs, configure_logs_of_a_guest
from pointsman.process.settings import ProcessSettings
from pointsman.workers.errors import QueueUnavailable
from pointsman.workers.nats_link import NatsLink
from pointsman.workers.settings import WorkerSettings
from unit.kube.event_server import ApiServer

SECRET = "s3cr3tPW"
NATS = f"nats://worker:{SECRET}@127.0.0.1:9"
PROMETHEUS = f"http://planner:{SECRET}@127.0.0.1:9"
SERVICE = Reference("pointsman.dev/v1alpha1", "LLMService", "team", "llama", "u1")


def assert_masked(text: object) -> None:
    assert SECRET not in str(text)
    assert "***@" in str(text)


@pytest.mark.parametrize("form", ["json", "text"])
@pytest.mark.parametrize("configure", [configure_logs, configure_logs_of_a_guest])
def test_no_log_line_shows_them(
    configure: Any, form: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    written = io.StringIO()
    monkeypatch.setattr("sys.stderr", written)
    root, ours = logging.getLogger(), logging.getLogger("pointsman")
    before = root.handlers, root.level, ours.handlers, ours.propagate, ours.level
    try:
        configure("info", form, {"nats": NATS})
        log = logging.getLogger("pointsman.test")
        log.info("connected to %s", NATS, extra={"from": PROMETHEUS})
        try:
            raise OSError(f"{NATS} refused")
        except OSError:
            log.exception("no connection")
    finally:
        root.handlers, ours.handlers, ours.propagate = before[0], before[2], before[3]
        root.setLevel(before[1])
        ours.setLevel(before[4])
    assert_masked(written.getvalue())
    if form == "json":
        assert [json.loads(line)["nats"] for line in written.getvalue().splitlines()] == ["nats://***@127.0.0.1:9"] * 2


def test_no_condition_shows_them() -> None:
    made = Condition(
        type="Ready",
        status=ConditionStatus.FALSE,
        reason="NatsUnreachable",
        message=f"w-0 cannot reach NATS at {NATS}",
        last_transition_time=datetime.now(UTC),
    )
    assert made.message == "w-0 cannot reach NATS at nats://***@127.0.0.1:9"


async def test_no_event_shows_them() -> None:
    server = ApiServer()
    recorder = EventRecorder(cast(Kube, server), controller="pointsman.dev/operator", instance="operator-0")
    recorder.record(SERVICE, "NatsUnreachable", f"{NATS} does not answer")
    await recorder.flush()
    assert server.notes == ["nats://***@127.0.0.1:9 does not answer"]


def test_no_refused_setting_shows_them() -> None:
    class Settings(ProcessSettings):
        nats_url: str = Field(pattern="^tls://")
        password: SecretStr | None = None

    with pytest.raises(BadSettings) as refused:
        Settings.read(["--nats-url", NATS])
    assert_masked(refused.value)


def test_no_refused_argument_shows_them(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        CommandParser(prog="pointsman").parse_args([NATS])
    assert_masked(capsys.readouterr().err)


def test_no_refused_field_of_a_policy_shows_them() -> None:
    with pytest.raises(StrictError) as refused:
        PlannerPolicySpec.from_document({"metrics": {"source": "Prometheus", "prometheusUrl": f"{PROMETHEUS}?query"}})
    assert_masked(refused.value)


def test_no_error_of_the_planner_shows_them() -> None:
    with pytest.raises(PrometheusFailed) as failed:
        Prometheus(PROMETHEUS, 1.0).samples_now("up", 0.0)
    assert str(failed.value).startswith("http://***@127.0.0.1:9 cannot be reached: ")
    assert_masked(failed.value)
    assert_masked(PlannerError(f"{PROMETHEUS} is gone"))


def test_a_recording_shows_them_neither_in_its_progress_nor_in_its_error(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "trace.jsonl"
    assert record_command.main(["--prometheus", PROMETHEUS, "--service", "chat", "--out", str(out)]) == 2
    said = capsys.readouterr()
    assert_masked(said.err)
    assert SECRET not in said.out


def test_no_error_of_a_worker_without_nats_shows_them() -> None:
    settings = WorkerSettings.model_construct(nats_url=NATS)
    with pytest.raises(QueueUnavailable) as refused:
        _ = NatsLink(settings).client
    assert_masked(refused.value)


async def test_no_error_of_a_stream_that_cannot_be_deleted_shows_them() -> None:
    with pytest.raises(StreamNotDeleted) as failed:
        await PrefillStreams(NATS, Login("operator", "password"))._delete("prefill-1")
    assert_masked(failed.value)
