"""Which version of a found program is near enough to the pinned one."""

import re
from typing import Final

_VERSION: Final = re.compile(r"\bv?(\d+)\.(\d+)\.\d+")


def parse_version(output: str) -> tuple[int, int] | None:
    """Major and minor of the first version in a program's output; None if there is none."""
    match = _VERSION.search(output)
    return (int(match[1]), int(match[2])) if match else None


def near_enough(found: tuple[int, int], pinned: tuple[int, int]) -> bool:
    """Same major, minor at most one apart: the skew Kubernetes itself supports between its parts."""
    return found[0] == pinned[0] and abs(found[1] - pinned[1]) <= 1
