"""The workloads of the comparison: arrivals, lengths, engines, objectives and the layout everyone starts with.

Six of them make the published means; the ``pulses`` are on/off bursts shorter than a worker's start. Everything random
is seeded. Requests of the synthetic and the Azure traces share no prefix.
"""

import csv
import hashlib
import json
import lzma
import random
from bisect import bisect_right
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Any

BLOCK_TOKENS = 512  # of Mooncake's hash ids
AZURE = "azure-llm-2023/AzureLLMInferenceTrace_conv.csv.xz"
MOONCAKE = "mooncake/conversation_trace.jsonl.xz"
MAX_GPUS = 16


@dataclass(frozen=True)
class Request:
    """One request. ``blocks``: ids of its prompt's blocks, equal ids for an equal prefix; None: shares nothing."""

    at_s: float
    prompt_tokens: int
    output_tokens: int
    blocks: tuple[int, ...] | None = None


@dataclass(frozen=True)
class Workload:
    """A trace file and what an operator would know before it runs: the engine's limits, objectives, first layout."""

    name: str
    path: Path
    requests: int
    duration_s: float
    prefill_engine: dict[str, Any]
    decode_engine: dict[str, Any]
    ttft_ms: float
    itl_ms: float
    first: tuple[int, int]  # prefill, decode
    context_tokens: int = 32768
    real: bool = False  # the same in every seed

    @property
    def digest(self) -> str:
        """Of the trace file: results of another one are not comparable."""
        return hashlib.sha256(self.path.read_bytes()).hexdigest()[:16]


def make(folder: Path, seed: int, data: Path) -> dict[str, Workload]:
    """Write the traces of one seed below ``folder``; the real ones are read below ``data``.

    Raises OSError when ``data`` does not hold ``azure-llm-2023/`` and ``mooncake/``.
    """
    folder.mkdir(parents=True, exist_ok=True)
    even = engine_limits(4096, 64)
    chat = (4000, 250)
    found: dict[str, Workload] = {}

    def add(name: str, requests: list[Request], prefill: dict[str, Any], decode: dict[str, Any], **other: Any) -> None:
        requests.sort(key=lambda r: r.at_s)
        path = folder / f"{name}.jsonl"
        path.write_text("".join(trace_line(number, request) for number, request in enumerate(requests)))
        found[name] = Workload(name, path, len(requests), requests[-1].at_s, prefill, decode, **other)

    objectives: dict[str, Any] = {"ttft_ms": 1500, "itl_ms": 25, "first": (1, 1)}
    add("step", _step(random.Random(seed)), even, even, **objectives)
    add("ramp", _steady(seed * 1000 + 1, _ramp, 1300, 18, lambda _: chat), even, even, **objectives)
    add("burst", _steady(seed * 1000 + 2, _burst, 1000, 16, lambda _: chat), even, even, **objectives)
    add(
        "mixshift",
        _steady(seed * 1000 + 3, lambda t: 7.5 if t < 600 else 15, 1200, 15, _mix),
        engine_limits(4096, 256, 0.2), engine_limits(2048, 256), ttft_ms=2500, itl_ms=25, first=(4, 2),
    )  # fmt: skip
    add("pulses", _steady(seed * 1000 + 7, _pulses, 1800, 12, lambda _: chat), even, even, **objectives)
    add("pulses_hour", _steady(seed * 1000 + 8, _pulses, 3600, 12, lambda _: chat), even, even, **objectives)
    uneven = _uneven(random.Random(seed * 1000 + 9), 3600)
    add("pulses_uneven", _steady(seed * 1000 + 10, uneven, 3600, 12, lambda _: chat), even, even, **objectives)
    add(
        "azure_conv", list(azure_requests(data / AZURE, copies=2, shift_s=600.0)),
        engine_limits(4096, 256, 0.2), engine_limits(1024, 256), ttft_ms=2000, itl_ms=25, first=(2, 3), real=True,
    )  # fmt: skip
    add(
        "moon_conv", list(mooncake_requests(data / MOONCAKE, random.Random(seed * 1000 + 6), spread_s=3.0)),
        engine_limits(16384, 64, 0.25), engine_limits(6144, 64), ttft_ms=15000, itl_ms=25, first=(4, 3), real=True,
        context_tokens=131072,
    )  # fmt: skip
    return found


def engine_limits(blocks: int, sequences: int, speed: float = 1.0) -> dict[str, Any]:
    return {
        "block_size": 64, "num_gpu_blocks": blocks, "max_num_seqs": sequences, "max_num_batched_tokens": 8192,
        "speedup_ratio": speed,
    }  # fmt: skip


def trace_line(number: int, request: Request) -> str:
    blocks = request.blocks
    if blocks is None:
        blocks = tuple(number * 1000 + k for k in range(-(-request.prompt_tokens // BLOCK_TOKENS)))
    body = {
        "timestamp": int(request.at_s * 1000), "input_length": request.prompt_tokens,
        "output_length": request.output_tokens, "hash_ids": list(blocks),
    }  # fmt: skip
    return json.dumps(body) + "\n"


# --- synthetic ---


def _lengths(draw: random.Random, prompt: float, output: float) -> tuple[int, int]:
    return max(64, int(draw.gauss(prompt, prompt * 0.25))), max(8, int(draw.gauss(output, output * 0.25)))


def _step(draw: random.Random) -> list[Request]:
    """3 → 14 → 3 requests/s at 300 s and 800 s."""
    found, t = [], 0.0
    while t < 1200:
        t += draw.expovariate(14 if 300 <= t < 800 else 3)
        found.append(Request(t, *_lengths(draw, 4000, 250)))
    return found


def _ramp(t: float) -> float:
    """3 → 18 requests/s over 600 s, back over 300 s."""
    if t < 200 or t >= 1100:
        return 3.0
    return 3 + 15 * (t - 200) / 600 if t < 800 else 18 - 15 * (t - 800) / 300


def _burst(t: float) -> float:
    """Ten times the load for one minute."""
    return 16 if 400 <= t < 460 else 1.6


def _mix(t: float) -> tuple[float, float]:
    """Long prompts, then long answers."""
    return (4000, 100) if t < 600 else (500, 600)


def _pulses(t: float) -> float:
    """Half a minute of load every two and a half."""
    return 12 if t % 150 >= 120 else 1.5


def _uneven(draw: random.Random, horizon_s: float) -> Callable[[float], float]:
    """Load for 15 to 40 seconds after pauses of one to three minutes."""
    marks, on = [0.0], True
    while marks[-1] < horizon_s:
        on = not on
        marks.append(marks[-1] + (draw.uniform(15, 40) if on else draw.uniform(60, 180)))
    return lambda t: 12 if bisect_right(marks, t) % 2 == 0 else 1.5


def _steady(
    seed: int,
    rate: Callable[[float], float],
    horizon_s: float,
    peak: float,
    shape: Callable[[float], tuple[float, float]],
) -> list[Request]:
    """An inhomogeneous Poisson process, by thinning one at ``peak``."""
    draw = random.Random(seed)
    found: list[tuple[float, int, int]] = []
    t = 0.0
    while (t := t + draw.expovariate(peak)) < horizon_s:
        if draw.random() * peak <= rate(t):
            found.append((t, *_lengths(draw, *shape(t))))
    return [Request(*each) for each in found]


# --- recorded ---


def azure_requests(path: Path, copies: int, shift_s: float) -> Iterator[Request]:
    """Azure's conversation trace of 2023 (CC-BY-4.0), laid over itself shifted in time."""
    with lzma.open(path, "rt") as lines:
        rows = [
            (_seconds(row["TIMESTAMP"]), int(row["ContextTokens"]), int(row["GeneratedTokens"]))
            for row in csv.DictReader(lines)
        ]
    first, length_s = rows[0][0], rows[-1][0] - rows[0][0]
    for copy in range(copies):
        for at_s, prompt, output in rows:
            yield Request((at_s - first + copy * shift_s) % length_s, max(16, prompt), max(2, output))


def _seconds(stamp: str) -> float:
    """Azure writes seven digits of a second, Python reads six."""
    return datetime.fromisoformat(stamp[:26]).timestamp()


def mooncake_requests(path: Path, draw: random.Random, spread_s: float) -> Iterator[Request]:
    """Mooncake's conversation trace (Apache-2.0); its stamps are binned at 3 s, so they are spread again."""
    with lzma.open(path, "rt") as lines:
        for line in lines:
            row = json.loads(line)
            at_s = row["timestamp"] / 1000 + draw.random() * spread_s
            yield Request(at_s, max(16, row["input_length"]), max(2, row["output_length"]), tuple(row["hash_ids"]))
