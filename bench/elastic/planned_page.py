"""The table of docs/reports/elastic-evaluation.md: the planner beside fixed numbers of instances.

.venv/bin/python -m bench.elastic.planned_page
"""

from collections.abc import Sequence

from bench.elastic.planned import DAYS, PATH
from bench.rows import Row, read


def planned_table(rows: Sequence[Row]) -> list[str]:
    """A line for each mix that was simulated."""
    lines = [
        "| mix | requests a second | planner: in time | planner: GPU-hours | fixed number of instances: in time "
        "| smallest fixed number that reaches 90 %: GPU-hours |",
        "|---|---|---|---|---|---|",
    ]
    for day in DAYS:
        found = [each for each in rows if each.name.startswith(f"{day.name}:")]
        if not found:
            continue
        (hours,) = (each for each in found if each.name.endswith("GPU-hours"))
        shares = [each for each in found if each is not hours]
        fixed = ", ".join(f"{100 * (each.peer or 0):.0f} % ({each.peer_name})" for each in shares)
        lines.append(
            f"| {day.name} | {day.low:g} to {day.high:g} | {100 * shares[0].ours:.0f} % | {hours.ours:.1f} | {fixed} "
            f"| {hours.peer_name}: {hours.peer:.1f} |"
        )
    return lines


if __name__ == "__main__":
    print("\n".join(planned_table(read(PATH))))
