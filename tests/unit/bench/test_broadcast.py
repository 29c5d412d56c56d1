"""The figures and the picture of input broadcasts, from made-up measurements."""

from typing import Any
from xml.etree import ElementTree

from bench.multimodal.broadcast import CELLS, MODES, Cell, auto_row, grouped, picture, rows_of
from bench.pages import REPORTS
from bench.rows import RESULTS, kept, read

from pointsman.workers.multimodal.broadcast.modes import Mode


def run(qps: float, **more: float) -> dict[str, Any]:
    return {"qps": qps, "cpu_s": 0.05, "blocked_s": 0.001, "p50_s": 0.1, "p99_s": 0.2, **more}


def cells(auto: float, best: tuple[float, ...]) -> list[Cell]:
    """One cell of the grid, with ``combined`` the best mode."""
    qps: dict[Mode, tuple[float, ...]] = {mode: (10.0,) * len(best) for mode in MODES}
    qps |= {Mode.AUTO: (auto,) * len(best), Mode.COMBINED: best}
    return [
        {"size_kib": 2048, "concurrency": 8, "ranks": 2, "mode": mode, "runs": [run(each) for each in values]}
        for mode, values in qps.items()
    ]


def test_auto_may_be_ten_percent_below_the_best_mode_or_as_much_as_that_mode_varies() -> None:
    (steady,) = grouped(cells(auto=89, best=(100, 100, 100)))
    missed = auto_row(steady)
    assert (missed.peer_name, missed.target, missed.met) == ("combined", "ratio >= 0.9", False)
    assert missed.name.endswith("2 MiB, 8 concurrent, 2 ranks")
    (varying,) = grouped(cells(auto=89, best=(90, 100, 110)))
    assert (auto_row(varying).target, auto_row(varying).met) == ("ratio >= 0.8", True)


def test_more_than_nine_tenths_of_what_the_cores_can_do_is_not_required() -> None:
    blocking = {
        Mode.SYNC: [run(20, blocked_s=0.05)],
        Mode.AUTO: [run(37, blocked_s=0.001)],  # 2 cores / 0.05 core-seconds = 40 requests a second
        "seed": [run(10, blocked_s=0.1)],
    }
    memory = [{"bytes_per_s": 9e9, "memcpy_bytes_per_s": 1e10}]
    blocked, throughput, *others = rows_of(cells(100, (100,)), blocking, memory, cores=2)
    assert blocked.met and blocked.ratio == 0.02
    assert "bound of 2 cores: 40" in throughput.name
    assert (throughput.target, throughput.met) == ("ratio >= 1.8", True)
    assert [each.ratio for each in others if "memcpy" in each.name] == [0.9]
    blocking[Mode.AUTO] = [run(35)]
    assert not rows_of(cells(100, (100,)), blocking, memory, cores=2)[1].met


def test_the_picture_has_a_bar_for_every_mode_and_the_number_of_the_best() -> None:
    drawn = ElementTree.fromstring(picture(cells(auto=89, best=(100, 100, 100))))
    titles = [each.text for each in drawn.iter("{http://www.w3.org/2000/svg}title")]
    assert titles == [f"{mode}: {qps} requests/s" for mode, qps in
                      [("sync", 10), ("delayed", 10), ("combined", 100), ("async", 10), ("auto", 89)]]  # fmt: skip
    assert "100/s" in {each.text for each in drawn.iter("{http://www.w3.org/2000/svg}text")}


def test_the_committed_rows_and_picture_are_those_of_the_committed_cells() -> None:
    found = kept(CELLS)
    assert rows_of(**found, cores=2) == read(RESULTS / "input_broadcast.json")
    assert picture(found["cells"]) == (REPORTS / "pictures" / "input-broadcast.svg").read_text()
