"""``make dashboards``: write the chart's dashboards from the panels here; ``--check`` only says what differs."""

import argparse
import json
import sys
from pathlib import Path
from typing import Final

from charts.dashboards.elastic import ELASTIC
from charts.dashboards.grafana import Dashboard, model
from charts.dashboards.health import HEALTH
from charts.dashboards.service import SERVICE

DASHBOARDS: Final[tuple[Dashboard, ...]] = (SERVICE, ELASTIC, HEALTH)
FOLDER: Final = Path(__file__).parents[1] / "pointsman" / "files" / "dashboards"


def generated() -> dict[Path, str]:
    """The files of the chart, with their text."""
    return {FOLDER / f"{board.uid}.json": json.dumps(model(board), indent=1) + "\n" for board in DASHBOARDS}


def main(argv: list[str] | None = None) -> int:
    """Returns 1 if ``--check`` found a file that differs."""
    parser = argparse.ArgumentParser(prog="python -m charts.dashboards", description=__doc__)
    parser.add_argument("--check", action="store_true", help="write nothing, say what differs")
    arguments = parser.parse_args(argv)
    stale = [path for path, text in generated().items() if not path.exists() or path.read_text() != text]
    for path in stale:
        if arguments.check:
            print(f"{path.name} differs from charts/dashboards: run 'make dashboards'", file=sys.stderr)
        else:
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(generated()[path])
            print(f"wrote {path.name}")
    return 1 if arguments.check and stale else 0


if __name__ == "__main__":
    sys.exit(main())
