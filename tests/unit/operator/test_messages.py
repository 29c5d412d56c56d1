"""The operator's texts: Events report outcomes, and the core builds no sentence outside of its messages."""

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

from pointsman.api.protocol.names import Role
from pointsman.operator import core
from pointsman.operator.core import actions as act
from pointsman.operator.core.snapshot import DrainReason

WORKER = {"worker": "chat-7850d6c5d-0", "uid": "u", "why": "a reason"}


@pytest.mark.parametrize(
    ("action", "outcome"),
    [
        (
            act.VerifyWorker(**WORKER, url="", role=Role.PREFILL, partner_url="", partner="chat-7850d6c5d-1"),
            "chat-7850d6c5d-0 verified as prefill worker: chat-7850d6c5d-1 pulled its KV",
        ),
        (
            act.AskDrain(**WORKER, url="", reason=DrainReason.SCALE_DOWN),
            "chat-7850d6c5d-0 stopped accepting new requests (ScaleDown)",
        ),
        (
            act.GiveRole(**WORKER, url="", role=Role.DECODE, prefill_token_budget=1),
            "chat-7850d6c5d-0 assigned role decode",
        ),
    ],
)
def test_an_event_reports_what_happened_and_reads_alone(action: act.Action, outcome: str) -> None:
    assert action.outcome() == outcome


def test_the_core_builds_no_sentence_outside_of_its_messages() -> None:
    folder = Path(next(iter(core.__path__)))
    modules = (path for path in folder.rglob("*.py") if "messages" not in path.parts)
    assert {f"{path.relative_to(folder)}: {text}" for path in modules for text in _sentences(path)} == set()


def _sentences(path: Path) -> Iterator[str]:
    """Text of three words or more, but no docstrings, quoted types and configuration of NATS."""
    if path.name in ("nats_config.py", "nats_logins.py", "nats_claims.py"):
        return
    tree = ast.parse(path.read_text(encoding="utf-8"))
    skipped = {id(node.value) for node in ast.walk(tree) if isinstance(node, ast.Expr)}
    for node in ast.walk(tree):
        text = node.value if isinstance(node, ast.Constant) and id(node) not in skipped else None
        if isinstance(text, str) and len(text.split()) > 2 and " | " not in text:
            yield text
