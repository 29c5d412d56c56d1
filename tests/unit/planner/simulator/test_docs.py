"""The Python in docs/planner/simulator.md runs as it stands there."""

import re
from pathlib import Path

import pytest

PAGE = Path(__file__).parents[4] / "docs" / "planner" / "simulator.md"


@pytest.fixture
def examples() -> list[str]:
    return re.findall(r"```python\n(.*?)```", PAGE.read_text(), re.DOTALL)


def test_the_example_of_a_service_runs(examples: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    exec(compile(examples[-1], str(PAGE), "exec"), {})
    attainment, gpu_hours, switches = capsys.readouterr().out.split()
    assert 0 < float(attainment) <= 1
    assert float(gpu_hours) > 0
    assert int(switches) >= 0


def test_the_example_of_an_elastic_group_runs(examples: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    exec(compile(examples[0], str(PAGE), "exec"), {})
    attainment, gpu_hours, peak_instances, *_ = capsys.readouterr().out.split()
    assert 0 < float(attainment) <= 1
    assert float(gpu_hours) > 0
    assert 2 <= int(peak_instances) <= 8
