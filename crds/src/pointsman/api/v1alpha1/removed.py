"""Fields of the version before: accepted for one version so that nothing stored is refused, ignored, and reported.

They have no default, so that they are in no new object. Types and bounds are the former ones: an older version that
comes back with a rollback reads what was written meanwhile.
"""

import json
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

from pydantic import BaseModel

IGNORED: Final = "Ignored:"
"""Descriptions of removed fields begin with it; the API reference leaves them out."""


@dataclass(frozen=True, slots=True, init=False)
class Removed:
    """Marks a removed field (in ``Annotated``). The API server stored the former default in every object, so only other
    values are reported; ``unreported`` are all values that say nothing which does not happen anyway."""

    unreported: tuple[object, ...]

    def __init__(self, *unreported: object) -> None:
        object.__setattr__(self, "unreported", unreported)


def ignored(instead: str) -> str:
    """The description of a removed field; ``instead``: what happens without it."""
    return f"{IGNORED} {instead}"


def removed_fields(model: BaseModel) -> list[str]:
    """Each removed field that was set to a value of its own, as ``path (value)``."""
    return list(_removed(model, ""))


def _removed(model: BaseModel, above: str) -> Iterator[str]:
    for name, field in type(model).model_fields.items():
        value, path = getattr(model, name), f"{above}{field.alias or name}"
        if isinstance(value, BaseModel):
            yield from _removed(value, f"{path}.")
        marks = [mark for mark in field.metadata if isinstance(mark, Removed)]
        if value is not None and any(value not in mark.unreported for mark in marks):
            yield f"{path} ({f'{value:g}' if isinstance(value, float) else json.dumps(value)})"
