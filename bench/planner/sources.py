"""Which sources a kept run of ours was made with: one of other sources is not one of the present planner."""

import hashlib
from collections.abc import Iterable
from functools import cache
from pathlib import Path

from pointsman.planner import core, simulator

DYNAMO_POLICY = Path(__file__).parent / "dynamo" / "policy.py"


def digest(paths: Iterable[Path]) -> str:
    """Of the files' bytes, in that order."""
    return hashlib.sha256(b"".join(path.read_bytes() for path in paths)).hexdigest()[:16]


@cache
def in_dynosim() -> str:
    """Of the planner, and of what drives it in NVIDIA's simulator."""
    return digest([*_modules(core.__file__), DYNAMO_POLICY])


@cache
def in_own_simulator() -> str:
    """Of the planner and of our simulator, without the planners beside ours."""
    return digest([*_modules(core.__file__), *_modules(simulator.__file__)])


def _modules(package: str | None) -> list[Path]:
    """Of the package and its folders, but for what has its own benchmark, or is another planner."""
    assert package is not None  # it has an __init__.py
    folder = Path(package).parent
    return sorted(
        path for path in folder.rglob("*.py") if not {"elastic", "baselines"} & set(path.relative_to(folder).parts)
    )
