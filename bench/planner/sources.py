"""Which sources a kept run of ours was made with: one of other sources is not one of the present planner.

Texts decide nothing: of the constants the values count, and the planner's messages do not.
"""

import hashlib
from collections.abc import Collection, Iterable
from functools import cache
from pathlib import Path

from pointsman.planner import core, simulator
from pointsman.planner.core.tuning import SHIPPED


@cache
def in_dynosim() -> str:
    """Of the planner, and of what drives it in NVIDIA's simulator, where no routing numbers are published."""
    return _digest(core.__path__, Path(__file__).parent / "dynamo" / "policy.py", but={"publication.py"})


@cache
def in_own_simulator() -> str:
    """Of the planner and of our simulator, without the planners beside ours."""
    return _digest([*core.__path__, *simulator.__path__])


def _digest(packages: Iterable[str], *files: Path, but: Collection[str] = ()) -> str:
    """Of the planner's constants and of the files' bytes, but for texts, what has its own benchmark, other planners."""
    left_out, modules = {"elastic", "baselines", "messages", "tuning.py", *but}, list[Path]()
    for folder in map(Path, packages):
        every = sorted(folder.rglob("*.py"))
        modules += [path for path in every if not left_out & {*path.relative_to(folder).parts}]
    parts = SHIPPED.model_dump_json().encode(), *(path.read_bytes() for path in (*modules, *files))
    return hashlib.sha256(b"".join(parts)).hexdigest()[:16]
