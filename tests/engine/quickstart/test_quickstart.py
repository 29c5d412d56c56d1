"""The quick start as a user runs it."""

import asyncio
import json
import os
import re
import signal
import sys
from pathlib import Path

import pytest

from pointsman.local.memory import processes_with
from pointsman.local.quickstart.stages import QUICK, TITLES

POINTSMAN = Path(sys.executable).with_name("pointsman")
MARK = "POINTSMAN_TEST_QUICKSTART"


async def start(tmp_path: Path, *arguments: str, command: str = "quickstart") -> asyncio.subprocess.Process:
    return await asyncio.create_subprocess_exec(
        POINTSMAN, command, *arguments,
        stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.STDOUT, env={**os.environ, MARK: str(tmp_path)},
    )  # fmt: skip


async def test_the_quick_form_answers_exactly_by_both_paths_and_leaves_nothing_behind(tmp_path: Path) -> None:
    path = tmp_path / "report.json"
    running = await start(tmp_path, "--quick", "--report", str(path))
    told = (await running.communicate())[0].decode()
    assert running.returncode == 0, told
    report = json.loads(path.read_text())
    assert report["passed"]
    assert report["token_exact"]
    assert report["failed_requests"] == 0
    assert min(report["remote_prefills"], report["local_prefills"]) >= 8
    assert 0 < report["first_token_seconds"] < report["total_seconds"]
    assert report["peak_pss_mib"] > 500
    assert report["worst_itl_ms"] == {"pd": None, "single": None}, "what the quick form does not measure is not claimed"
    titles = [TITLES[key] for key in list(TITLES)[:QUICK]]
    assert re.findall(r"^\[\d/6\] (.*)$", told, re.MULTILINE) == titles
    assert "kubectl" not in told.partition("Report")[0], "commands are shown to those who ask for them"
    assert "First answer" in told
    assert str(path) in told
    assert processes_with(MARK, str(tmp_path)) == set()


async def test_ctrl_c_ends_everything_that_was_started(tmp_path: Path) -> None:
    running = await start(tmp_path, "--quick", "--explain")
    assert running.stdout is not None
    async with asyncio.timeout(120):
        while b"KUBECONFIG" not in (line := await running.stdout.readline()):
            assert line, f"it ended with {await running.wait()} before the control plane was there"
    running.send_signal(signal.SIGINT)
    told = (await running.communicate())[0].decode()
    assert running.returncode == 130, told
    assert "interrupted" in told
    assert processes_with(MARK, str(tmp_path)) == set()


@pytest.mark.verify
@pytest.mark.verify_elastic
@pytest.mark.timeout(600)
async def test_the_elastic_form_shows_groups_that_change_within_three_minutes(
    tmp_path: Path, findings: dict[str, object]
) -> None:
    picture = tmp_path / "groups.svg"
    running = await start(tmp_path, "--picture", str(picture), command="quickstart-elastic")
    told = (await running.communicate())[0].decode()
    assert running.returncode == 0, told
    report = dict(re.findall(r"^  (\w+(?: \w+)?) {2,}(.+?)\s*$", told.partition("Report")[2], re.MULTILINE))
    seconds = int(report["whole run"].removesuffix(" s"))
    answered = re.fullmatch(r"(\d+) of (\d+) have the tokens of one plain server", report["answers"])
    assert answered is not None and answered[1] == answered[2]
    assert report["requests"].endswith("0 failed")
    assert {"1", "2"} <= set(report["prefill"].removeprefix("degrees ").split(", "))
    assert report["scaling"] == "2 -> 3 -> 2 instances under load"
    assert picture.read_text().startswith("<svg")
    assert seconds <= 180
    assert processes_with(MARK, str(tmp_path)) == set()
    findings.update(whole_run_seconds=seconds, answers=int(answered[1]), prefill=report["prefill"])
