"""How the planner's process begins."""

import gc

import pytest

from pointsman.planner import __main__ as entry


def test_the_garbage_collector_skips_what_modules_made(monkeypatch: pytest.MonkeyPatch) -> None:
    """A full collection of them stops all threads, the event loop's too, for half of what a look may stall it."""
    skipped: list[int] = []
    monkeypatch.setattr(entry, "run_process", lambda *_: skipped.append(gc.get_freeze_count()))
    before = gc.get_freeze_count()
    try:
        entry.main()
    finally:
        if not before:
            gc.unfreeze()
    assert skipped[0] - before > 50_000
