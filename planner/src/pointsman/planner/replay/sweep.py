"""What-if tables: the same trace under variants of the policy or of the surroundings."""

import itertools
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from difflib import get_close_matches
from typing import Any, Final

from pointsman.planner.errors import PolicyFileError, ReplayError
from pointsman.planner.replay.options import SWEPT_OPTIONS, Options, Sweep, parse_workers
from pointsman.planner.replay.policy_files import PolicyFile

_LOAD_KEYS: Final = frozenset({"seed", "speed", "copies"})


@dataclass(frozen=True, slots=True)
class Variant:
    """One row: what was set, and the options and policy with it. ``reload``: the trace is another one too."""

    settings: tuple[tuple[str, str], ...]
    options: Options
    policy: PolicyFile
    reload: bool


def variants(sweeps: Sequence[Sweep], options: Options, policy: PolicyFile) -> Iterator[Variant]:
    """Every combination, the last key varying fastest. Raises ReplayError or PolicyFileError naming the key."""
    for values in itertools.product(*(sweep.values for sweep in sweeps)):
        settings = tuple((sweep.key, value) for sweep, value in zip(sweeps, values, strict=True))
        chosen, changed = options, policy
        for key, value in settings:
            if key in SWEPT_OPTIONS:
                chosen = _with_option(chosen, key, value)
            else:
                changed = _with_field(changed, key, value)
        yield Variant(settings, chosen, changed, any(key in _LOAD_KEYS for key, _ in settings))


def headings(sweeps: Sequence[Sweep]) -> list[str]:
    """Of a table with a row a variant; in two lines, or it would be wider than a terminal."""
    return [*(sweep.key for sweep in sweeps), "attainment", "goodput/s", "GPU-hours",
            "good per\nGPU-hour", "TTFT, ms\nP50 / P99", "TPOT, ms\nP50 / P99", "switches", "reversals"]  # fmt: skip


def cells(settings: Sequence[tuple[str, str]], figures: Mapping[str, Any]) -> list[str]:
    """One row of that table; latencies are milliseconds."""
    return [
        *(value for _, value in settings),
        f"{figures['attainment']:.2%}",
        "unknown" if figures["goodput_per_s"] is None else f"{figures['goodput_per_s']:.2f}",
        f"{figures['gpu_hours']:.2f}",
        f"{figures['goodput_per_gpu_hour']:.0f}",
        _pair(figures["ttft_ms"]),
        _pair(figures["tpot_ms"]),
        f"{figures.get('switches', '-')}",
        f"{figures['reversals']}",
    ]


def _pair(percentiles: Mapping[str, float | None]) -> str:
    return " / ".join("-" if percentiles[name] is None else f"{percentiles[name]:.0f}" for name in ("p50", "p99"))


def _with_option(options: Options, key: str, value: str) -> Options:
    try:
        match key:
            case "startup-seconds":
                return replace(options, startup_s=_positive(value))
            case "switch-seconds":
                return replace(options, switch_s=_positive(value))
            case "speed":
                return replace(options, speed=_positive(value))
            case "seed":
                return replace(options, seed=int(value))
            case "copies":
                return replace(options, copies=int(value))
            case "workers":
                workers, encode_workers = parse_workers(value)
                if encode_workers is not None and options.encode_ms is None:
                    raise ValueError(f"{value} needs --encode-milliseconds MS, the time for one image")
                return replace(options, workers=workers, encode_workers=encode_workers or options.encode_workers)
            case "instances":
                return replace(options, instances=int(value))
            case _:
                return replace(options, planner=value)
    except ValueError as error:
        raise ReplayError(f"--sweep {key}: {error}") from None


def _with_field(policy: PolicyFile, key: str, value: str) -> PolicyFile:
    try:
        return policy.variant(key, value)
    except PolicyFileError as error:
        near = get_close_matches(key, SWEPT_OPTIONS, n=1, cutoff=0.7)
        hint = f"\nor did you mean the option {near[0]}?" if near else ""
        raise ReplayError(f"--sweep {key}={value}: {error}{hint}") from None


def _positive(text: str) -> float:
    value = float(text)
    if not 0 <= value < 1e9:
        raise ValueError(f"{text} is below 0")
    return value
