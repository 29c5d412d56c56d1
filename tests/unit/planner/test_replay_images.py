"""Requests with images in traces and replays."""

import json
import re
import xml.etree.ElementTree as ElementTree
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from pointsman.planner.errors import TraceError
from pointsman.planner.replay.command import main
from pointsman.planner.replay.generators import generate, named_shape
from pointsman.planner.replay.options import parse
from pointsman.planner.replay.requests import faster, first, superposed
from pointsman.planner.replay.summary import digest
from pointsman.planner.replay.trace_files import load_trace, write_trace
from unit.planner.replay_policy import POLICY

MOONCAKE = """\
{"timestamp": 0, "input_length": 700, "output_length": 20, "hash_ids": [1, 2], "images": 3}
{"timestamp": 400, "input_length": 300, "output_length": 30}
{"timestamp": 900, "input_length": 300, "output_length": 30, "images": 0}
{"timestamp": 1700, "input_length": 500, "output_length": 10, "images": 1}
"""
STEP = "mixshift:images=3,image_share=0.2,later_image_share=1,at_s=100,duration_s=200,rate=4,later_rate=4"


@pytest.fixture
def policy(tmp_path: Path) -> Path:
    path = tmp_path / "policy.yaml"
    path.write_text(POLICY.replace("maxGpus: 6", "maxGpus: 10"))
    return path


def run(policy: Path, *arguments: str, trace: str = STEP) -> int:
    return main(["--trace", trace, "--policy", str(policy), "--startup-seconds", "20", *arguments])


def test_images_of_a_mooncake_file_are_read_and_kept_by_whatever_changes_a_trace(tmp_path: Path) -> None:
    path = tmp_path / "some.jsonl"
    path.write_text(MOONCAKE)
    trace = load_trace(path).trace
    assert trace.images is not None
    assert trace.images.tolist() == [3, 0, 0, 1]
    write_trace(tmp_path / "own.jsonl", trace, {})
    again = load_trace(tmp_path / "own.jsonl").trace
    assert again.images is not None
    assert again.images.tolist() == [3, 0, 0, 1]
    twice = superposed(trace, 2)
    assert twice.images is not None
    assert sum(twice.images) == 8
    pairs = [(int(p), int(i)) for p, i in zip(twice.prompt_tokens, twice.images, strict=True) if i]
    assert sorted(pairs) == [(500, 1), (500, 1), (700, 3), (700, 3)]
    assert faster(trace, 2).images is trace.images
    cut = first(trace, 1.0).images
    assert cut is not None
    assert cut.tolist() == [3, 0, 0]
    assert digest(trace) != digest(replace(trace, images=None))


@pytest.mark.parametrize("wrong", ['"many"', "-1", "1.5", "10001", "true", "[2]"])
def test_a_number_of_images_that_cannot_be_is_named(tmp_path: Path, wrong: str) -> None:
    path = tmp_path / "some.jsonl"
    path.write_text(MOONCAKE.replace('"images": 3', f'"images": {wrong}'))
    with pytest.raises(TraceError, match=r"line 1: images is .*; a whole number of 0 or more"):
        load_trace(path)


def test_a_synthetic_load_with_images_is_the_same_load_otherwise() -> None:
    plain, shown = generate(named_shape("step"), 3), generate(named_shape("step:images=4,image_share=0.25"), 3)
    assert plain.images is None
    for name in ("arrival_s", "prompt_tokens", "output_tokens"):
        assert np.array_equal(getattr(plain, name), getattr(shown, name))
    assert shown.images is not None
    assert (shown.images > 0).mean() == pytest.approx(0.25, abs=0.02)
    assert shown.images[shown.images > 0].mean() == pytest.approx(4, rel=0.03)


@pytest.mark.parametrize(
    ("shape", "said"),
    [
        ("steady:image_share=2", "steady: image_share is 2: a share of 0 to 1"),
        ("mixshift:later_image_share=2", "mixshift: later_image_share is 2"),
        ("steady:images=0.5", "steady: images is 0.5: 1 or more of a request that has any, or 0"),
        ("steady:image=2", "did you mean images?"),
    ],
)
def test_images_that_cannot_be_are_named(shape: str, said: str) -> None:
    with pytest.raises(TraceError, match=re.escape(said)):
        generate(named_shape(shape), 1)


def test_encode_workers_are_shown_in_table_document_and_page(
    policy: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out, html = tmp_path / "out.json", tmp_path / "out.html"
    arguments = ("--encode-milliseconds", "100", "--workers", "2P1D", "--encode-workers", "2")
    assert run(policy, *arguments, "--json", str(out), "--html", str(html)) == 0
    said = capsys.readouterr().out
    assert re.search(r"at the start 2E2P1D", said)
    assert re.search(r"images +\d+ +at most \d+ waiting", said)
    assert re.search(r"encode workers +2 to \d +\d started, \d stopped", said)
    assert re.search(r"\d+ s  → [3-8]E\dP\dD EncodeShort: Scale encode workers from \d to \d: \d encode workers", said)
    document = json.loads(out.read_text())
    serving = [point["encode_active"] for point in document["timeline"]]
    assert serving[0] == 2
    assert max(serving) > 2
    assert document["simulation"]["encode_ms"] == 100
    assert document["trace"]["images"] > 100
    roles = {change["role"] for change in document["transitions"]}
    assert "Encode" in roles
    root = ElementTree.fromstring(html.read_text().split("\n", 1)[1])
    titles = [node.text for node in root.iter("{http://www.w3.org/2000/svg}text")]
    assert {"encode workers", "images waiting"} <= set(titles)


def test_a_replay_without_images_shows_nothing_of_them(
    policy: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    svg = tmp_path / "out.svg"
    assert run(policy, "--svg", str(svg), trace="steady:duration_s=30") == 0
    assert "encode" not in capsys.readouterr().out
    assert "encode" not in svg.read_text()


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ([], r"\d+ requests have images, \d+ in all; give the time for one as --encode-milliseconds MS"),
        (["--encode-milliseconds", "50", "--planner", "hpa"], "--planner hpa does not plan encode workers"),
        (["--encode-milliseconds", "50", "--encode-workers", "9"], "9 encode worker.* budget.maxGpus is 10"),
        (
            ["--encode-milliseconds", "50", "--encode-workers", "4", "--encode-bounds", "1-3"],
            "4 encode workers at the start are not within --encode-bounds 1-3",
        ),
    ],
)
def test_what_cannot_be_replayed_is_named_with_what_would_be_right(
    policy: Path, capsys: pytest.CaptureFixture[str], arguments: list[str], said: str
) -> None:
    assert run(policy, *arguments) == 2
    assert re.search(said, capsys.readouterr().err)


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["--encode-workers", "2"], "--encode-workers needs --encode-milliseconds MS"),
        (["--encode-bounds", "1-2"], "--encode-bounds needs --encode-milliseconds MS"),
        (["--workers", "2E1P1D"], "--workers with encode workers needs --encode-milliseconds MS"),
        (
            ["--encode-milliseconds", "5", "--workers", "2E1P1D", "--encode-workers", "3"],
            "--workers has 2 encode workers, --encode-workers 3: write one",
        ),
        (
            ["--encode-milliseconds", "5", "--workers", "0E1P1D"],
            "'0E1P1D' is no layout; write 2P4D for two prefill and four decode workers, or 3E2P4D with three encode "
            "workers, at least one each",
        ),
        (["--encode-milliseconds", "0"], "'0' is no number above 0"),
        (["--encode-milliseconds", "5", "--encode-bounds", "3-2"], "'3-2': write 1-6"),
    ],
)
def test_a_wrong_option_of_the_pool_is_named(
    policy: Path, capsys: pytest.CaptureFixture[str], arguments: list[str], said: str
) -> None:
    with pytest.raises(SystemExit):
        run(policy, *arguments)
    assert said in capsys.readouterr().err


@pytest.mark.parametrize(
    "arguments",
    [
        ("--workers", "2E1P2D"),
        ("--workers", "2e1p2d", "--encode-workers", "2"),
        ("--workers", "1P2D", "--encode-workers", "2"),
    ],
)
def test_encode_workers_are_given_in_the_layout_or_beside_it(arguments: tuple[str, ...]) -> None:
    options = parse(["--trace", "step", "--policy", "p.yaml", "--encode-milliseconds", "5", *arguments])
    assert (options.workers, options.encode_workers) == ((1, 2), 2)


def test_a_sweep_of_layouts_may_have_encode_workers(policy: Path, capsys: pytest.CaptureFixture[str]) -> None:
    rows = ("--sweep", "workers=1E1P2D,2E1P2D")
    assert run(policy, *rows, "--encode-milliseconds", "50", trace="steady:images=1,duration_s=20") == 0
    assert "2E1P2D" in capsys.readouterr().out
    assert run(policy, *rows, trace="steady:duration_s=20") == 2
    assert "--sweep workers: 1E1P2D needs --encode-milliseconds MS" in capsys.readouterr().err


def test_another_encode_time_is_another_service_for_a_comparison(
    policy: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out, short = tmp_path / "out.json", "steady:images=1,duration_s=20"
    assert run(policy, "--encode-milliseconds", "50", "--json", str(out), trace=short) == 0
    assert run(policy, "--encode-milliseconds", "60", "--compare", str(out), trace=short) == 2
    assert "encode_ms 50.0, this with 60.0" in capsys.readouterr().err


def test_a_pool_that_only_the_baseline_had_is_another_service_too(
    policy: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out, short = tmp_path / "out.json", "steady:duration_s=20"
    assert run(policy, "--encode-milliseconds", "50", "--json", str(out), trace=short) == 0
    assert run(policy, "--compare", str(out), trace=short) == 2
    assert "encode_ms 50.0, this with None" in capsys.readouterr().err
