"""Which sources a kept run of ours was made with: one of other sources is not one of the present planner.

Texts decide nothing: of the constants the values count, and the planner's messages do not.
"""

import hashlib
from collections.abc import Iterable
from functools import cache
from pathlib import Path

from pointsman.planner import core, simulator
from pointsman.planner.core.tuning import SHIPPED

DYNAMO_POLICY = Path(__file__).parent / "dynamo" / "policy.py"


def digest(paths: Iterable[Path]) -> str:
    """Of the planner's constants and of the files' bytes, in that order."""
    parts = (SHIPPED.model_dump_json().encode(), *(path.read_bytes() for path in paths))
    return hashlib.sha256(b"".join(parts)).hexdigest()[:16]


@cache
def in_dynosim() -> str:
    """Of the planner, and of what drives it in NVIDIA's simulator."""
    return digest([*_modules(core.__file__), DYNAMO_POLICY])


@cache
def in_own_simulator() -> str:
    """Of the planner and of our simulator, without the planners beside ours."""
    return digest([*_modules(core.__file__), *_modules(simulator.__file__)])


def _modules(package: str | None) -> list[Path]:
    """Of the package and its folders, but for texts, what has its own benchmark, and other planners."""
    assert package is not None  # it has an __init__.py
    folder = Path(package).parent
    left_out = {"elastic", "baselines", "messages", "tuning.py"}
    return sorted(path for path in folder.rglob("*.py") if not left_out & set(path.relative_to(folder).parts))
