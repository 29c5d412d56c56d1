"""Trace files: which format one is in, its requests, and what had to be assumed.

==========  =====================================================================================================
Mooncake    one JSON object a line: ``timestamp`` (ms), ``input_length``, ``output_length``, ``hash_ids`` (512 tokens
            each, or what their number shows), optionally ``images``; github.com/kvcache-ai/Mooncake,
            FAST25-release/traces
Azure       CSV with the columns ``TIMESTAMP``, ``ContextTokens``, ``GeneratedTokens``;
            github.com/Azure/AzurePublicDataset
Pointsman   a header line ``{"format": "pointsman-trace", "version": 1, …}``, then one JSON object a line:
            ``arrival_s``, ``prompt_tokens``, ``output_tokens``, optionally ``prefix_blocks`` and ``images``; see
            docs/planner/replay.md
==========  =====================================================================================================

Any of them may be compressed (gzip, xz, bzip2). What a line says wrong is said with file, line number and field.
"""

import bz2
import csv
import gzip
import itertools
import json
import lzma
import math
import random
import zlib
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from enum import StrEnum
from pathlib import Path
from statistics import median
from typing import Any, Final, NoReturn, TextIO

from pointsman.planner.errors import TraceError
from pointsman.planner.replay.requests import Arrived, trace_of
from pointsman.planner.replay.trace_times import time_fault
from pointsman.planner.simulator.types import Trace

FORMAT: Final = "pointsman-trace"
VERSION: Final = 1
MOONCAKE_BLOCK_TOKENS: Final = 512
SHOWN_CHARACTERS: Final = 80  # of a wrong value
MOST_TOKENS: Final = 1_000_000_000  # of one prompt or answer: above that a number is a mistake
MOST_IMAGES: Final = 10_000  # of one request
BEYOND_FIRST_S: Final = 600.0  # that are read of a trace that is cut: by them bins are told from times
BINNED_SHARE: Final = 0.5  # so many requests share their time stamp with another: the stamps are bins
WIDEST_BIN_S: Final = 60.0
OFF_GRID: Final = 1e-2  # of a gap: times are rounded
_MOMENT: Final = "2023-11-16 18:15:46.6805900"
_AZURE_COLUMNS: Final = ("TIMESTAMP", "ContextTokens", "GeneratedTokens")
_COMPRESSED: Final[tuple[tuple[bytes, Callable[..., TextIO]], ...]] = (
    (b"\x1f\x8b", gzip.open),
    (b"\xfd7zXZ\x00", lzma.open),
    (b"BZh", bz2.open),
)
_EXPECTED: Final = (
    'a trace is Mooncake JSON lines ({"timestamp": 0, "input_length": 812, "output_length": 93}), an Azure CSV '
    f"({','.join(_AZURE_COLUMNS)}) or a recording of 'pointsman record'"
)


class TraceFormat(StrEnum):
    """What a file is written in."""

    MOONCAKE = "Mooncake"
    AZURE = "Azure"
    POINTSMAN = "Pointsman"


class TimeUnit(StrEnum):
    """Of a time stamp that is a number."""

    S = "s"
    MS = "ms"
    US = "us"
    NS = "ns"


_PER_SECOND: Final[Mapping[TimeUnit, int]] = {TimeUnit.S: 1, TimeUnit.MS: 10**3, TimeUnit.US: 10**6, TimeUnit.NS: 10**9}


@dataclass(frozen=True, slots=True)
class Loaded:
    """A trace, and in words what was assumed to make it one."""

    trace: Trace
    format: TraceFormat
    notes: tuple[str, ...] = ()


def load_trace(
    path: Path,
    seed: int = 0,
    first_s: float | None = None,
    block_tokens: int | None = None,
    time_unit: TimeUnit | None = None,
    accept_times: bool = False,
) -> Loaded:
    """The requests of a file, the first at 0 s. ``seed``: of the spreading of binned time stamps.

    ``time_unit``: of a time stamp that is a number; None: as the format has it. ``accept_times``: also where they look
    wrong.

    ``block_tokens``: how many tokens an id of a prompt's blocks stands for; None: as the file says or shows.

    ``first_s``: what arrives later than so many seconds, and some time, after the first is left out, so that an hour of
    a file of weeks takes the memory of an hour. Raises TraceError naming file, line and field.
    """
    try:
        lines = _lines(path)
        first = next(lines, None)
        if first is None:
            raise TraceError(f"{path}: the file is empty; {_EXPECTED}")
        made, read, blocks, name = _read(path, first, lines, block_tokens, time_unit)
        read = _naming_format(read, made)
        requests = list(read) if first_s is None else _begun_within(read, first_s + BEYOND_FIRST_S)
    except (OSError, EOFError, lzma.LZMAError, zlib.error) as error:
        reason = error.strerror if isinstance(error, OSError) and error.strerror else str(error)
        raise TraceError(f"{path}: it cannot be read: {reason}") from None
    except UnicodeDecodeError:
        raise TraceError(f"{path}: it is no UTF-8 text; {_EXPECTED}") from None
    if not requests:
        raise TraceError(f"{path}: it has no request; {_EXPECTED}")
    size, told = blocks.settled()
    requests, notes = _without_zeros(requests)
    notes += told
    earlier = sum(later.arrival_s < before.arrival_s for before, later in itertools.pairwise(requests))
    if earlier:
        notes.append(f"requests after a later one: {earlier}; all are sorted by their time of arrival")
    fault = None if accept_times else time_fault([request.arrival_s for request in requests])
    if fault is not None:
        raise TraceError(f"{path}: {fault} (read as {_read_as(made, time_unit)}){_remedy(made)}")
    begin_s = min(request.arrival_s for request in requests)
    requests = [request._replace(arrival_s=request.arrival_s - begin_s) for request in requests]
    width_s = bin_width_s([request.arrival_s for request in requests])
    if width_s is not None:
        requests = spread(requests, width_s, random.Random(seed))
        notes.append(f"its time stamps are {width_s:g} s apart: each is spread uniformly over its bin (seed {seed})")
    trace = trace_of(name or _stem(path), requests, size)
    if trace.prefix_blocks is None:
        notes.append("it does not list which prompts share a prefix")
    return Loaded(trace, made, tuple(notes))


def write_trace(path: Path, trace: Trace, header: Mapping[str, object]) -> None:
    """Write a trace in our own format. ``header`` is added to the first line; its keys are free."""
    blocks = trace.prefix_blocks or ((),) * len(trace)
    images = trace.images if trace.images is not None else [0] * len(trace)
    head = {"format": FORMAT, "version": VERSION, "name": trace.name, "block_tokens": trace.block_tokens, **header}
    with path.open("w", encoding="utf-8") as file:
        file.write(json.dumps(head) + "\n")
        for at_s, prompt, output, ids, count in zip(
            trace.arrival_s, trace.prompt_tokens, trace.output_tokens, blocks, images, strict=True
        ):
            row: dict[str, object] = {"arrival_s": round(float(at_s), 6), "prompt_tokens": int(prompt)}
            row["output_tokens"] = int(output)
            if ids:
                row["prefix_blocks"] = list(ids)
            if count:
                row["images"] = int(count)
            file.write(json.dumps(row) + "\n")


def bin_width_s(arrivals_s: Iterable[float]) -> float | None:
    """How far apart time stamps are that stand for bins; None if they are real times of arrival.

    Mooncake's are 3 s apart, with ten requests each: replayed as they stand they would be a burst every 3 s. Bins lie
    on one grid, some of them may be empty; what comes at once now and then, as from a batch job, is what was asked for.
    """
    counts = Counter(arrivals_s)
    shared = sum(count for count in counts.values() if count > 1)
    if len(counts) < 2 or shared / counts.total() <= BINNED_SHARE:
        return None
    gaps_s = [later - earlier for earlier, later in itertools.pairwise(sorted(counts))]
    width_s = median(gap_s for gap_s in gaps_s if gap_s < 1.5 * min(gaps_s))
    bins = [gap_s / width_s for gap_s in gaps_s]
    on_a_grid = all(abs(n - round(n)) <= OFF_GRID * n for n in bins)
    return round(width_s, 6) if on_a_grid and width_s <= WIDEST_BIN_S else None


def spread(requests: Iterable[Arrived], width_s: float, rng: random.Random) -> list[Arrived]:
    """Each request at a uniform moment of its bin."""
    return [request._replace(arrival_s=request.arrival_s + rng.random() * width_s) for request in requests]


# --- of how many tokens a block is ---


@dataclass(slots=True)
class _Blocks:
    """How many tokens an id stands for: ``tokens``, unless the ids of all requests show it where nobody has ``said``.

    Of blocks of N tokens a prompt of L has n ids where n is ceil(L/N), or floor(L/N) if a last part of one has none:
    so N is above L/(n + 1) and below L/(n - 1).
    """

    tokens: int
    said: bool
    least: int = field(default=1, init=False)  # that leaves no prompt with too few ids
    most: int = field(default=MOST_TOKENS, init=False)  # … with too many
    beyond: str | None = field(default=None, init=False)  # the first that has too many of ``tokens``

    def look(self, where: str, name: str, ids: Sequence[int], prompt: str, length: int) -> None:
        """At the ids of one request. ``name`` and ``prompt`` are the fields of the ids and of the prompt's length."""
        if not ids:
            return
        self.least = max(self.least, length // (len(ids) + 1) + 1)
        if len(ids) > 1:
            self.most = min(self.most, max(length - 1, 0) // (len(ids) - 1))
        blocks = -(-max(length, 1) // self.tokens)
        if len(ids) > blocks and self.beyond is None:
            self.beyond = (
                f"{where}: {name} is {_shown(ids)}, {len(ids)} ids; {prompt} {length} has {blocks} at most, "
                f"one for every {self.tokens} tokens"
            )

    def settled(self) -> tuple[int, list[str]]:
        """(tokens, what was assumed), when every request was looked at. Raises TraceError where ids are too many."""
        shown = None if self.said else self._fitting()
        if self.beyond is None:
            if shown is None or self.tokens >= self.least:
                return self.tokens, []
            return self.tokens, [
                f"an id of its prompts' blocks stands for {self.tokens} tokens; they have as many as blocks of {shown} "
                f"would: --block-tokens {shown} takes them for those"
            ]
        if shown is not None:
            return shown, [
                f"an id of its prompts' blocks stands for {shown} tokens, not for {self.tokens}, as their number shows "
                "in every request"
            ]
        if self.most < 1:
            raise TraceError(f"{self.beyond}; no block size has that many")
        why = "" if self.said else "which size all of its ids are of is not certain: "
        raise TraceError(f"{self.beyond}; {why}--block-tokens N sets another size, {self.most} or less")

    def _fitting(self) -> int | None:
        """The one power of two that fits every request; where none does, the one multiple of 16."""
        powers = [1 << bit for bit in range(MOST_TOKENS.bit_length()) if self.least <= 1 << bit <= self.most]
        sixteens = range(-(-self.least // 16) * 16, self.most + 1, 16)
        fits = powers or sixteens
        return fits[0] if len(fits) == 1 else None


# --- formats ---


def _begun_within(requests: Iterable[Arrived], seconds: float) -> list[Arrived]:
    """Those that arrive in so many seconds from the earliest, in whatever order they stand."""
    begin_s, kept = math.inf, []
    for request in requests:
        begin_s = min(begin_s, request.arrival_s)
        if request.arrival_s < begin_s + seconds:
            kept.append(request)
    return [request for request in kept if request.arrival_s < begin_s + seconds]


def _read(
    path: Path, head: "_Line", lines: Iterator["_Line"], given: int | None, unit: TimeUnit | None
) -> tuple[TraceFormat, Iterator[Arrived], _Blocks, str | None]:
    blocks = _Blocks(given or MOONCAKE_BLOCK_TOKENS, said=given is not None)
    if head.text.startswith("["):
        raise TraceError(f"{head.where}: it is a JSON array; one object a line is needed: jq -c '.[]' makes them")
    if not head.text.startswith("{"):
        columns = _columns(head)
        if unit is not None:
            raise TraceError(f"{path}: --time-unit is of numbers; an Azure CSV has moments such as {_MOMENT}")
        return TraceFormat.AZURE, (_azure(line, columns) for line in lines), blocks, None
    try:
        fields = head.fields()
    except TraceError:
        if _is_begun(head.text):
            raise TraceError(
                f"{head.where}: it is a JSON object over several lines; one object a line is needed: jq -c . makes them"
            ) from None
        raise
    if fields.get("format") == FORMAT:
        version = fields.get("version")
        if version != VERSION:
            raise TraceError(f"{head.where}: version is {version!r}; this Pointsman reads version {VERSION}")
        if "block_tokens" in fields:
            own = _count(head, fields, "block_tokens", least=1)
            blocks = _Blocks(given or own, said=True)
        named = fields.get("name")
        requests = (_own(line, blocks, _PER_SECOND[unit or TimeUnit.S]) for line in lines)
        return TraceFormat.POINTSMAN, requests, blocks, named if isinstance(named, str) else None
    if "timestamp" in fields:
        requests = (
            _mooncake(line, blocks, _PER_SECOND[unit or TimeUnit.MS]) for line in itertools.chain([head], lines)
        )
        return TraceFormat.MOONCAKE, requests, blocks, None
    raise TraceError(f"{head.where}: neither 'timestamp' nor 'format' is there; {_EXPECTED}")


def _mooncake(line: "_Line", blocks: _Blocks, per_s: int) -> Arrived:
    fields = line.fields()
    return Arrived(
        _number(line, fields, "timestamp") / per_s,
        _count(line, fields, "input_length"),
        _count(line, fields, "output_length"),
        _ids(line, fields, "hash_ids", "input_length", blocks),
        _images(line, fields),
    )


def _own(line: "_Line", blocks: _Blocks, per_s: int) -> Arrived:
    fields = line.fields()
    return Arrived(
        _number(line, fields, "arrival_s") / per_s,
        _count(line, fields, "prompt_tokens"),
        _count(line, fields, "output_tokens"),
        _ids(line, fields, "prefix_blocks", "prompt_tokens", blocks),
        _images(line, fields),
    )


def _azure(line: "_Line", columns: list[str]) -> Arrived:
    # A file of weeks has tens of millions of lines, and hardly one with a quote.
    values = line.values() if '"' in line.text else line.text.split(",")
    if len(values) != len(columns):
        raise TraceError(f"{line.where}: it has {len(values)} values, the header names {len(columns)}: {line.text!r}")
    fields = dict(zip(columns, values, strict=True))
    stamp = fields["TIMESTAMP"].strip()
    try:
        moment = datetime.fromisoformat(stamp)
    except ValueError:
        line.wrong("TIMESTAMP", stamp, f"a moment such as {_MOMENT}")
    moment = moment if moment.tzinfo else moment.replace(tzinfo=UTC)
    return Arrived(moment.timestamp(), _count(line, fields, "ContextTokens"), _count(line, fields, "GeneratedTokens"))


def _columns(head: "_Line") -> list[str]:
    """The columns of a CSV, as Azure spells them whatever case they are in. Raises TraceError for another CSV."""
    known = {column.lower(): column for column in _AZURE_COLUMNS}
    columns = [known.get(column.strip().lower(), column.strip()) for column in head.values()]
    missing = [column for column in _AZURE_COLUMNS if column not in columns]
    if missing:
        raise TraceError(f"{head.where}: {', '.join(missing)} is missing in the header '{head.text}'; {_EXPECTED}")
    twice = [column for column in _AZURE_COLUMNS if columns.count(column) > 1]
    if twice:
        raise TraceError(
            f"{head.where}: the header '{head.text}' has the column {', '.join(twice)} "
            f"{columns.count(twice[0])} times; remove all but one"
        )
    return columns


def _is_begun(text: str) -> bool:
    """Whether this is the beginning of a JSON value that goes on in the next line."""
    try:
        json.loads(text)
    except json.JSONDecodeError as error:
        return error.pos >= len(text)
    except (ValueError, RecursionError):
        return False
    return False


def _naming_format(requests: Iterator[Arrived], made: TraceFormat) -> Iterator[Arrived]:
    """The same; a line that is wrong is said with the format that the file is read as."""
    try:
        yield from requests
    except TraceError as error:
        raise TraceError(f"{error} (read as {_read_as(made, None)})") from None


def _read_as(made: TraceFormat, unit: TimeUnit | None) -> str:
    match made:
        case TraceFormat.MOONCAKE:
            return f"Mooncake JSON lines, timestamp in {unit or TimeUnit.MS}"
        case TraceFormat.AZURE:
            return "Azure CSV"
        case TraceFormat.POINTSMAN:
            return f"a Pointsman recording, arrival_s in {unit or TimeUnit.S}"


def _remedy(made: TraceFormat) -> str:
    unit = "" if made is TraceFormat.AZURE else f"--time-unit {'|'.join(TimeUnit)} sets another unit, "
    return f"; {unit}--accept-times replays it as it is"


# --- lines and fields ---


@dataclass(frozen=True, slots=True)
class _Line:
    path: Path
    number: int
    text: str

    @property
    def where(self) -> str:
        return f"{self.path} line {self.number}"

    def fields(self) -> dict[str, Any]:
        try:
            fields = json.loads(self.text, object_pairs_hook=_unique)
        except (ValueError, RecursionError) as error:
            raise TraceError(f"{self.where}: it is no JSON object: {error}") from None
        if not isinstance(fields, dict):
            raise TraceError(f"{self.where}: it is no JSON object but {self.text[:60]!r}")
        return fields

    def values(self) -> list[str]:
        try:
            return next(csv.reader([self.text]), [])
        except csv.Error as error:
            raise TraceError(f"{self.where}: it is no CSV: {error}") from None

    def wrong(self, field: str, value: object, right: str) -> NoReturn:
        raise TraceError(f"{self.where}: {field} is {_shown(value)}; {right} is needed")


def _lines(path: Path) -> Iterator[_Line]:
    with path.open("rb") as file:
        begin = file.read(8)
    opened = next((opens for mark, opens in _COMPRESSED if begin.startswith(mark)), open)
    with opened(path, "rt", encoding="utf-8-sig") as text:
        for number, line in enumerate(text, start=1):
            if line.strip():
                yield _Line(path, number, line.strip())


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    fields = dict(pairs)
    if len(fields) < len(pairs):
        twice = next(name for name, count in Counter(name for name, _ in pairs).items() if count > 1)
        raise ValueError(f"'{twice}' is written twice")
    return fields


def _value(line: _Line, fields: Mapping[str, Any], name: str) -> Any:
    if name not in fields:
        turn = "delay" in fields and name in ("timestamp", "arrival_s")
        why = ": 'delay' counts from an answer that a replay does not have; write a time of arrival" if turn else ""
        raise TraceError(f"{line.where}: {name} is missing{why}")
    return fields[name]


def _number(line: _Line, fields: Mapping[str, Any], name: str) -> float:
    value = _value(line, fields, name)
    try:
        number = float(value) if isinstance(value, int | float) and not isinstance(value, bool) else math.nan
    except OverflowError:
        number = math.inf
    if not 0 <= number < math.inf:
        line.wrong(name, value, "a number of 0 or more")
    return number


def _count(line: _Line, fields: Mapping[str, Any], name: str, least: int = 0) -> int:
    value = _value(line, fields, name)
    try:
        number = float(value) if isinstance(value, int | float | str) and not isinstance(value, bool) else math.nan
    except (ValueError, OverflowError):
        number = math.nan
    if not least <= number <= MOST_TOKENS or number != int(number):
        line.wrong(name, value, f"a whole number of {least} or more, and {MOST_TOKENS} at most,")
    return int(number)


def _images(line: _Line, fields: Mapping[str, Any]) -> int:
    if fields.get("images") is None:  # as where it is not there
        return 0
    images = _count(line, fields, "images")
    if images > MOST_IMAGES:
        line.wrong("images", images, f"a whole number of 0 or more, and {MOST_IMAGES} at most,")
    return images


def _ids(line: _Line, fields: Mapping[str, Any], name: str, prompt: str, blocks: _Blocks) -> tuple[int, ...]:
    """Ids of the blocks of the prompt, whose length is in the field ``prompt``; its last block may be part of one."""
    ids = fields.get(name)
    if ids is None:  # not known, as where it is not there
        return ()
    if not isinstance(ids, list | tuple) or not all(type(block) is int for block in ids):
        line.wrong(name, ids, "a list of whole numbers")
    blocks.look(line.where, name, ids, prompt, _count(line, fields, prompt))
    return tuple(ids)


def _shown(value: object) -> str:
    words = repr(value)
    return words if len(words) <= SHOWN_CHARACTERS else f"{words[:SHOWN_CHARACTERS]}…"


def _without_zeros(requests: list[Arrived]) -> tuple[list[Arrived], list[str]]:
    """A request without a prompt or without an answer (a client that left) costs one token of it, not nothing."""
    zeros = sum(min(request.prompt_tokens, request.output_tokens) == 0 for request in requests)
    if not zeros:
        return requests, []
    taken = [r._replace(prompt_tokens=max(r.prompt_tokens, 1), output_tokens=max(r.output_tokens, 1)) for r in requests]
    return taken, [f"requests with a length of 0: {zeros}; it counts as 1 token"]


def _stem(path: Path) -> str:
    return path.name.split(".")[0]
