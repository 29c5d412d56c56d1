"""Which sources a kept run of ours was made with: one of other sources is not one of the present planner.

Texts decide nothing: comments, docstrings and the planner's messages do not count, and of the constants the values do.
"""

import ast
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
    """Of the planner's constants and of the files' code, but for texts, what has its own benchmark, other planners."""
    texts = {"messages", "rejection_reasons.py", "inputs.py", "tuning.py"}
    left_out, modules = {"elastic", "baselines", *texts, *but}, list[Path]()
    for folder in map(Path, packages):
        every = sorted(folder.rglob("*.py"))
        modules += [path for path in every if not left_out & {*path.relative_to(folder).parts}]
    parts = SHIPPED.model_dump_json().encode(), *(code(path.read_text()).encode() for path in (*modules, *files))
    return hashlib.sha256(b"".join(parts)).hexdigest()[:16]


def code(source: str) -> str:
    """A module's syntax tree without comments and texts that stand by themselves, as docstrings do."""
    tree = ast.parse(source)
    for node in ast.walk(tree):
        for name, value in ast.iter_fields(node):
            if isinstance(value, list):
                setattr(node, name, [each for each in value if not _is_text(each)])
    return ast.dump(tree)


def _is_text(node: object) -> bool:
    return isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant) and isinstance(node.value.value, str)
