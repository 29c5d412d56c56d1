"""What vLLM loads in each of its processes."""

import logging
from collections.abc import Iterator

import pytest

from fixtures.workers import settings
from pointsman.process.logs import OURS
from pointsman.workers.vllm.plugin import _configure_logs


@pytest.fixture
def spawned(monkeypatch: pytest.MonkeyPatch) -> Iterator[logging.Logger]:
    """Pointsman's logger in a process that nobody configured."""
    logger = logging.getLogger(OURS)
    before = logger.handlers, logger.propagate, logger.level
    logger.handlers, logger.propagate = [], True  # pytest adds its own handlers to loggers that do not propagate
    monkeypatch.setattr("sys.argv", ["spawned"])
    yield logger
    logger.handlers, logger.propagate = before[:2]
    logger.setLevel(before[2])


def test_a_process_that_vllm_spawned_prints_fields(
    spawned: logging.Logger, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    of_pod = settings("decode-0").model_dump(mode="json", exclude_unset=True, exclude_none=True)
    for name, value in (of_pod | {"control_token": "a-token-of-these-tests"}).items():
        monkeypatch.setenv(f"POINTSMAN_{name.upper()}", str(value))
    _configure_logs()
    logging.getLogger(f"{OURS}.workers").warning("embedding not fetched", extra={"address": "10.0.0.1:1"})
    line = capsys.readouterr().err
    assert '"worker": "decode-0"' in line
    assert '"address": "10.0.0.1:1"' in line


def test_without_a_worker_s_settings_logging_stays_as_it_is(
    spawned: logging.Logger, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("POINTSMAN_WORKER", raising=False)
    _configure_logs()
    assert spawned.handlers == []
