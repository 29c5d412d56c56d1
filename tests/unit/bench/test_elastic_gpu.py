"""The benchmark of the elastic engine on a GPU, where there is none."""

import sys
from pathlib import Path

import pytest
from bench.elastic.gpu.__main__ import exact_programs, main
from bench.rows import RESULTS

ROOT = RESULTS.parents[1]


@pytest.mark.parametrize("device", ["cuda", "cpu"])
def test_all_programs_that_it_runs_are_there(device: str) -> None:
    for module, *_ in exact_programs(device, Path("models")).values():
        path = Path(*module.split(".")).with_suffix(".py")
        assert (ROOT / path).exists() or (ROOT / "tests" / path).exists(), module


def test_without_a_gpu_nothing_is_measured_and_nothing_fails(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    before = (RESULTS / "elastic_gpu.json").read_bytes()
    assert main(["--python", sys.executable, "--output", str(tmp_path)]) == 0
    assert "torch finds no GPU here: nothing is measured" in capsys.readouterr().out
    assert (RESULTS / "elastic_gpu.json").read_bytes() == before
