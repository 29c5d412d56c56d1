"""Parts of sentences: counts with their nouns and verbs, and lists of names that stay short."""

from collections.abc import Iterable
from typing import Final

NAMED: Final = 3  # names in one sentence


def quantity(count: float, noun: str, plural: str = "") -> str:
    """1 worker, 2 workers. ``plural``: where it is not the noun and an s."""
    return f"{count:.0f} {noun if round(count) == 1 else plural or f'{noun}s'}"


def are(count: float) -> str:
    """The verb of so many."""
    return "is" if round(count) == 1 else "are"


def were(count: float) -> str:
    """The same in the past."""
    return "was" if round(count) == 1 else "were"


def do(count: float, verb: str) -> str:
    """``verb`` of so many: 1 waits, 2 wait."""
    return f"{verb}s" if round(count) == 1 else verb


def names_of(names: Iterable[str], limit: int = NAMED) -> str:
    """The first names, and how many more there are."""
    found = list(names)
    more = f" and {len(found) - limit} more" if len(found) > limit else ""
    return ", ".join(found[:limit]) + more
