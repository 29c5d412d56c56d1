"""Input broadcast: all modes over payload size, concurrency and ranks: ``python -m bench.multimodal.broadcast``.

Ranks are processes (``bench/multimodal/broadcast_ranks.py``); materialising is decoding a JPEG. Each cell is measured
in rounds, all modes in each round, so that a busy moment of the computer meets all of them.
"""

import os
import sys
from collections.abc import Sequence
from contextlib import AbstractContextManager
from functools import partial
from itertools import product
from statistics import median
from typing import Any, Final

from bench.engine_process import Ask, engine_process
from bench.pages import render, write_picture
from bench.rows import RESULTS, Row, finish, keep, options, row
from pointsman.local.engine.environment import ensure_engine_environment
from pointsman.workers.multimodal.broadcast.modes import Mode

COMMAND: Final = "make bench-multimodal"
CONCURRENCIES: Final = (1, 8, 32)
RANKS: Final = (2, 4)
FIXED: Final = (Mode.SYNC, Mode.ASYNC, Mode.DELAYED, Mode.COMBINED)
MODES: Final = (*FIXED, Mode.AUTO)
# By size in KiB: requests, at least as many as are concurrent; requests before them; rounds.
SIZES: Final = {64: (250, 40, 4), 2048: (24, 8, 3), 16384: (3, 4, 2)}
STEP_SECONDS: Final = 0.002
# The C library would give the memory of each decoded picture back to the kernel. Whether it does depends on what else a
# process has allocated, and getting it again can cost more than decoding: so no process gives any back, in any mode.
_ALLOCATOR: Final = {"MALLOC_MMAP_THRESHOLD_": str(1 << 30), "MALLOC_TRIM_THRESHOLD_": str(1 << 33)}
CELLS: Final = RESULTS / "input_broadcast_cells.json.xz"

Cell = dict[str, Any]


def ranks_of(count: int) -> AbstractContextManager[Ask]:
    """So many processes, to which jobs are given; they end with the context."""
    program = "bench.multimodal.broadcast_ranks"
    return engine_process(ensure_engine_environment(), program, str(count), OMP_NUM_THREADS="1", **_ALLOCATOR)


def measure_grid(sizes_kib: Sequence[int]) -> list[Cell]:
    """All cells of ``sizes_kib``. Modes take turns at being first: that one finds other caches than the last."""
    cells: list[Cell] = []
    for ranks in RANKS:
        with ranks_of(ranks) as ask:
            for size, concurrency in product(sizes_kib, CONCURRENCIES):
                requests, warm_up, rounds = SIZES[size]
                job = {"size_bytes": size << 10, "concurrency": concurrency, "step_s": 0.0}
                job |= {"requests": max(requests, concurrency), "warm_up": warm_up}
                runs: dict[Mode, list[Any]] = {mode: [] for mode in MODES}
                for number in range(rounds):
                    for mode in (*MODES[number:], *MODES[:number]):
                        runs[mode].append(ask(job | {"mode": mode}))
                where = {"size_kib": size, "concurrency": concurrency, "ranks": ranks}
                cells += [where | {"mode": mode, "runs": found} for mode, found in runs.items()]
                print(where, {str(mode): median(each["qps"] for each in found) for mode, found in runs.items()})
    return cells


def measure_blocking() -> dict[str, list[Any]]:
    """Sync and auto at 32 concurrent requests of 2 MiB, on 2 ranks, beside an engine's steps."""
    job = {"size_bytes": 2 << 20, "concurrency": 32, "requests": 64, "warm_up": 32, "step_s": STEP_SECONDS}
    found: dict[str, list[Any]] = {Mode.SYNC: [], Mode.AUTO: []}
    with ranks_of(2) as ask:
        for mode in 5 * [*found]:
            found[mode].append(ask(job | {"mode": mode}))
    return found


def rows_of(cells: Sequence[Cell], blocking: dict[str, list[Any]], cores: int) -> list[Row]:
    """The figures of the design, from what was measured."""
    qps, blocked_s, cpu_s = (
        {mode: [each[key] for each in runs] for mode, runs in blocking.items()} for key in ("qps", "blocked_s", "cpu_s")
    )
    bound = cores / median(cpu_s[Mode.AUTO])  # requests a second that leave no core idle
    where = "32 concurrent requests of 2 MiB, 2 ranks"
    beside = partial(row, of_ratio=True, command=COMMAND)
    blocked_ms = ([1e3 * seconds for seconds in blocked_s[mode]] for mode in (Mode.AUTO, Mode.SYNC))
    rows = [
        beside(
            f"blocked time of the scheduler's thread a request, auto beside sync, {where}", "ms", *blocked_ms,
            peer_name="sync", at_most=0.05,
        ),
        beside(
            f"requests a second, auto beside sync, {where} (bound of {cores} cores: {bound:.0f})", "1/s",
            qps[Mode.AUTO], qps[Mode.SYNC], peer_name="sync",
            at_least=round(min(2.0, 0.9 * bound / median(qps[Mode.SYNC])), 3),
        ),
    ]  # fmt: skip
    for (ranks, size, concurrency), group in grouped(cells).items():
        # Within 10 % of the best fixed mode, or within the spread of its rounds.
        best = max(FIXED, key=lambda mode: median(group[mode]))
        spread = (max(group[best]) - min(group[best])) / median(group[best])
        what = f"{_size(size)}, {concurrency} concurrent, {ranks} ranks"
        rows.append(
            beside(
                f"requests a second, auto beside the best fixed mode, {what}", "1/s", group[Mode.AUTO], group[best],
                peer_name=str(best), at_least=round(1 - max(0.1, spread), 3),
            )
        )  # fmt: skip
    return rows


def grouped(cells: Sequence[Cell]) -> dict[tuple[int, int, int], dict[Mode, list[float]]]:
    """Requests a second of each mode and round, by ranks, size and concurrency."""
    groups: dict[tuple[int, int, int], dict[Mode, list[float]]] = {}
    for cell in cells:
        group = groups.setdefault((cell["ranks"], cell["size_kib"], cell["concurrency"]), {})
        group[Mode(cell["mode"])] = [each["qps"] for each in cell["runs"]]
    return groups


def _size(kib: int) -> str:
    return f"{kib} KiB" if kib < 1024 else f"{kib // 1024} MiB"


def picture(cells: Sequence[Cell]) -> str:
    """A panel for each size and number of ranks: requests a second beside the best mode of each concurrency."""
    panels: dict[str, dict[int, dict[Mode, float]]] = {}
    for (ranks, size, concurrency), group in grouped(cells).items():
        panel = panels.setdefault(f"{_size(size)}, {ranks} ranks", {})
        panel[concurrency] = {mode: median(qps) for mode, qps in group.items()}
    return render("broadcast.svg", columns=len({cell["size_kib"] for cell in cells}), panels=[*panels.items()])


def main(argv: list[str]) -> int:
    """Measure, and write the rows, the cells and the picture; returns 1 if a target is missed."""
    sizes = options(COMMAND, __doc__, argv, sizes=((*SIZES,), "in KiB, whose cells are measured")).sizes
    cells, blocking = measure_grid(sizes), measure_blocking()
    keep(CELLS, {"cells": cells, "blocking": blocking})
    write_picture("input-broadcast.svg", picture(cells))
    return finish("input_broadcast", rows_of(cells, blocking, len(os.sched_getaffinity(0))))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
