"""The bars of the commands that take their time: for a person at a terminal, and for nobody else."""

import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from fixtures.terminal import running_terminal
from pointsman.planner.errors import PrometheusFailed
from pointsman.planner.replay import command, record_command

ROOT = Path(__file__).parents[3]
REPLAY = ["--policy", str(ROOT / "examples" / "policies" / "chat.yaml"), "--trace", "steady:rate=1,duration_s=30"]
RECORD = ["--prometheus", "http://p:9090", "--service", "chat", "--last", "2h", "--out", "made.jsonl"]


@pytest.fixture(autouse=True)
def _plain_surroundings(monkeypatch: pytest.MonkeyPatch) -> None:
    """What is a terminal is not said by the environment that the tests run in."""
    for name in ("FORCE_COLOR", "NO_COLOR", "TTY_COMPATIBLE", "TTY_INTERACTIVE", "COLUMNS"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("TERM", "xterm")


def shown(run: Callable[[], object], monkeypatch: pytest.MonkeyPatch) -> str:
    """What a terminal is told as standard error."""
    with running_terminal() as terminal, monkeypatch.context() as patch:
        patch.setattr(sys, "stderr", terminal.file)
        run()
    return terminal.shown


def history_of(monkeypatch: pytest.MonkeyPatch, chunks: int) -> None:
    """A Prometheus without any series, which fails after so many answers."""
    answered = iter(range(chunks))

    class Server:
        def __init__(self, *_: object, **__: object) -> None: ...

        def samples_now(self, *_: object) -> list[dict[str, Any]]:
            if next(answered, None) is None:
                raise PrometheusFailed("it is gone")
            return []

        def close(self) -> None: ...

    monkeypatch.setattr(record_command, "Prometheus", Server)


@pytest.mark.parametrize(("chunks", "share"), [(4, "100%"), (1, "25%")], ids=["all read", "one of four read"])
def test_a_recording_shows_on_a_terminal_how_much_of_the_history_is_read(
    chunks: int, share: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    history_of(monkeypatch, chunks)
    screen = shown(lambda: record_command.main(RECORD), monkeypatch)
    assert "chat from http://p:9090" in screen
    assert share in screen
    assert "100%" not in screen.replace(share, "")


def test_a_replay_shows_on_a_terminal_how_far_it_is(monkeypatch: pytest.MonkeyPatch) -> None:
    screen = shown(lambda: command.main(REPLAY), monkeypatch)
    assert "chat on steady" in screen
    assert "100%" in screen


@pytest.mark.parametrize(
    ("main", "arguments"), [(record_command.main, RECORD), (command.main, REPLAY)], ids=["record", "replay"]
)
def test_where_there_is_no_terminal_nothing_is_shown_of_a_bar(
    main: Callable[[list[str]], int],
    arguments: list[str],
    monkeypatch: pytest.MonkeyPatch,
    capfd: pytest.CaptureFixture[str],
) -> None:
    history_of(monkeypatch, 4)
    main(arguments)
    err = capfd.readouterr().err
    assert "%" not in err and "\x1b" not in err


def test_a_recording_that_is_interrupted_says_so_and_writes_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def interrupted(*_: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(record_command, "_history", interrupted)
    out = tmp_path / "made.jsonl"
    assert record_command.main([*RECORD[:-1], str(out)]) == 130
    assert capsys.readouterr().err == "pointsman record: interrupted, nothing is written\n"
    assert not out.exists()
