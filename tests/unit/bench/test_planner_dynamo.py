"""Pointsman as a policy of NVIDIA's simulator, and what the kept runs of that benchmark come to."""

from collections.abc import Iterable
from typing import Any
from xml.etree import ElementTree

import pytest
from bench.planner import sources
from bench.planner.dynamo import figures, page, published, random_page
from bench.planner.dynamo.configurations import CONFIGURATIONS, DOCUMENTED, TUNED
from bench.planner.dynamo.figures import RUNS, Kept
from bench.planner.dynamo.policy import PointsmanPolicy, make
from bench.rows import RESULTS, read

ENGINE = {"block_size": 64, "num_gpu_blocks": 4096, "max_num_seqs": 64, "max_num_batched_tokens": 8192}


def passes(role: str, worker: int, wall_s: float, requests: int, tokens: int, queued: int = 0) -> dict[str, Any]:
    """A forward-pass sample as the simulator gives it."""
    found: dict[str, Any] = {"worker_id": worker, "dp_rank": 0, "wall_time": wall_s}
    for each in ("prefill", "decode"):
        mine = each == role
        found |= {f"num_{each}_requests": requests if mine else 0, f"num_queued_{each}": queued if mine else 0}
    decoding = role == "decode"
    return found | {
        "sum_prefill_tokens": 0 if decoding else tokens, "var_prefill_length": 0.0,
        "sum_decode_kv_tokens": tokens if decoding else 0, "var_decode_kv_tokens": 0.0,
    }  # fmt: skip


def prefill_s(tokens: int) -> float:
    """The simulator's built-in engine, which both sides have to learn from samples."""
    return (4.209989e-7 * tokens * tokens + 1.518344e-2 * tokens + 16.50142) / 1000


def known(**other: Any) -> dict[str, Any]:
    """What a factory gets before the run."""
    return {
        "startup_s": 45.0, "sla_ttft_ms": 1500, "sla_itl_ms": 25, "max_gpus": 16, "init": [1, 1],
        "prefill_engine": ENGINE, "decode_engine": ENGINE,
        "prefill_samples": [passes("prefill", 0, prefill_s(n), n // 1000, n) for n in range(1000, 8001, 500)],
        "decode_samples": [passes("decode", 0, 0.006 + 5e-8 * 4000 * n, n, 4000 * n) for n in range(1, 64, 4)],
        **other,
    }  # fmt: skip


def snapshot(at_s: float, rate: float, prefill: range, decode: range, starting: range = range(0)) -> dict[str, Any]:
    """What the simulator shows; ``starting`` are prefill workers."""
    return {
        "now_ms": 1000 * at_s,
        "prefill_fpm_snapshots": [passes("prefill", worker, prefill_s(4000), 1, 4000) for worker in prefill],
        "decode_fpm_snapshots": [passes("decode", worker, 0.008, 8, 32000) for worker in decode],
        "active_prefill_ids": list(prefill), "starting_prefill_ids": list(starting), "draining_prefill_ids": [],
        "active_decode_ids": list(decode), "starting_decode_ids": [], "draining_decode_ids": [],
        "traffic": {
            "duration_s": 2.5, "num_req": round(2.5 * rate), "shape_count": round(2.5 * rate), "avg_isl": 4000.0,
            "avg_osl": 250.0, "avg_kv_hit_rate": 0.0, "hit_rate_count": round(2.5 * rate),
        },
    }  # fmt: skip


def ticked(policy: PointsmanPolicy, rate: float, ticks: int, **fleet: range) -> dict[str, Any]:
    """The last answer of so many ticks, from where the policy was."""
    answer: dict[str, Any] = {"next_tick_ms": policy.initial_tick_ms()}
    for _ in range(ticks):
        answer = policy.on_tick(snapshot(answer["next_tick_ms"] / 1000, rate, **fleet))
    return answer


def test_it_keeps_what_serves_and_asks_for_its_next_tick() -> None:
    answer = ticked(make(known()), 2.0, 20, prefill=range(1), decode=range(1))
    assert answer == {"target_prefill": None, "target_decode": None, "next_tick_ms": 2500.0 * 21}


def test_it_orders_for_a_risen_load_and_not_again_what_starts_already() -> None:
    policy = make(known())
    ticked(policy, 2.0, 20, prefill=range(1), decode=range(1))
    wanted: dict[str, Any] = {"next_tick_ms": 52500.0}
    for _ in range(6):
        wanted = policy.on_tick(snapshot(wanted["next_tick_ms"] / 1000, 14.0, range(1), range(1)))
        if wanted["target_prefill"]:
            break
    assert 2 <= wanted["target_prefill"] <= 15
    started = range(1, wanted["target_prefill"])
    after = policy.on_tick(snapshot(wanted["next_tick_ms"] / 1000, 14.0, range(1), range(1), started))
    assert after["target_prefill"] is None or after["target_prefill"] > wanted["target_prefill"]


def test_it_never_asks_for_more_than_the_budget() -> None:
    policy = make(known(max_gpus=4))
    answer = ticked(policy, 200.0, 12, prefill=range(1), decode=range(1))
    prefill, decode = answer["target_prefill"] or 1, answer["target_decode"] or 1
    assert prefill + decode == 4


@pytest.mark.parametrize("belief", [0.7, 1.3])
def test_what_was_measured_before_the_run_is_corrected_by_what_is_seen(belief: float) -> None:
    wrong = {
        role: [dict(s, wall_time=s["wall_time"] * belief) for s in known()[role]]
        for role in ("prefill_samples", "decode_samples")
    }
    believed, right = make(known(**wrong)), make(known())
    for policy in (believed, right):
        ticked(policy, 2.0, 20, prefill=range(1), decode=range(1))
    milliseconds = [dict(policy.decision.inputs)["prefillMilliseconds"] for policy in (believed, right)]
    assert milliseconds[0] == pytest.approx(milliseconds[1], rel=0.05)
    batches = [dict(policy.decision.inputs)["decodeBatch"] for policy in (believed, right)]
    assert batches[0] == pytest.approx(batches[1], rel=0.05)


# --- figures ---


def one(goodput: float, gpu_hours: float) -> dict[str, float]:
    return {"goodput": goodput, "gpu_hours": gpu_hours}


def kept(ours: tuple[float, float] = (0.9, 1.0), workload: str = "step", start_s: int = 45, seed: int = 1) -> Kept:
    """One cell with everything. Dynamo: documented .5, tuned .6 but for one of .7; clairvoyant 0.9 GPU-hours."""
    dynamo = dict.fromkeys(DOCUMENTED, one(0.5, 1.0)) | dict.fromkeys(TUNED, one(0.6, 1.1))
    dynamo["kalman, 20 s, objectives x0.55"] = one(0.7, 1.2)
    return {
        f"{workload}/{start_s}/{seed}": {
            "workload": workload, "start_s": start_s, "seed": seed,
            "complete": ["causal", "clairvoyant", "dynamo", "fixed", "ours"],
            "ours": {"run 1": one(*ours), "run 2": one(*ours)}, "dynamo": dynamo,
            "fixed": {"2P4D": one(1.0, 2.0), "2P3D": one(0.4, 1.6)},
            "clairvoyant": {"ample": one(1.0, 1.3), "lean": one(0.97, 0.9), "too lean": one(0.94, 0.8)},
            "causal": {"hold 45 s": one(0.8, 1.0), "hold 300 s": one(0.91, 1.1)},
        },
    }  # fmt: skip


def test_a_cell_is_compared_with_the_best_of_dynamos_configurations_and_the_cheapest_good_clairvoyant() -> None:
    (cell,) = figures.cells(kept())
    assert (cell.documented.goodput, cell.tuned.goodput) == (0.5, 0.7)
    assert cell.tuned.name == "kalman, 20 s, objectives x0.55"
    assert cell.fixed is not None and (cell.clairvoyant.gpu_hours, cell.fixed.name) == (0.9, "2P4D")
    assert cell.cost(cell.ours) == pytest.approx(1.0 / 0.9)


def test_the_clairvoyant_takes_a_fixed_layout_where_no_schedule_is_cheaper() -> None:
    runs = kept()
    runs["step/45/1"]["clairvoyant"] = {"too lean": one(0.5, 0.5), "ample": one(0.97, 2.1)}
    assert figures.cells(runs)[0].clairvoyant.gpu_hours == 2.0


@pytest.mark.parametrize("part", ["ours", "dynamo", "clairvoyant", "causal"])
def test_a_seed_in_which_one_side_is_not_complete_is_not_compared(part: str) -> None:
    runs = kept(seed=4) | kept(seed=5)
    runs["step/45/5"]["complete"].remove(part)
    assert figures.cells(runs)[0].seeds == (4,)


def test_seeds_of_the_development_count_only_where_no_other_ran() -> None:
    assert figures.cells(kept(seed=1))[0].seeds == (1,)
    assert figures.cells(kept(seed=1) | kept(seed=4) | kept(seed=5))[0].seeds == (4, 5)


def test_without_fixed_layouts_the_clairvoyant_is_the_cheapest_of_its_schedules() -> None:
    runs = kept()
    del runs["step/45/1"]["fixed"]
    (cell,) = figures.cells(runs)
    assert (cell.clairvoyant.gpu_hours, cell.fixed) == (0.9, None)
    assert any("| not run |" in line for line in page.section([cell]).splitlines())


@pytest.mark.parametrize(
    ("ours", "missed"),
    [
        ((0.9, 1.0), set()),
        ((0.68, 1.0), {"goodput", "goodput beside causal"}),
        ((0.89, 1.0), {"goodput beside causal"}),
        ((0.9, 1.1), {"cost"}),
    ],
)
def test_the_targets_of_an_unannounced_change(ours: tuple[float, float], missed: set[str]) -> None:
    rows = [row for row in figures.rows(kept(ours)) if row.name.startswith("step, 45 s: ")]
    assert {row.name.removeprefix("step, 45 s: ") for row in rows if not row.met} == missed
    assert len(rows) == 3


def test_only_cells_that_are_better_on_both_axes_are_counted() -> None:
    runs = kept((0.9, 1.0)) | kept((0.9, 1.3), "ramp") | kept((0.9, 1.0), "burst")
    row = next(row for row in figures.rows(runs) if row.name.startswith("cells of 2 (all but burst)"))
    assert (row.ours, row.met) == (1, False)


def test_pulses_are_compared_with_the_cheapest_fixed_layout_that_serves_as_well() -> None:
    runs = kept((0.39, 1.5), figures.PULSES[0])
    rows = {row.name: row for row in figures.rows(runs)}
    row = rows["pulses, 45 s: cost at equal goodput (0.390)"]
    assert (row.peer, row.met) == (1.6, True)
    assert not any(name.startswith("mean goodput") for name in rows)
    assert any(line.startswith("| pulses, 45 s |") for line in page.section(figures.cells(runs | kept())).splitlines())


def test_ours_beside_dynamo_is_of_the_seeds_where_dynamo_ran() -> None:
    runs = kept((0.8, 1.5), figures.PULSES[0], seed=1) | kept((0.4, 1.0), figures.PULSES[0], seed=2) | kept()
    second = runs["pulses/45/2"]
    second["complete"] = [part for part in second["complete"] if part != "dynamo"]
    rows = {row.name: row for row in figures.rows(runs)}
    assert rows["pulses, 45 s: goodput"].ours == pytest.approx(0.8)
    assert rows["pulses, 45 s: cost at equal goodput (0.600)"].ours == pytest.approx(1.25)
    (line,) = [each for each in page.section(figures.cells(runs)).splitlines() if each.startswith("| pulses, 45 s |")]
    assert "(seed 1; Pointsman there 0.800 / 1.50)" in line


def test_the_page_marks_cells_that_are_better_and_the_picture_shows_every_configuration() -> None:
    cells = figures.cells(kept() | kept((0.9, 1.3), "ramp"))
    lines = page.section(cells).splitlines()
    assert any(line.startswith("| step, 45 s ") and "**0.900 / 1.11×**" in line for line in lines)
    assert any(line.startswith("| ramp, 45 s ") and "| 0.900 / 1.44×" in line for line in lines)
    assert page.picture(cells).count("objectives x0.55: 0.700") == 2
    assert page.picture(cells).count("<circle") == 6 + 2 * (len(CONFIGURATIONS) + 4)
    assert page.section([]) == ""


def test_the_legend_of_the_picture_is_not_written_over_and_its_axes_are_said() -> None:
    root = ElementTree.fromstring(page.picture(figures.cells(kept())))
    svg = "{http://www.w3.org/2000/svg}"
    assert "Goodput over cost" in root.attrib["aria-label"]
    (said,) = (node.text for node in root.iter(f"{svg}text") if "GPU-hours" in (node.text or ""))
    assert said is not None and "goodput" in said
    texts = [node for node in root.iter(f"{svg}text") if node.attrib["y"] == "22"]
    dots = [float(node.attrib["cx"]) for node in root.iter(f"{svg}circle") if node.attrib["cy"] == "18.0"]
    ends = [float(node.attrib["x"]) + 6.2 * len(node.text or "") for node in texts]  # letters of 11 units
    assert all(end < dot - 5 for end, dot in zip(ends, dots[1:], strict=False))
    titles = [float(node.attrib["y"]) for node in root.iter(f"{svg}text") if node.attrib.get("font-weight")]
    tops = [float(node.attrib["y1"]) for node in root.iter(f"{svg}line")]
    assert min(tops) - titles[0] >= 6 + 4  # a dot at the top, and what hangs below the letters


def test_a_page_says_that_ours_is_of_an_older_planner_until_it_is_measured_again(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(random_page, "read_kept", dict)
    runs = kept() | kept(workload="ramp")
    runs["step/45/1"]["planner"] = sources.in_dynosim()
    (said,) = [
        line for line in page.section(figures.cells(runs)).splitlines() if "earlier state of its planner" in line
    ]
    assert "in ramp, 45 s:" in said
    runs["ramp/45/1"]["planner"] = sources.in_dynosim()
    assert not any("earlier state" in line for line in page.section(figures.cells(runs)).splitlines())


# --- plan ---


def planned(pieces: Iterable[published.Piece]) -> dict[tuple[str, int], set[str]]:
    return {(name, seed): {*piece.parts} for piece in pieces for name in piece.workloads for seed in piece.seeds}


def test_the_plain_command_measures_the_published_cells_and_no_other() -> None:
    whole = planned(published.wanted())
    cells = figures.cells(figures.kept_runs())
    for start_s in figures.STARTS_S:
        shown = {(cell.workload, seed) for cell in cells if cell.start_s == start_s for seed in cell.seeds}
        assert shown == whole.keys()
    # Azure's trace is the same in every seed; no other was looked at while the planner was made.
    assert {name for name, seed in whole if seed in figures.DEVELOPMENT} == {"azure_conv"}


def test_the_plan_measures_everything_a_cell_needs_to_be_shown() -> None:
    for (name, _), parts in planned(published.wanted()).items():
        needed = {"ours", "fixed"} if name in figures.PULSES else {"ours", "wrong", "dynamo", "clairvoyant", "causal"}
        assert needed <= parts


def test_ours_again_is_ours_wrong_beliefs_and_pulses_in_all_published_seeds() -> None:
    again = planned(published.wanted(parts=["ours"]))
    assert again.keys() == planned(published.wanted()).keys()
    for (name, _), parts in again.items():
        assert parts == ({"ours"} if name in figures.PULSES else {"ours", "wrong"})


def test_a_plan_can_be_cut_to_workloads_and_given_other_seeds() -> None:
    assert planned(published.wanted(["ramp", "pulses"], [7], ["dynamo"])) == {
        ("ramp", 7): {"dynamo"},
        ("pulses", 7): {"dynamo"},
    }
    assert {piece.runs for piece in published.wanted(["moon_conv"])} == {3}
    assert {piece.runs for piece in published.wanted(["moon_conv"], runs=1)} == {1}


def test_the_committed_rows_are_those_of_the_committed_runs() -> None:
    assert RUNS.exists()
    assert [*figures.rows(figures.kept_runs())] == read(RESULTS / "planner_dynamo.json")
