"""The Python in docs/simulator.md runs as it stands there."""

import re
from pathlib import Path

import pytest

PAGE = Path(__file__).parents[4] / "docs" / "simulator.md"


def test_the_example_of_the_page_runs(capsys: pytest.CaptureFixture[str]) -> None:
    (example,) = re.findall(r"```python\n(.*?)```", PAGE.read_text(), re.DOTALL)
    exec(compile(example, str(PAGE), "exec"), {})
    attainment, gpu_hours, switches = capsys.readouterr().out.split()
    assert 0 < float(attainment) <= 1
    assert float(gpu_hours) > 0
    assert int(switches) >= 0
