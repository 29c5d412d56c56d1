"""Input broadcast: all modes over payload size, concurrency and ranks: ``python -m bench.multimodal.broadcast``.

Ranks are processes (``bench/multimodal/broadcast_ranks.py``); materialising is decoding a JPEG. Each cell is measured
in rounds, all modes in each round, so that a busy moment of the computer meets all of them. ``--sizes`` measures a
part; the cells of the other sizes stay those of the last run.
"""

import os
import statistics
import sys
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from functools import partial
from itertools import product
from tempfile import TemporaryDirectory
from typing import Any, Final

from bench.engine_process import EngineProcess
from bench.pages import render, write_picture
from bench.rows import RESULTS, Row, finish, keep, kept, options, row
from pointsman.local.engine.environment import EngineEnvironment, ensure_engine_environment
from pointsman.workers.multimodal.broadcast.modes import Mode

COMMAND: Final = "make bench-multimodal"
KIB: Final = 1024
SIZES_KIB: Final = (64, 2048, 16384)
CONCURRENCIES: Final = (1, 8, 32)
RANKS: Final = (2, 4)
FIXED: Final = (Mode.SYNC, Mode.ASYNC, Mode.DELAYED, Mode.COMBINED)
MODES: Final = (*FIXED, Mode.AUTO)
REQUESTS: Final = {64: 250, 2048: 24, 16384: 3}  # at least, and at least as many as are concurrent
WARM_UP: Final = {64: 40, 2048: 8, 16384: 4}
ROUNDS: Final = {64: 4, 2048: 3, 16384: 2}
STEP_SECONDS: Final = 0.002
SEED_NAME: Final = "seed"
SEED_CODE: Final = "broadcast_object_list"
# The C library would give the memory of each decoded picture back to the kernel. Whether it does depends on what else a
# process has allocated, and getting it again can cost more than decoding: so no process gives any back, in any mode.
_ALLOCATOR: Final = {"MALLOC_MMAP_THRESHOLD_": str(1 << 30), "MALLOC_TRIM_THRESHOLD_": str(1 << 33)}
CELLS: Final = RESULTS / "input_broadcast_cells.json.xz"

Cell = dict[str, Any]


class Ranks:
    """The processes of one group size; every job runs on all of them."""

    def __init__(self, processes: Sequence[EngineProcess]) -> None:
        self._processes = processes
        self._number = 0

    def run(self, **job: Any) -> list[dict[str, Any]]:
        """The answers of all ranks. Raises RuntimeError if one has died."""
        self._number += 1
        for process in self._processes:
            process.send({"number": self._number, "ranks": len(self._processes), **job})
        return [process.answer() for process in self._processes]


@contextmanager
def ranks_of(environment: EngineEnvironment, world_size: int) -> Iterator[Ranks]:
    """``world_size`` processes; they end with the context."""
    variables = {"OMP_NUM_THREADS": "1", "GLOO_SOCKET_IFNAME": "lo"} | _ALLOCATOR
    start = partial(EngineProcess, environment, "bench.multimodal.broadcast_ranks", **variables)
    with ExitStack() as stack:
        folder = stack.enter_context(TemporaryDirectory())
        yield Ranks([stack.enter_context(start(str(rank), folder)) for rank in range(world_size)])


def measure(ranks: Ranks, job: dict[str, Any]) -> Cell:
    """One mode in one round of a cell: requests a second, CPU and blocked seconds a request, latencies."""
    answers = ranks.run(**job)
    requests = job["requests"]
    seconds = max(each["ended_s"] for each in answers) - answers[0]["began_s"]
    latencies_s = sorted(answers[0].get("latencies_s", []))
    return {
        "qps": requests / seconds,
        "cpu_s": sum(each["cpu_s"] for each in answers) / requests,
        "blocked_s": answers[0]["blocked_s"] / requests,
        "p50_s": statistics.median(latencies_s) if latencies_s else None,
        "p99_s": latencies_s[int(0.99 * (len(latencies_s) - 1))] if latencies_s else None,
    }


def measure_grid(environment: EngineEnvironment, sizes_kib: Sequence[int]) -> list[Cell]:
    """All cells of ``sizes_kib``."""
    cells: list[Cell] = []
    for world_size in RANKS:
        with ranks_of(environment, world_size) as ranks:
            for size, concurrency in product(sizes_kib, CONCURRENCIES):
                job = {"kind": "cell", "size_bytes": size * KIB, "concurrency": concurrency, "step_s": 0.0}
                job |= {"requests": max(REQUESTS[size], concurrency), "warm_up": WARM_UP[size]}
                rounds = [
                    {mode: measure(ranks, job | {"mode": mode}) for mode in _turned(MODES, number)}
                    for number in range(ROUNDS[size])
                ]
                where = {"size_kib": size, "concurrency": concurrency, "ranks": world_size}
                for mode in MODES:
                    cells.append(where | {"mode": mode, "runs": [each[mode] for each in rounds]})
                    qps = statistics.median(each["qps"] for each in cells[-1]["runs"])
                    print(f"{size} KiB, {concurrency} concurrent, {world_size} ranks, {mode}: {qps:.1f} requests/s")
    return cells


def _turned(modes: Sequence[Mode], number: int) -> Sequence[Mode]:
    """Another order in each round: the first of a round finds other caches than the last."""
    return [*modes[number % len(modes) :], *modes[: number % len(modes)]]


def measure_blocking(environment: EngineEnvironment, rounds: int = 5) -> dict[str, list[Cell]]:
    """Sync, auto and the seed's own code at 32 concurrent requests of 2 MiB, on 2 ranks, beside an engine's steps."""
    job = {"size_bytes": 2048 * KIB, "concurrency": 32, "requests": 64, "warm_up": 32, "step_s": STEP_SECONDS}
    found: dict[str, list[Cell]] = {Mode.SYNC: [], Mode.AUTO: [], SEED_NAME: []}
    with ranks_of(environment, 2) as ranks:
        for _ in range(rounds):
            for mode in (Mode.SYNC, Mode.AUTO):
                found[mode].append(measure(ranks, job | {"kind": "cell", "mode": mode}))
            found[SEED_NAME].append(measure(ranks, job | {"kind": SEED_NAME}))
    return found


def measure_memory(environment: EngineEnvironment, rounds: int = 15) -> list[dict[str, float]]:
    """Arrays of 16 MiB through shared memory, beside memcpy."""
    with ranks_of(environment, 2) as ranks:
        job = {"kind": "memory", "mode": Mode.ASYNC, "size_bytes": 16 << 20, "requests": 30}
        return [ranks.run(**job)[0] for _ in range(rounds)]


def rows_of(
    cells: Sequence[Cell], blocking: dict[str, list[Cell]], memory: Sequence[dict[str, float]], cores: int
) -> list[Row]:
    """The figures of the design, from what was measured."""

    def values(mode: str, key: str) -> list[float]:
        return [each[key] for each in blocking[mode]]

    bound = cores / statistics.median(values(Mode.AUTO, "cpu_s"))  # requests a second that leave no core idle
    where = "32 concurrent requests of 2 MiB, 2 ranks"
    rows = []
    for name, peer, peer_name in (("sync", str(Mode.SYNC), "sync"), ("the seed's code", SEED_NAME, SEED_CODE)):
        blocked = ([1e3 * seconds for seconds in values(mode, "blocked_s")] for mode in (Mode.AUTO, peer))
        possible = round(min(2.0, 0.9 * bound / statistics.median(values(peer, "qps"))), 3) if peer == "sync" else 2.0
        what = f"{where} (bound of {cores} cores: {bound:.0f})" if peer == "sync" else where
        beside = partial(row, peer_name=peer_name, of_ratio=True, command=COMMAND)
        rows += [
            beside(
                f"blocked time of the scheduler's thread a request, auto beside {name}, {where}", "ms", *blocked,
                at_most=0.05,
            ),
            beside(
                f"requests a second, auto beside {name}, {what}", "1/s", values(Mode.AUTO, "qps"), values(peer, "qps"),
                at_least=possible,
            ),
        ]  # fmt: skip
    copied = ([each[key] / 1e9 for each in memory] for key in ("bytes_per_s", "memcpy_bytes_per_s"))
    name = "arrays of 16 MiB through shared memory, beside memcpy"
    rows.append(row(name, "GB/s", *copied, peer_name="memcpy", at_least=0.8, of_ratio=True, command=COMMAND))
    return rows + [auto_row(group) for group in grouped(cells)]


def grouped(cells: Sequence[Cell]) -> list[dict[Mode, list[float]]]:
    """Requests a second of each mode and round, by cell of the grid; the cell's name under the key ``name``."""
    groups: dict[str, dict[Any, Any]] = {}
    for cell in cells:
        name = f"{_size(cell['size_kib'])}, {cell['concurrency']} concurrent, {cell['ranks']} ranks"
        groups.setdefault(name, {"name": name})[Mode(cell["mode"])] = [each["qps"] for each in cell["runs"]]
    return list(groups.values())


def _size(kib: int) -> str:
    return f"{kib} KiB" if kib < KIB else f"{kib // KIB} MiB"


def picture(cells: Sequence[Cell]) -> str:
    """A panel for each size and number of ranks: requests a second beside the best mode of each concurrency."""
    panels: dict[tuple[int, int], dict[int, dict[str, float]]] = {}
    for cell in sorted(cells, key=lambda each: (each["ranks"], each["size_kib"], each["concurrency"])):
        panel = panels.setdefault((cell["ranks"], cell["size_kib"]), {})
        rates = panel.setdefault(cell["concurrency"], {})
        rates[cell["mode"]] = statistics.median(each["qps"] for each in cell["runs"])
    columns = len({size for _, size in panels})
    titled = [(f"{_size(size)}, {ranks} ranks", groups) for (ranks, size), groups in panels.items()]
    return render("broadcast.svg", columns=columns, rows=len(panels) // columns, panels=titled)


def auto_row(group: dict[Any, Any]) -> Row:
    """Auto beside the best fixed mode of a cell; within 10 %, or within the spread of that mode's rounds."""
    best = max(FIXED, key=lambda mode: statistics.median(group[mode]))
    spread = (max(group[best]) - min(group[best])) / statistics.median(group[best])
    return row(
        f"requests a second, auto beside the best fixed mode, {group['name']}", "1/s", group[Mode.AUTO], group[best],
        peer_name=str(best), at_least=round(1 - max(0.1, spread), 3), of_ratio=True, command=COMMAND,
    )  # fmt: skip


def main(argv: list[str]) -> int:
    """Measure, and write the rows, the cells and the picture; returns 1 if a target is missed."""
    sizes = options(COMMAND, __doc__, argv, sizes=(SIZES_KIB, "in KiB, whose cells are measured")).sizes
    environment = ensure_engine_environment()
    found = kept(CELLS) or {"cells": [], "blocking": None, "memory": None}
    cells = [each for each in found["cells"] if each["size_kib"] not in sizes] + measure_grid(environment, sizes)
    cells.sort(key=lambda cell: (cell["ranks"], cell["size_kib"], cell["concurrency"]))
    found["cells"] = cells
    if 2048 in sizes or found["blocking"] is None:
        found |= {"blocking": measure_blocking(environment), "memory": measure_memory(environment)}
    keep(CELLS, found)
    write_picture("input-broadcast.svg", picture(cells))
    return finish("input_broadcast", rows_of(**found, cores=len(os.sched_getaffinity(0))))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
