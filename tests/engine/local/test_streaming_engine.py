"""A run of the streaming benchmark against its own local engine has every answer in full.

How that engine admits prompts is the affair of ``tests/unit/local/test_admission_scheduler.py``.
"""

import json
from pathlib import Path

import pytest

from pointsman.local.engine.environment import EngineEnvironment
from pointsman.local.streaming.command import main


@pytest.mark.timeout(240)
def test_a_run_with_a_budget_reports_every_request(engine_environment: EngineEnvironment, tmp_path: Path) -> None:
    assert engine_environment.python.exists()
    path = tmp_path / "run.json"
    knobs = ["--model-size", "tiny", "--max-batch-size", "4", "--prefill-max-batch-size", "8"]
    mix = ["--prompt", "Hello", "--prompt-repeats", "1,1,64", "--unique-prompts", "--num-requests", "9"]
    ends = ["--prefill-max-tokens", "32", "--max-new-tokens", "8", "--no-stop-on-eos", "--json", str(path)]
    assert main(["streaming", *mix, *knobs, *ends]) == 0
    found = json.loads(path.read_text())["figures"]
    assert (found["requests"], found["failed"], found["completion_tokens"]) == (9, 0, 72)
    assert found["itl"]["count"] > 0 and found["throughput"] > 0
