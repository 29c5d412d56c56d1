"""What the planner saw of real engines, look by look (``captures/*.jsonl``)."""

import json
from pathlib import Path

from pydantic import TypeAdapter

from pointsman.planner.core.types import Objectives, Observation

CAPTURES = Path(__file__).parent / "captures"


def captured(name: str) -> tuple[Objectives, list[Observation]]:
    """(the objectives in force, for nine of ten requests; the observations)."""
    first, *looks = (CAPTURES / f"{name}.jsonl").read_text().splitlines()
    read = TypeAdapter(Observation)
    return Objectives(**json.loads(first), attainment=0.9), [read.validate_json(look) for look in looks]
