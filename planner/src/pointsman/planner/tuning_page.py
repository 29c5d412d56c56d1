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
    "surprise_sigmas": "What comes",
    "model_ratio_bound": "How long the engine takes",
    "max_prefill_utilization": "How many workers",
    "switch_min_gain": "Role switches",
    "threshold_decrease": "Threshold and flow control",
    "plan_retry_s": "Plans",
}
"""By the first field of each section."""
SHOWN_BY: Final = {
    "surprise_sigmas": "step",
    "max_forecast_growth": "test_arrival_forecast.py",
    "max_forecast_fall": "test_arrival_forecast.py",
    "length_window_s": "test_request_lengths.py",
    "length_change_sigmas": "onoff",
    "min_length_change": "test_request_lengths.py",
    "memory_requests": "moon_conv",
    "model_ratio_bound": "onoff",
    "base_start_s": "test_startup_time.py",
    "start_s_per_billion": "test_startup_time.py",
    "late_start_factor": "test_startup_time.py",
    "stuck_start_factor": "test_startup_time.py",
    "first_switch_s": "test_switch_time.py",
    "max_prefill_utilization": "test_operating_point.py",
    "max_network_utilization": "test_by_hand.py",
    "usable_ttft_share": "onoff",
    "min_slack_share": "test_by_hand.py",
    "usable_tpot_share": "onoff",
    "usable_kv_share": "test_kv_bound.py",
    "queued_per_worker": "onoff",
    "queue_clear_s": "onoff",
    "gateway_queue_clear_s": "burst",
    "patience_s": "onoff",
    "need_gap_s": "test_pool_rule.py",
    "max_evaluation_gap_s": "test_pool_rule.py",
    "rate_headroom": "mixshift",
    "new_requests_windows": "onoff",
    "return_memory_s": "test_pool_rule.py",
    "return_margin": "onoff",
    "max_retention_s": "onoff",
    "ready_requests": "moon_conv",
    "switch_min_gain": "onoff",
    "switch_evaluations": "burst",
    "failing_share": "onoff",
    "max_attainment_loss": "burst",
    "switches_per_worker": "test_switch_guards.py",
    "threshold_decrease": "test_prefill_threshold_load.py",
    "threshold_increase_tokens": "test_prefill_threshold_load.py",
    "holdoff_s": "mixshift",
    "queue_full_share": "test_flow_bounds.py",
    "flow_dead_band": "onoff",
    "publish_interval_s": "test_publication.py",
    "plan_retry_s": "test_plan_ledger.py",
}
"""Of each constant, the load whose outcome changes most with it, or a test that shows the effect."""
_COLUMNS: Final = "| constant | default | effect, also of other values | shown by |"
_HEAD: Final = """\
# Constants of the planner

*Generated from `planner/src/pointsman/planner/core/tuning.py` by `make tuning`. Do not edit.*

This page explains the numbers behind decisions to platform engineers. It lists the constants with the largest effect
that are no fields of a [policy](policy-guide.md). About 120 smaller numbers, such as weights and bounds of estimates,
are [in the code only](../design/0014-size-of-the-planner.md). The values were chosen once, for all services. No setting
changes them, because a value that helps one load hurts another. The policy has the numbers that differ between
services: objectives, budget, bounds, windows.

Times are in seconds (`_s`), shares are between 0 and 1. *Shown by* names the load of the
[evaluation](../reports/planner-evaluation.md) whose outcome changes most with half or twice the value, or a test below
`tests/unit/planner/` where loads hardly change. How the constants act together: [sizing](sizing.md),
[decisions](decisions.md), [a decision by hand](by-hand.md).

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
        effect = " ".join((field.description or "").split())
        yield f"| `{name}` | {_value(name, field)} | {effect} | {SHOWN_BY[name]} |\n"


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
