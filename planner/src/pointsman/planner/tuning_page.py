"""``make tuning``: write ``docs/planner/tuning.md`` from ``Tuning``; ``--check`` only says whether it differs."""

import argparse
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Final

from pydantic.fields import FieldInfo

from pointsman.planner.core.tuning import Tuning

PAGE: Final = Path("docs/planner/tuning.md")
_SECTIONS: Final = {
    "recent_rate_s": "What comes",
    "model_ratio_bound": "How long the engine takes",
    "max_prefill_utilization": "How many workers",
    "ready_requests": "Which layout",
    "attainment_headroom": "Routing",
    "plan_retry_s": "Plans and elastic groups",
}
"""By the first field of each section."""
_COLUMNS: Final = "| constant | default | effect, also of other values | shown by |"
_HEAD: Final = """\
# Constants of the planner

*Generated from `planner/src/pointsman/planner/core/tuning.py` by `make tuning`. Do not edit.*

This page explains the numbers behind decisions to platform engineers. It lists every constant that shapes a decision
and is no field of a [policy](policy-guide.md). The values were chosen once, for all services. No setting changes them,
because a value that helps one load hurts another. The policy has the numbers that differ between services: objectives,
budget, bounds, windows.

Times are in seconds (`_s`), shares are between 0 and 1. *Shown by* names the reason for the value: a load of the
[evaluation](../reports/planner-evaluation.md), or a test below `tests/unit/planner/`. How the constants act together:
[sizing](sizing.md), [decisions](decisions.md), [a decision by hand](by-hand.md).

To try another value in the simulator, replace one field of the policy's `tuning`:

```python
policy = replace(policy, tuning=Tuning(patience_s=30.0))
```
"""


def page() -> str:
    """Markdown: a table for each section, in the order of the fields."""
    return _HEAD + "".join(_rows())


def _rows() -> Iterator[str]:
    for name, field in Tuning.model_fields.items():
        if name in _SECTIONS:
            yield f"\n## {_SECTIONS[name]}\n\n{_COLUMNS}\n|---|---|---|---|\n"
        yield f"| `{name}` | {_value(name, field)} | {field.description} | {shown_by(field)} |\n"


def shown_by(field: FieldInfo) -> str:
    """The load or the test."""
    extra = field.json_schema_extra
    assert isinstance(extra, dict)
    return str(extra["shown_by"])


def _value(name: str, field: FieldInfo) -> str:
    return f"{field.default:g}{' s' if name.endswith('_s') else ''}"


def main(argv: list[str] | None = None) -> int:
    """Returns 1 if ``--check`` found that the page differs."""
    parser = argparse.ArgumentParser(prog="python -m pointsman.planner.tuning_page", description=__doc__)
    parser.add_argument("--root", type=Path, default=Path.cwd(), help="the repository (default: this folder)")
    parser.add_argument("--check", action="store_true", help="write nothing; print whether the page differs")
    arguments = parser.parse_args(argv)
    path = arguments.root / PAGE
    if path.exists() and path.read_text(encoding="utf-8") == page():
        return 0
    if arguments.check:
        print(f"{PAGE} differs from the constants: run 'make tuning'", file=sys.stderr)
        return 1
    path.write_text(page(), encoding="utf-8")
    print(f"wrote {PAGE}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
