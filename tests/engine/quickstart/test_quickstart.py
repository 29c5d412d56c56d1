"""The quick start as a user runs it."""

import asyncio
import json
import os
import signal
import sys
from pathlib import Path

from pointsman.local.memory import processes_with

POINTSMAN = Path(sys.executable).with_name("pointsman")
MARK = "POINTSMAN_TEST_QUICKSTART"


async def start(tmp_path: Path, *arguments: str) -> asyncio.subprocess.Process:
    return await asyncio.create_subprocess_exec(
        POINTSMAN, "quickstart", *arguments,
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
    assert "first token" in told
    assert str(path) in told
    assert processes_with(MARK, str(tmp_path)) == set()


async def test_ctrl_c_ends_everything_that_was_started(tmp_path: Path) -> None:
    running = await start(tmp_path, "--quick")
    assert running.stdout is not None
    async with asyncio.timeout(120):
        while b"KUBECONFIG" not in (line := await running.stdout.readline()):
            assert line, f"it ended with {await running.wait()} before the control plane was there"
    running.send_signal(signal.SIGINT)
    told = (await running.communicate())[0].decode()
    assert running.returncode == 130, told
    assert "interrupted" in told
    assert processes_with(MARK, str(tmp_path)) == set()
