"""A performance table of one's own: the document ``pointsman profile`` writes, from a file or a ConfigMap.

The form is that of the shipped tables, so one may be copied and changed by hand; what only a measurement knows (what
moving KV takes, how many sequences run at once) is optional.
"""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Final, Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from pointsman.planner.core.engine.performance_model import Grid, GridModel
from pointsman.planner.errors import TableError

Milliseconds = Annotated[float, Field(gt=0, allow_inf_nan=False)]
Row = tuple[Annotated[int, Field(ge=0)], Annotated[int, Field(ge=0)], Milliseconds]
_HOW: Final = "make one with 'pointsman profile --help'"


class _Part(BaseModel):
    # A table may say more than is read here: where it comes from, mixed steps, what was fitted.
    model_config = ConfigDict(frozen=True, extra="ignore")


class PrefillRows(_Part):
    """Milliseconds of a prompt of ``new_tokens`` after ``prefix_tokens`` that are cached."""

    columns: tuple[Literal["new_tokens"], Literal["prefix_tokens"], Literal["ms"]]
    rows: tuple[Row, ...] = Field(min_length=2)


class StepRows(_Part):
    """Milliseconds of a decode step of ``batch`` sequences of ``context`` tokens each."""

    columns: tuple[Literal["batch"], Literal["context"], Literal["ms"]]
    rows: tuple[Row, ...] = Field(min_length=2)


class KvTransfer(_Part):
    """Moving a prompt's KV from a prefill to a decode worker takes ``hop_ms + bytes / bytes_per_second``."""

    bytes_per_second: float = Field(gt=0, allow_inf_nan=False)
    hop_ms: float = Field(ge=0, allow_inf_nan=False)


class TableDocument(_Part):
    """A table as it is written."""

    model: str = Field(min_length=1)
    system: str = Field(min_length=1)
    backend: str = Field(min_length=1)
    tp: int = Field(ge=1)
    gpus: int = Field(ge=1)
    kv_capacity_tokens: int = Field(ge=1)
    kv_bytes_per_token: int | None = Field(ge=1)
    prefill_ms: PrefillRows
    decode_step_ms: StepRows
    max_batch: int | None = Field(default=None, ge=1)
    max_context_tokens: int | None = Field(default=None, ge=1)
    kv_transfer: KvTransfer | None = None
    request_overhead_ms: float | None = Field(default=None, ge=0, allow_inf_nan=False)


@dataclass(frozen=True, slots=True)
class Table:
    """A table that can be asked. ``where`` is the file or ConfigMap, for messages."""

    where: str
    document: TableDocument
    performance: GridModel


def read_table(path: Path) -> Table:
    """The table in a file. Raises TableError with every mistake."""
    try:
        text = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise TableError(f"{path}: it cannot be read: {getattr(error, 'strerror', None) or error}") from None
    return parse_table(text, str(path))


def parse_table(text: str, where: str) -> Table:
    """The table in ``text``. Raises TableError with every mistake: field, what is written, what would be right."""
    try:
        document = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise TableError(f"{where}: it is no JSON ({error}); {_HOW}") from None
    if not isinstance(document, Mapping):
        raise TableError(f"{where}: it is no JSON object; {_HOW}")
    try:
        found = TableDocument.model_validate(document)
        return Table(where, found, GridModel(Grid.of(found.prefill_ms.rows), _steps(found)))
    except ValidationError as error:
        raise TableError(f"{where}: {'; '.join(_mistake(each) for each in error.errors())}; {_HOW}") from None
    except ValueError as error:  # rows that are numbers, but no grid
        raise TableError(f"{where}: {error}; {_HOW}") from None


def _steps(found: TableDocument) -> Grid:
    if any(batch < 1 for batch, _, _ in found.decode_step_ms.rows):
        raise ValueError("decode_step_ms.rows has a batch of 0: a step has at least 1 sequence")
    return Grid.of(found.decode_step_ms.rows)


def _mistake(error: Any) -> str:
    path = ".".join(str(part) for part in error["loc"])
    given = "" if error["type"] == "missing" else f" is {error['input']!r:.60}"
    return f"{path}{given}: {error['msg'][0].lower()}{error['msg'][1:]}"
