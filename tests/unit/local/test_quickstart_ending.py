"""How a quick start ends: what stays running, and what it says to type next."""

import asyncio
import io
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from pointsman.local.errors import LocalError
from pointsman.local.quickstart import command, run
from pointsman.local.quickstart.narrator import Narrator
from pointsman.local.quickstart.options import Options
from pointsman.local.quickstart.run import QuickStart
from pointsman.local.typed_command import typed_command


class Cluster:
    """Starts, and does not take the chart."""

    def __init__(self, *_given: Any, **_named: Any) -> None:
        self.stopped = False
        self.kubeconfig = Path("/clusters/quickstart/admin.kubeconfig")
        self.kubectl_path = Path("/programs/kubectl")
        self.ends_with: BaseException = LocalError("the chart was not installed")

    def start(self) -> None: ...

    def install(self) -> None:
        raise self.ends_with

    def stop(self) -> None:
        self.stopped = True


@pytest.fixture
def cluster(monkeypatch: pytest.MonkeyPatch) -> Cluster:
    made = Cluster()
    monkeypatch.setattr(run, "LocalCluster", lambda *_given, **_named: made)
    monkeypatch.setattr(run, "ensure_engine_environment", lambda **_named: None)
    monkeypatch.setattr(run, "ensure_model", lambda *_given, **_named: Path("/models/tiny"))
    return made


async def ended(*, keep: bool) -> QuickStart:
    """A quick start that has failed. Raises what else ended it."""
    made = QuickStart(Options(keep=keep), Narrator(Console(quiet=True), stages=9), started_s=0.0)
    with pytest.raises(LocalError):
        await made.run()
    made.report.failures.append("the chart was not installed")
    return made


async def test_a_run_that_fails_is_kept_where_that_was_asked_for_and_says_where_to_look(cluster: Cluster) -> None:
    failed = await ended(keep=True)
    text = "\n".join(command._next_steps(failed))
    assert failed.left_running
    assert not cluster.stopped
    assert not failed.report.passed
    assert "export PATH=/programs:$PATH KUBECONFIG=/clusters/quickstart/admin.kubeconfig" in text
    assert "/clusters/quickstart/logs" in text
    assert "uv run" not in text  # a computer need not have uv
    assert f"{typed_command()} local down quickstart" in text
    assert "kubectl get events --sort-by=.metadata.creationTimestamp" in text
    assert "local down quickstart" in text
    assert "None" not in text, "there is no gateway yet"


async def test_a_run_that_fails_is_gone_where_nothing_was_to_be_kept(cluster: Cluster) -> None:
    failed = await ended(keep=False)
    assert not failed.left_running
    assert cluster.stopped
    assert 'ARGS="--keep"' in command._next_steps(failed)[-1]


async def test_a_run_that_is_interrupted_is_gone_though_it_was_to_be_kept(cluster: Cluster) -> None:
    cluster.ends_with = asyncio.CancelledError()
    made = QuickStart(Options(keep=True), Narrator(Console(quiet=True), stages=9), started_s=0.0)
    with pytest.raises(asyncio.CancelledError):
        await made.run()
    assert cluster.stopped
    assert not made.left_running


async def test_what_was_seen_last_is_printed_whole_above_the_report(cluster: Cluster, tmp_path: Path) -> None:
    failed = await ended(keep=False)
    failed.report.failures = [
        "3 decode workers did not happen within 120 s\n  condition Ready=False WorkersStarting: 2"
    ]
    text = io.StringIO()
    command._close(Console(file=text, width=100), failed, tmp_path / "report.json", explain=False)
    above, _, report = text.getvalue().partition("Report\n")
    assert "condition Ready=False WorkersStarting" in above
    assert "3 decode workers did not happen within 120 s" in report and "WorkersStarting" not in report
