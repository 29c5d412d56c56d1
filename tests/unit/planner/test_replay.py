"""``pointsman replay`` as a user types it, on small loads."""

import json
import random
import re
import xml.etree.ElementTree as ElementTree
from pathlib import Path
from typing import Any

import pytest

from pointsman.planner.replay import command
from pointsman.planner.replay.command import main
from pointsman.planner.replay.table import figure_rows
from unit.planner.replay_policy import POLICY

SMALL = "step:low=2,high=10,up_s=60,down_s=150,duration_s=200"
TRACES = Path(__file__).parent / "traces"
ROOT = Path(__file__).parents[3]
TABLES = ROOT / "planner" / "src" / "pointsman" / "planner" / "tables"
CHAT = ROOT / "examples" / "policies" / "chat.yaml"
AZURE = ROOT / "bench" / "data" / "azure-llm-2023" / "AzureLLMInferenceTrace_conv.csv.xz"
MINUTES = ("--workers", "1P1D", "--first-seconds", "300")


@pytest.fixture(scope="module")
def policy(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("replay") / "policy.yaml"
    path.write_text(POLICY)
    return path


@pytest.fixture(scope="module")
def baseline(policy: Path) -> Path:
    """The document of the policy on the small step."""
    path = policy.with_name("baseline.json")
    assert run(policy, "--json", str(path), "--html", str(path.with_suffix(".html"))) == 0
    return path


@pytest.fixture(scope="module")
def recorded(policy: Path) -> Path:
    """The document of the example policy on five minutes of a real chat service, for which 1P1D is too little."""
    path = policy.with_name("recorded.json")
    assert run(CHAT, *MINUTES, "--json", str(path), trace=str(AZURE)) == 0
    return path


@pytest.fixture
def document(baseline: Path) -> dict[str, Any]:
    made: dict[str, Any] = json.loads(baseline.read_text())
    return made


def run(policy: Path, *arguments: str, trace: str = SMALL) -> int:
    return main(["--trace", trace, "--policy", str(policy), "--startup-seconds", "30", *arguments])


def test_a_replay_says_what_it_came_to_and_why(policy: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(policy) == 0
    said = capsys.readouterr().out
    for word in ("attainment", "goodput", "GPU-hours", "TTFT", "TPOT", "ITL", "role switches", "reversals"):
        assert word in said
    assert re.search(
        r"\d+ s  → \dP\dD +(Prefill|Decode|Both)Short: .* Staying would keep \d+% of requests within objectives", said
    )


def test_objectives_that_no_layout_meets_are_said_with_what_would_be_right(
    policy: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    seconds = tmp_path / "seconds.yaml"
    seconds.write_text(re.sub(r"ttftMs: [\d.]+", "ttftMs: 1.5", policy.read_text()))
    assert seconds.read_text() != policy.read_text()
    assert run(seconds) == 0
    assert re.search(
        r"out of reach: objectives\.ttftMs .* No layout meets that; write more than \d+", capsys.readouterr().out
    )
    assert run(policy) == 0
    assert "out of reach" not in capsys.readouterr().out


@pytest.mark.parametrize(("attainment", "said"), [(0.95, True), (0.89, False)])
def test_the_share_of_prompts_that_are_out_of_reach_is_that_of_all_of_the_trace(
    attainment: float, said: bool, policy: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """One in ten prompts takes three times its objective on an idle worker. Of the first ones, by chance, one in five;
    and gateways count no request as late before one has ended."""
    draw, at_s, lines = random.Random(5), 0.0, []
    for number in range(800):
        at_s += draw.expovariate(2.0)
        tokens = 100_000 if number % 10 == 3 or number == 4 else 800
        lines.append(json.dumps({"timestamp": int(at_s * 1000), "input_length": tokens, "output_length": 100}))
    trace, asked = tmp_path / "long.jsonl", tmp_path / "asked.yaml"
    trace.write_text("\n".join(lines) + "\n")
    asked.write_text(policy.read_text().replace("tpotMs: 40", f"tpotMs: 40, attainment: {attainment}"))
    assert run(asked, "--workers", "2P2D", trace=str(trace)) == 0
    found = re.search(r"out of reach: about (\d+)% of requests .* below 0\.(\d+)", capsys.readouterr().out)
    assert (found is not None) is said
    if found is not None:
        assert 9 <= int(found[1]) <= 11
        assert int(found[2]) == pytest.approx(90, abs=1)


def test_prompts_that_are_out_of_reach_are_reported_also_if_they_changed_no_decision(
    policy: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """They come late, and the policy allows no change."""
    lines = []
    for number in range(600):
        tokens = 100_000 if number > 200 and number % 5 == 0 else 800
        lines.append(json.dumps({"timestamp": 500 * number, "input_length": tokens, "output_length": 100}))
    trace, fixed = tmp_path / "late.jsonl", tmp_path / "fixed.yaml"
    trace.write_text("\n".join(lines) + "\n")
    actions = "{roleSwitch: {enabled: false}, scaleOut: {enabled: false}, scaleIn: {enabled: false}, "
    actions += "flowControl: {enabled: false}, remotePrefill: {enabled: false}}"
    fixed.write_text(re.sub(r"actions: .*", f"actions: {actions}", policy.read_text()))
    assert run(fixed, "--workers", "2P3D", trace=str(trace)) == 0
    found = re.search(r"out of reach: about (\d+)% of requests", capsys.readouterr().out)
    assert found is not None
    assert 8 <= int(found[1]) <= 14


def test_the_same_seed_gives_the_same_document(policy: Path, document: dict[str, Any], tmp_path: Path) -> None:
    assert run(policy, "--json", str(tmp_path / "again.json")) == 0
    again = json.loads((tmp_path / "again.json").read_text())
    assert {**again, "command": ""} == {**document, "command": ""}


def test_the_document_adds_up(document: dict[str, Any]) -> None:
    made = document
    figures = made["figures"]
    ended = sum(figures[name] for name in ("completed", "shed", "unfinished", "refused"))
    assert ended == figures["requests"] == made["trace"]["requests"] == sum(w["arrivals"] for w in made["windows"])
    met = sum(window["met"] for window in made["windows"])
    assert met / figures["requests"] == pytest.approx(figures["attainment"], abs=1e-6)
    assert figures["attainment"] <= min(figures["ttft_attainment"], figures["tpot_attainment"])
    assert figures["ttft_ms"]["p50"] <= figures["ttft_ms"]["p99"]
    assert max(p["prefill_active"] + p["decode_active"] for p in made["timeline"]) <= 6
    assert figures["gpu_hours"] * 3600 >= 2 * made["trace"]["duration_s"]


def test_the_page_is_well_formed_loads_nothing_and_shows_every_decision(
    baseline: Path, document: dict[str, Any]
) -> None:
    text = baseline.with_suffix(".html").read_text()
    root = ElementTree.fromstring(text.split("\n", 1)[1])  # without the doctype
    assert not re.search(r'(src|href)="', text)
    assert "<script" not in text
    svg, html = "{http://www.w3.org/2000/svg}", "{http://www.w3.org/1999/xhtml}"
    titles = [node.text for node in root.iter(f"{svg}text")]
    for title in ("requests per second", "workers by role", "share within objectives"):
        assert title in titles
    changes = [decision for decision in document["decisions"] if decision["changes_layout"]]
    assert changes
    assert [node.text for node in root.iter(f"{html}summary")] == [decision["message"] for decision in changes]
    assert "nan" not in "".join(path.attrib["d"] for path in root.iter(f"{svg}path")).lower()


def test_the_pictures_alone_are_an_svg_document(policy: Path, tmp_path: Path) -> None:
    assert run(policy, "--svg", str(tmp_path / "out.svg")) == 0
    assert ElementTree.parse(tmp_path / "out.svg").getroot().tag.endswith("svg")


def test_an_equal_policy_passes_the_gate_and_a_worse_one_fails_it(
    policy: Path, baseline: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    gate = ("--compare", str(baseline), "--fail-if-worse", "1%")
    assert run(policy, *gate) == 0
    assert "not worse by more than 1.00%" in capsys.readouterr().out
    worse = tmp_path / "worse.yaml"
    worse.write_text(POLICY.replace("{scaleIn", "{scaleOut: {enabled: false}, scaleIn"))
    assert run(worse, *gate) == 1
    said = capsys.readouterr().out
    assert re.search(r"attainment fell from \d+\.\d+% to \d+\.\d+%", said)
    assert run(worse, "--compare", str(baseline)) == 0  # a difference is only shown unless asked to fail


def test_promising_less_does_not_pass_the_gate(baseline: Path, tmp_path: Path) -> None:
    lax = tmp_path / "lax.yaml"
    promises = POLICY.replace("ttftMs: 1500, tpotMs: 40", "ttftMs: 60000, tpotMs: 1000")
    lax.write_text(promises.replace("{scaleIn", "{scaleOut: {enabled: false}, scaleIn"))
    assert run(lax, "--compare", str(baseline), "--fail-if-worse", "1%") == 1


@pytest.mark.parametrize(
    ("before", "after", "status", "said"),
    [
        ("maxGpus: 16", "maxGpus: 2", 1, r"attainment fell from \d+\.\d+% to \d+\.\d+%\n  worse by more than 1\.00%"),
        ("minGpus: 2 ", "minGpus: 5 ", 0, r"GPU-hours rose from .*, for an attainment of .*\n  not worse by more"),
        (
            "stabilizationSeconds: 300",
            "stabilizationSeconds: 310",
            0,
            r"GPU-hours (\S+) → \1\n  not worse by more than 1\.00%",
        ),
    ],
    ids=["too small a budget", "dearer and better", "nothing that matters here"],
)
def test_a_change_of_an_example_policy_is_judged_on_minutes_of_a_real_service(
    recorded: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], before: str, after: str, status: int, said: str
) -> None:
    text = CHAT.read_text()
    assert text.count(before) == 1
    changed = tmp_path / "changed.yaml"
    changed.write_text(text.replace(before, after))
    assert run(changed, *MINUTES, "--compare", str(recorded), "--fail-if-worse", "1%", trace=str(AZURE)) == status
    found = capsys.readouterr().out
    assert re.search(said, found), found


@pytest.fixture
def mooncake(tmp_path: Path) -> Path:
    """A small file with an id for every 16 tokens of its prompts, the first 50 of which are shared."""
    lines = []
    for number in range(40):
        prompt = 817 + 16 * (number % 5)
        ids = [*range(50), *range(100 * number + 100, 100 * number + 100 + -(-prompt // 16) - 50)]
        lines.append({"timestamp": 731 * number, "input_length": prompt, "output_length": 20, "hash_ids": ids})
    path = tmp_path / "mooncake.jsonl"
    path.write_text("\n".join(map(json.dumps, lines)))
    return path


def test_the_size_of_a_traces_blocks_is_told_or_given_and_one_is_not_compared_with_another(
    policy: Path, mooncake: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    before = str(tmp_path / "told.json")
    assert run(policy, "--json", before, trace=str(mooncake)) == 0
    assert "stands for 16 tokens, not for 512, as their number shows in every request" in capsys.readouterr().out
    assert run(policy, "--block-tokens", "16", "--compare", before, trace=str(mooncake)) == 0
    assert "stands for 16 tokens (--block-tokens)" in capsys.readouterr().out
    assert run(policy, "--block-tokens", "8", "--compare", before, trace=str(mooncake)) == 2
    assert "another trace" in capsys.readouterr().err
    assert run(policy, "--block-tokens", "32", trace=str(mooncake)) == 2
    assert "--block-tokens N sets another size, 16 or less" in capsys.readouterr().err
    assert run(policy, "--block-tokens", "16", "--sweep", "seed=1,2", trace=str(mooncake)) == 0


def test_a_size_of_blocks_for_a_trace_without_any_is_refused(policy: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for trace in (SMALL, str(TRACES / "azure.csv")):
        assert run(policy, "--block-tokens", "16", trace=trace) == 2
        assert f"{trace}: --block-tokens is of ids of prompts' blocks, and it has none" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("arguments", "trace", "said"),
    [
        (["--seed", "2"], SMALL, "another trace"),
        ([], "steady:duration_s=60", "another trace"),
        (["--startup-seconds", "60"], SMALL, "startup_s 30.0, this with 60.0"),
    ],
)
def test_what_cannot_be_compared_is_refused(
    policy: Path, baseline: Path, capsys: pytest.CaptureFixture[str], arguments: list[str], trace: str, said: str
) -> None:
    assert run(policy, "--compare", str(baseline), *arguments, trace=trace) == 2
    assert said in capsys.readouterr().err


def test_engines_that_run_few_sequences_at_once_are_planned_as_such(policy: Path, tmp_path: Path) -> None:
    out = tmp_path / "few.json"
    assert run(policy, "--max-sequences", "6", "--json", str(out), trace="steady:duration_s=60") == 0
    document = json.loads(out.read_text())
    assert document["simulation"]["max_sequences"] == 6
    batches = [decision["inputs"]["decodeBatch"] for decision in document["decisions"] if decision["inputs"]]
    assert batches and max(batches) <= 6


def test_a_sweep_is_a_row_for_every_combination(
    policy: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "rows.json"
    sweeps = ["--sweep", "budget.maxGpus=3,6", "--sweep", "startup-seconds=10,60"]
    assert run(policy, *sweeps, "--json", str(out), trace="steady:duration_s=60") == 0
    rows = json.loads(out.read_text())["rows"]
    assert [tuple(row["settings"].values()) for row in rows] == [("3", "10"), ("3", "60"), ("6", "10"), ("6", "60")]
    assert "budget.maxGpus" in capsys.readouterr().out


def test_both_public_formats_are_replayed(policy: Path) -> None:
    for name in ("mooncake.jsonl", "azure.csv"):
        assert run(policy, trace=str(TRACES / name)) == 0


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["--sweep", "budget.maxGpu=3"], "budget.maxGpu: there is no such field; did you mean maxGpus?"),
        (["--sweep", "startup-second=3"], "or did you mean the option startup-seconds?"),
        (["--sweep", "workers=4"], "'4' is no layout; write 2P4D"),
        (["--planner", "nobody"], "--planner is 'nobody'; known: pointsman"),
        (["--gpu", "h100"], "not shipped; the nearest are"),
        (["--workers", "5P5D"], "--workers 5P5D needs 10 GPUs, budget.maxGpus is 6"),
        (["--compare", "nothing.json"], "nothing.json: it cannot be read"),
        (["--first-seconds", "0"], "no request arrives in the first 0 s"),
        (["--json", "/proc/out.json", "--first-seconds", "20"], "it cannot be written"),
    ],
)
def test_what_cannot_be_used_is_named_and_ends_with_2(
    policy: Path, capsys: pytest.CaptureFixture[str], arguments: list[str], said: str
) -> None:
    assert run(policy, *arguments) == 2
    assert said in capsys.readouterr().err


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["--fail-if-worse", "1%"], "--fail-if-worse needs --compare"),
        (["--fail-if-worse", "much", "--compare", "x"], "'much' is no share such as 1%"),
        (["--workers", "P2"], "'P2' is no layout"),
        (["--noise", "2"], "'2' is no share of 0 to 1"),
        (["--speed", "0"], "'0' is no number above 0"),
        (["--sweep", "budget.maxGpus"], "write KEY=A,B,C"),
        (["--sweep", "a=1", "--html", "x"], "--sweep goes with --json only"),
        (["--json", "/nope/x"], "--json: there is no folder /nope; create it, or name another file"),
        (["--html", "/nope/x"], "--html: there is no folder /nope; create it, or name another file"),
        (["--svg", "/"], "--svg: / is a folder; name a file"),
        (["--svg", f"/{'x' * 300}/y"], "cannot be written: File name too long"),
    ],
)
def test_a_wrong_option_is_named_and_ends_with_2(
    policy: Path, capsys: pytest.CaptureFixture[str], arguments: list[str], said: str
) -> None:
    with pytest.raises(SystemExit) as ended:
        run(policy, *arguments)
    assert ended.value.code == 2
    assert said in capsys.readouterr().err


def test_a_mistake_in_the_options_is_one_line(policy: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        run(policy, "--noise", "2")
    said = capsys.readouterr().err
    assert said == "pointsman replay: argument --noise: '2' is no share of 0 to 1; see 'pointsman replay --help'\n"


def test_metrics_may_be_stale_sooner_than_the_next_evaluation(policy: Path, tmp_path: Path) -> None:
    """Each evaluation decides on pages that it has just read, so no rule keeps ``staleAfterSeconds`` above the
    interval. With Prometheus, ``PlannerHealthy`` reports a value that is too small."""
    decisions = []
    for stale_s in (5, 60):
        changed, out = tmp_path / "policy.yaml", tmp_path / "out.json"
        changed.write_text(POLICY.replace("intervalSeconds: 5", f"intervalSeconds: 30, staleAfterSeconds: {stale_s}"))
        assert run(changed, "--json", str(out)) == 0
        decisions.append(json.loads(out.read_text())["decisions"])
    assert any(made["changes_layout"] for made in decisions[0])
    assert decisions[0] == decisions[1]


def test_one_request_has_no_rate(policy: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    trace, out = tmp_path / "one.csv", tmp_path / "one.json"
    trace.write_text("TIMESTAMP,ContextTokens,GeneratedTokens\n2023-11-16 18:15:46.6805900,374,44\n")
    assert run(policy, "--json", str(out), trace=str(trace)) == 0
    assert re.search(r"goodput +unknown", capsys.readouterr().out)
    assert json.loads(out.read_text())["figures"]["goodput_per_s"] is None
    assert run(policy, "--sweep", "seed=1", trace=str(trace)) == 0
    assert "unknown" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("prompt_tokens", "output_tokens", "times", "refused"),
    [
        (800, 1, r"TTFT +\d.*TPOT +none +every answer has one token\nITL +none +every answer has one token\n", None),
        (800, 2, r"TTFT +\d.*TPOT +\d.*ITL +\d", None),
        (
            300_000,
            2,
            r"TTFT +none +no request was answered\nTPOT +none .*ITL +none +no request was answered\n",
            "requests refused: 3; prompt and answer do not fit into 131072 tokens, the longest context of a simulated "
            "engine",
        ),
    ],
)
def test_times_that_no_answer_has_are_none_and_refusals_have_their_reason(
    prompt_tokens: int,
    output_tokens: int,
    times: str,
    refused: str | None,
    policy: Path,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    header = {"format": "pointsman-trace", "version": 1, "name": "short", "block_tokens": 512}
    requests = [
        {"arrival_s": float(at_s), "prompt_tokens": prompt_tokens, "output_tokens": output_tokens} for at_s in range(3)
    ]
    trace = tmp_path / "short.jsonl"
    trace.write_text("".join(f"{json.dumps(line)}\n" for line in (header, *requests)))
    assert run(policy, trace=str(trace)) == 0
    said = re.sub(" +\n", "\n", capsys.readouterr().out)
    assert re.search(times, said, re.DOTALL), said
    assert ("requests refused" in said) == (refused is not None)
    assert (refused or "") in said


def test_requests_that_exceed_the_kv_cache_of_a_worker_are_refused_with_its_size(
    policy: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    shipped = json.loads((TABLES / "Meta-Llama-3.1-8B__l40s__vllm__tp1.json").read_text())
    table = tmp_path / "small.json"
    table.write_text(json.dumps({**shipped, "kv_capacity_tokens": 50_000}))
    large = "steady:rate=1,duration_s=5,prompt_tokens=60000,length_cv=0"
    assert run(policy, "--table", str(table), trace=large) == 0
    assert "prompt and answer do not fit into the 50000 tokens of a worker's KV cache" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("changed", "said"),
    [
        ({"held": 0}, ""),
        ({"held": 451, "longest_held_s": 141.2}, "late anyway, none refused; the longest 141 s"),
        ({"held": 451, "longest_held_s": 141.2, "shed": 3}, "late anyway; the longest 141 s"),
        ({"held": 451, "longest_held_s": 141.2, "refused": 1}, "late anyway; the longest 141 s"),
    ],
)
def test_that_nobody_was_refused_is_said_where_it_is_so(
    document: dict[str, Any], changed: dict[str, float], said: str
) -> None:
    none = {"held": 0, "shed": 0, "refused": 0}
    rows = figure_rows({**document, "figures": {**document["figures"], **none, **changed}})
    assert next(remark for name, _, remark in rows if name == "queued") == said


def test_the_engine_is_vllm_unless_another_is_named_as_an_option(tmp_path: Path) -> None:
    named = tmp_path / "policy.yaml"
    named.write_text(POLICY.replace("gpu: h100_sxm", "gpu: h100_sxm, engine: sglang"))

    def simulated(*arguments: str) -> Any:
        found = tmp_path / "found.json"
        assert run(named, *arguments, "--json", str(found), trace="steady:rate=1,duration_s=10") == 0
        return json.loads(found.read_text())["simulation"]["engine"]

    assert simulated() == "vllm", "the policy's field is ignored"
    assert simulated("--engine", "sglang") == "sglang"


def test_a_table_that_flags_make_and_that_is_not_shipped_is_refused_by_them(
    policy: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(policy, "--model", "meta-llama/Meta-Llama-3.1-70B") == 2
    said = capsys.readouterr().err
    assert "--model, --gpu, --engine and --tp make 'Meta-Llama-3.1-70B h100_sxm vllm tp1': not shipped" in said
    assert "Meta-Llama-3.1-70B h100_sxm vllm tp4" in said


def test_fields_of_the_version_before_are_ignored_and_named_and_make_no_sweep(
    policy: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    before = tmp_path / "before.yaml"
    before.write_text(policy.read_text().replace("{scaleIn", "{roleSwitch: {minDwellSeconds: 5}, scaleIn"))
    assert run(before, "--first-seconds", "20") == 0
    said = " ".join(capsys.readouterr().out.split())
    assert "this version ignores fields of the policy: actions.roleSwitch.minDwellSeconds (5)" in said
    assert run(policy, "--first-seconds", "20", "--sweep", "actions.roleSwitch.minDwellSeconds=60,5") == 2
    assert "actions.roleSwitch.minDwellSeconds: this version ignores the field" in capsys.readouterr().err


MINIMAL = "objectives: {ttftMs: 1500, tpotMs: 40}\nbudget: {maxGpus: 6}\n"
ASSUMED = (
    "the policy has no performance.table: the engine is assumed to be meta-llama/Meta-Llama-3.1-8B on h100_sxm (vllm, "
    "TP 1); --model and --gpu, or --table, choose another"
)


def test_a_minimal_policy_as_a_cluster_takes_it_is_replayed_on_an_engine_that_is_named(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    bare = tmp_path / "bare.yaml"
    bare.write_text(MINIMAL)
    assert run(bare, "--first-seconds", "20") == 0
    assert ASSUMED in capsys.readouterr().out
    assert run(bare, "--model", "meta-llama/Meta-Llama-3.1-8B", "--gpu", "l40s", "--first-seconds", "20") == 0
    assert "assumed" not in capsys.readouterr().out


def test_half_an_engine_is_refused_with_the_tables_that_fit(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    bare = tmp_path / "bare.yaml"
    bare.write_text(MINIMAL)
    assert run(bare, "--model", "meta-llama/Meta-Llama-3.1-8B", "--engine", "vllm") == 2
    said = capsys.readouterr().err
    assert "--gpu is needed, or --table: the policy names no performance.table; shipped are Meta-Llama-3.1-8B" in said
    assert "Meta-Llama-3.1-8B l40s vllm tp1" in said
    assert "70B" not in said


def test_a_table_that_only_a_cluster_has_is_asked_for_as_a_file(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    bare = tmp_path / "bare.yaml"
    bare.write_text(MINIMAL + "performance: {configMap: {name: mine}}\n")
    assert run(bare) == 2
    assert "performance.configMap is 'mine', which is in a cluster: --table FILE gives" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"figures": {"attainment": float("nan"), "gpu_hours": 1.0}}, "figures.attainment is not as"),
        ({"figures": {"attainment": 0.9}}, "figures.gpu_hours is not as"),
        ({"figures": []}, "figures is not as"),
        ({"objectives": {"ttft_ms": "1500"}}, "objectives.ttft_ms is not as"),
        ({"trace": None}, "trace is not as"),
        ({"version": 2}, "it is no result of 'pointsman replay --json' of this version"),
    ],
)
def test_a_baseline_that_is_damaged_is_exit_status_2_and_no_verdict(
    policy: Path, document: dict[str, Any], tmp_path: Path, capsys: pytest.CaptureFixture[str],
    changes: dict[str, Any], said: str,
) -> None:  # fmt: skip
    damaged = tmp_path / "damaged.json"
    damaged.write_text(json.dumps(document | changes))
    assert run(policy, "--compare", str(damaged), "--fail-if-worse", "1%") == 2
    assert said in capsys.readouterr().err


def test_a_defect_is_never_the_exit_status_that_means_worse(
    policy: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(command, "load_policy", lambda _: 1 / 0)
    assert run(policy) == 70
    assert "internal error of Pointsman, no verdict on the policy" in capsys.readouterr().err


def test_a_trace_whose_times_cannot_be_is_refused_before_the_run_and_played_where_that_is_asked_for(
    policy: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    seconds = tmp_path / "seconds.jsonl"
    line = '{"timestamp": %d, "input_length": 100, "output_length": 10}'
    seconds.write_text("\n".join(line % number for number in range(60)))
    assert run(policy, trace=str(seconds)) == 2
    assert (
        "60 requests in 0.059 s are 1017 requests/s (read as Mooncake JSON lines, timestamp in ms)"
        in capsys.readouterr().err
    )
    assert run(policy, "--time-unit", "s", trace=str(seconds)) == 0
    assert "60 requests in 1.0 min" in capsys.readouterr().out
    assert run(policy, "--accept-times", trace=str(seconds)) == 0


@pytest.mark.parametrize("policy_text", ["budget: {maxGpus: {{ .Values.maxGpus }}}\n", "[", "\x00", "? {}\n: 1\n"])
def test_a_policy_that_cannot_be_read_is_exit_status_2_with_one_sentence(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], policy_text: str
) -> None:
    template = tmp_path / "policy.yaml"
    template.write_text(MINIMAL + policy_text)
    assert run(template, "--compare", str(tmp_path / "before.json"), "--fail-if-worse", "1%") == 2
    said = capsys.readouterr().err
    assert said.startswith("pointsman replay: ")
    assert len(said.splitlines()) == 1


def test_help_has_examples(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        main(["--help"])
    assert ended.value.code == 0
    assert "pointsman replay --trace step --policy examples/policies/chat.yaml" in capsys.readouterr().out
