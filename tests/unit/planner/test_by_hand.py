"""The page that recomputes a decision by hand has the numbers of a real one, and its arithmetic is right."""

import json
import math
import random
import re
import shlex
import subprocess
import sys
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from statistics import NormalDist
from typing import Final

import pytest
import yaml
from bench.planner.loads import LOADS

from pointsman.api.v1alpha1.plannerpolicy import PlannerPolicySpec
from pointsman.planner.core.engine.learned_model import pass_ms
from pointsman.planner.core.plan_ledger import plan_manifest
from pointsman.planner.core.routing.publication import Publication
from pointsman.planner.core.sizing import demand, operating_point
from pointsman.planner.core.sizing.queueing import delayed_wait_s, erlang_c
from pointsman.planner.core.tuning import SHIPPED
from pointsman.planner.core.types import Decision, Layout, Observation, Reason, Service
from pointsman.planner.core.what_if import TurningPoints
from pointsman.planner.core.workload.arrival_forecast import RateForecaster, Trend
from pointsman.planner.explain.command import parse
from pointsman.planner.explain.explanation import Told, considered, explanation, input_lines
from pointsman.planner.replay import command as replay_command
from pointsman.planner.simulator.baselines.pointsman import ours
from pointsman.planner.simulator.simulate import simulate
from pointsman.serving.flow_control import FlowBounds
from pointsman.serving.token_budget import DEFAULT_PREFILL_TOKEN_BUDGET
from unit.planner.by_hand import ENGINE, KV_CAPACITY_TOKENS, LOAD, POLICY, ROUTING, WINDOW_S, WORKERS, decided
from unit.planner.plans import OWNER, plan

ROUNDING = 0.02  # of a decode worker, that is no reason for another one

ROOT: Final = Path(__file__).parents[3]
PAGE: Final = (ROOT / "docs/planner/by-hand.md").read_text()
WORDS: Final = " ".join(PAGE.split())


@pytest.fixture(scope="module")
def decision() -> Decision:
    """The page's."""
    return decided()[1]


@pytest.fixture(scope="module")
def shown() -> dict[str, float]:
    """Read off the page."""
    found = re.findall(r"^(\w+) +([\d.]+)(?: |$)", INPUTS, re.MULTILINE)
    return {name: float(value) for name, value in found}


def blocks(language: str) -> list[str]:
    """The page's code blocks in a language."""
    return re.findall(rf"^```{language}\n(.*?)^```", PAGE, re.MULTILINE | re.DOTALL)


INPUTS, LAYOUTS = blocks("text")
PROGRAM: Final = (ROOT / "examples/by_hand.py").read_text()


def missing(texts: Iterable[str]) -> list[str]:
    """Those that the page does not have."""
    return [text for text in texts if text not in WORDS]


def spaced(number: float) -> str:
    """With a space before each three digits."""
    return f"{number:,.0f}".replace(",", " ")


def test_the_page_shows_the_inputs_and_the_message_of_a_real_decision(
    decision: Decision, shown: dict[str, float]
) -> None:
    inputs = dict(decision.inputs)
    units = {name: unit for name, _, *unit in map(str.split, input_lines(decision.inputs))}
    assert all(
        re.search(rf"^{name} +[\d.]+{' +'.join(['', *units[name]])}( |$)", INPUTS, re.MULTILINE) for name in shown
    )
    assert len(shown) == 21
    assert shown == {name: pytest.approx(inputs[name]) for name in shown}
    change = "Scale out from 2P2D to 3P3D: too few workers of both roles."
    assert f"{change} " in decision.message
    assert missing([change, f"the reason `{decision.reason}`"]) == []


def test_the_inputs_follow_from_the_engine_and_the_policy_as_the_page_says(shown: dict[str, float]) -> None:
    alone_ms, one_ms = ENGINE.prefill_ms(2000, 0), ENGINE.prefill_ms(1, 0)
    together = DEFAULT_PREFILL_TOKEN_BUDGET // 2000
    of_pass_ms = pass_ms(ENGINE, together, 2000, 0)
    batch = (shown["stepMilliseconds"] - ENGINE.decode_d0) / (ENGINE.decode_d1 + ENGINE.decode_d2 * 2150)
    assert alone_ms == pytest.approx(shown["prefillAloneMilliseconds"])
    assert of_pass_ms / together == pytest.approx(shown["prefillMilliseconds"], abs=5e-5)
    assert batch == pytest.approx(shown["decodeBatch"], abs=5e-5)
    assert shown["stepMilliseconds"] == pytest.approx(0.985 * 20)
    slack_ms = 0.9 * 1500 - alone_ms - shown["transferMilliseconds"] - 1.5 * shown["stepMilliseconds"]
    assert slack_ms == pytest.approx(shown["slackMilliseconds"])
    usable, needed = SHIPPED.usable_kv_share * KV_CAPACITY_TOKENS, batch * 2150
    assert needed < usable, "else the cache limits the batch"
    first = RateForecaster().dispersion * 0.98**5
    assert first == pytest.approx(shown["arrivalDispersion"], abs=5e-5)
    assert missing([
        f"4.705 + 0.01757 × 2000 + 4.3925·10⁻⁷ × 2000² = {alone_ms:.3f}",
        f"{together} × {alone_ms:.3f} − {together - 1} × {one_ms:.4f} = {of_pass_ms:.3f} ms",
        f"at most {DEFAULT_PREFILL_TOKEN_BUDGET} tokens",
        f"{of_pass_ms / together:.3f} ms per prompt",
        f"(19.7 − 6.392) / (0.009885 + 0.00004273 × 2150) = {batch:.3f}",
        f"0.9 × 1500 − 41.602 − 0 − 1.5 × 19.7 = {slack_ms:.3f}",
        "1.5 × 0.98⁵ = 1.3559",
        f"{spaced(KV_CAPACITY_TOKENS)} tokens, {SHIPPED.usable_kv_share * 100:g} % are usable (`usable_kv_share`), and "
        f"{batch:.1f} × 2150 = {spaced(round(needed, -2))} fit",
        f"{of_pass_ms:.3f} − {alone_ms:.3f} = {of_pass_ms - alone_ms:.3f} ms later than alone",
    ]) == []  # fmt: skip


def test_the_decode_workers_of_the_page_are_those_that_were_decided(shown: dict[str, float]) -> None:
    batch, dispersion = shown["decodeBatch"], shown["contextDispersion"]

    def sequences(rate: float) -> tuple[float, float]:
        mean = rate * shown["outputTokens"] * shown["stepMilliseconds"] / 1000
        return mean, math.sqrt(mean * (1 + dispersion))

    (mean, deviation), (fewer, deviation_of_fewer) = sequences(shown["expectedRatePerSecond"]), sequences(43)
    high, low = (NormalDist().inv_cdf(1 - 2 * (1 - attainment)) for attainment in (0.95, 0.8))
    assert [high, low] == pytest.approx([demand.deviations(0.95), demand.deviations(0.8)])
    workers = (mean + high * deviation) / batch
    assert missing([
        f"*A* = 50 × 300 × 0.0197 s = {mean:.1f}",
        f"√({mean:.1f} × {1 + dispersion:.1f}) = {deviation:.3f}",
        f"1 − 2 × 0.05 = 0.90: {high:.4f}",
        f"({mean:.1f} + {high:.4f} × {deviation:.3f}) / {batch:.4f} = {workers:.3f}. Rounded up: **3**",
        f"*A* is {fewer:.2f} and the standard deviation {deviation_of_fewer:.3f}",
        f"({fewer:.2f} + {high:.4f} × {deviation_of_fewer:.3f}) / {batch:.4f} = "
        f"{(fewer + high * deviation_of_fewer) / batch:.3f}, so 3 workers",
        f"With *z* = {low:.4f}, attainment 0.8 needs {(fewer + low * deviation_of_fewer) / batch:.3f}, so 2.",
    ]) == []  # fmt: skip
    assert demand.deviations(0.75) == demand.deviations(0.5) == 0, "from 0.75 down"


@pytest.mark.parametrize(
    ("rate", "attainment", "needed"),
    [
        (43, 0.95, 3), (43, 0.8, 2), (50, 0.95, 3), (50, 0.8, 3),
        (43.9, 0.8, 2), (44, 0.8, 3),  # 2.017 and 2.021 before rounding
    ],
)  # fmt: skip
def test_a_lower_attainment_needs_the_decode_workers_that_the_page_says(
    rate: float, attainment: float, needed: int
) -> None:
    objectives = replace(POLICY.objectives, attainment=attainment)
    _, made = decided(replace(POLICY, objectives=objectives), replace(LOAD, arrivals_per_s=rate))
    assert dict(made.inputs)["decodeNeeded"] == needed


def test_the_prefill_workers_of_the_page_are_those_that_were_decided(shown: dict[str, float]) -> None:
    prefill_s, slack_s = shown["prefillMilliseconds"] / 1000, shown["slackMilliseconds"] / 1000
    rate, arrivals, prefills = shown["expectedRatePerSecond"], shown["arrivalDispersion"], shown["prefillDispersion"]
    work, rows, late = rate * shown["remoteShare"] * prefill_s, [], {}
    for workers in (2, 3):
        waits = erlang_c(workers, work)
        wait_s = delayed_wait_s(workers, rate, prefill_s, arrivals, prefills)
        assert wait_s == pytest.approx(prefill_s * (arrivals + prefills) / 2 / (workers - work)), "as it is written"
        late[workers] = waits * math.exp(-slack_s / wait_s)
        rows.append(f"| {workers} | {work / workers:.2%} | {waits:.4f} | {wait_s:.4f} s |".replace("%", " %"))
    assert late[2] < 0.05 < work / 2, "the share of late ones alone would allow two"
    assert missing([
        f"0.0380601 s = {work:.4f} busy workers",
        f"(1.3559 + 0.1) / 2 / (workers − {work:.4f})",
        f"{rows[0]} {late[2] * 100:.2f} % | **no: busy above 93 %** |",
        f"{rows[1]} practically 0 ({f'{late[3]:.0e}'[0]}·10⁻²³) | yes |",
        f"two workers have room for {2 / work - 1:.1%} more".replace("%", " %"),
        f"busy 93 % for {1 / SHIPPED.max_prefill_utilization - 1:.1%}".replace("5%", "5 %"),
    ]) == []  # fmt: skip
    assert f"{late[3]:.0e}".endswith("e-23")


def test_the_page_shows_the_alternatives_of_the_decision_and_when_it_was_made(decision: Decision) -> None:
    assert LAYOUTS.splitlines() == considered(decision.alternatives)[:4]
    evaluations, _ = decided()
    assert evaluations == 6
    assert evaluations * WINDOW_S == SHIPPED.patience_s == 15
    even = RateForecaster()
    for evaluation in range(evaluations):
        even = even.observe(LOAD.arrivals_per_s * WINDOW_S, WINDOW_S, WINDOW_S * evaluation)
        assert even.dispersion == pytest.approx(1.5 * 0.98**evaluation), "the first one only sets the rate"
    assert {other.lead_s for other in decision.alternatives if "out" in other.action} == {POLICY.start_s} == {90}
    assert (
        missing(["first evaluation only sets the rate; the next five measure", "starts in 90 s. The first four are:"])
        == []
    )
    assert (
        missing(["every 2.5 s", "lowest need of the last 15 s", "in six evaluations, so the sixth one writes the plan"])
        == []
    )


def needs_of(inputs: Mapping[str, float]) -> str:
    """Of a plan, as the page's program prints them."""
    now, expected = (
        Layout(*(round(inputs[f"{role}Needed{when}"]) for role in ("prefill", "decode"))) for when in ("Now", "")
    )
    return f"now {now} expected {expected}"


def listed(inputs: Mapping[str, float]) -> str:
    """As a plan has them."""
    return "".join(f"- name: {name}\n  value: {value}\n" for name, value in inputs.items())


def test_the_queue_of_the_page_is_counted_as_the_planner_counts_it(shown: dict[str, float]) -> None:
    """The same service with 1000 requests queued, beside the two of each worker that are no queue."""
    flow = FlowBounds(pending_tokens_per_prefill_worker=60_000, decoding_per_decode_worker=130)
    _, made = decided(routing=replace(ROUTING, flow=flow), queued=1008)
    inputs = dict(made.inputs)
    assert inputs["backlog"] == 1000 == 1008 - SHIPPED.queued_per_worker * 4
    assert str(made.layout) == "3P3D"
    assert computed(listed(inputs), 0.95, 90, 16) == needs_of(inputs) == "now 4P4D expected 3P3D"

    rate, prefill_s = shown["expectedRatePerSecond"], shown["prefillMilliseconds"] / 1000
    per_s, now = 1 / prefill_s, rate + 1000 / SHIPPED.queue_clear_s
    sequences = now * shown["outputTokens"] * shown["stepMilliseconds"] / 1000
    deviation = math.sqrt(sequences * (1 + shown["contextDispersion"]))
    decode = (sequences + demand.deviations(0.95) * deviation) / shown["decodeBatch"]
    assert now - rate < 2 * per_s, "decode gets all of it"
    ended_per_s, lead_s = 2 * shown["decodeDrainPerSecond"], POLICY.start_s + WINDOW_S
    assert ended_per_s < min(rate, 2 * per_s), "decode is the slower one"
    left = 1000 + (rate - ended_per_s) * lead_s
    assert missing([
        f"1 / 0.0380601 = {per_s:.3f} requests/s",
        f"50 + 1000 / 30 = {now:.2f} requests/s. Prefill needs {now:.2f} / {per_s:.3f} = {now * prefill_s:.3f}, so 4",
        f"Decode needs {decode:.3f} by the formula above, so 4.",
        f"after 90 s and one evaluation, {lead_s} s.",
        f"2 × {per_s:.3f} = {2 * per_s:.2f} requests/s and two decode workers 2 × 24.4897 = {ended_per_s:.2f}. So the "
        f"queue grows by 50 − {ended_per_s:.2f} = {rate - ended_per_s:.2f} requests/s, to {left:.0f}.",
        f"50 + {left:.0f} / 120 = {rate + left / SHIPPED.gateway_queue_clear_s:.2f} requests/s, 3 and 3 workers.",
        f"starts workers for `{made.layout}`",
    ]) == []  # fmt: skip


def test_the_constants_of_the_page_are_those_of_the_code() -> None:
    section = " ".join(PAGE.split("## Constants")[1].split())
    found = re.findall(r"`(\w+)` ([\d.]+)(?: (%|s))?", section)
    values = {name: float(number) / (100 if unit == "%" else 1) for name, number, unit in found}
    assert values == pytest.approx({name: getattr(SHIPPED, name) for name in values})
    assert len(values) == 10
    others = re.search(r"factor (\d+) on the late share, the smallest .* of ([\d.]+) %, and .* of ([\d.]+) %", section)
    assert others is not None
    factor, smallest, rounding = map(float, others.groups())
    assert [factor, smallest / 100, rounding / 100] == pytest.approx([2, demand.late_share(1.0), ROUNDING])


Case = tuple[str, float, float, int]
"""What the page's program reads, and its arguments."""


def computed(inputs: str, attainment: float, start_s: float, most: int) -> str:
    """What it prints."""
    ended = run_program(inputs, str(attainment), str(start_s), str(most))
    assert ended.returncode == 0, ended.stderr
    return " ".join(ended.stdout.split())


def run_program(inputs: str, *arguments: str) -> subprocess.CompletedProcess[str]:
    """It, called as from a shell."""
    return subprocess.run([sys.executable, "-c", PROGRAM, *arguments], input=inputs, text=True, capture_output=True)


def all_computed(cases: Sequence[Case]) -> list[str]:
    """What it prints of each, in one process, because each call would start another."""
    calls = (
        "import contextlib, io, json, sys\n"
        f"program = compile({PROGRAM!r}, 'by_hand.py', 'exec')\n"
        "for text, *arguments in json.load(sys.stdin):\n"
        "    sys.argv = ['by_hand.py', *map(str, arguments)]\n"
        "    sys.stdin = io.StringIO(text)\n"
        "    with contextlib.redirect_stdout(io.StringIO()) as printed:\n"
        "        exec(program, {})\n"
        "    print(*printed.getvalue().split())\n"
    )
    run = [sys.executable, "-c", calls]
    return subprocess.run(run, input=json.dumps(cases), check=True, text=True, capture_output=True).stdout.splitlines()


def explained(decision: Decision) -> str:
    """What ``pointsman explain NAME --inputs`` prints of the decision, with a plan and with routing numbers."""
    seen = Observation(
        at_s=15.0, window_s=WINDOW_S, age_s=1.0, workers=WORKERS, routing=ROUTING, load=LOAD,
        service=Service(1.0, 1.0, 1.0, prefill_queue_depth=0.0),
    )  # fmt: skip
    now = datetime.fromtimestamp(18, UTC)
    changed = replace(ROUTING, max_local_prefill_tokens=640)
    told = Told(
        service="chat", namespace="default", policy_name="fast", policy=POLICY, now=now, observation=seen,
        decision=decision, turning=TurningPoints(None, None, None, None), plans=(plan(),), health=None,
        publications=[Publication(15.0, Reason.THRESHOLD, ROUTING, changed)], shows_inputs=True,
    )  # fmt: skip
    return explanation(told)


def test_the_program_of_the_page_computes_both_pools_from_what_kubectl_shows_and_from_the_page(
    decision: Decision,
) -> None:
    policy = PlannerPolicySpec.model_validate({"objectives": {"ttftMs": 1500, "tpotMs": 20}, "budget": {"maxGpus": 16}})
    manifest = plan_manifest(
        namespace="default", owner=OWNER, sequence=1, decision=decision, policy=policy,
        layout=(2, 2), now=datetime(2026, 1, 1, tzinfo=UTC),
    )  # fmt: skip
    as_kubectl = yaml.safe_dump(manifest)
    assert "  - name: decodeBatch\n    value: 130.7854\n" in as_kubectl
    needs = "now 3P3D expected 3P3D"
    assert computed(as_kubectl, 0.95, 90, 16) == computed(INPUTS, 0.95, 90, 16) == needs
    assert computed(explained(decision), 0.95, 90, 16) == needs
    assert computed(explained(decision), 0.95, 90, 2) == "now 2P2D expected 2P2D", "no more than there may be"
    other = replace(decision, inputs=tuple((n, 40 if n.startswith("expected") else v) for n, v in decision.inputs))
    assert computed(explained(other), 0.95, 90, 16) == "now 3P3D expected 2P2D", "it reads them"
    called = "python3 examples/by_hand.py ATTAINMENT START_SECONDS MOST_WORKERS"
    for command in ("pointsman explain NAME --inputs", "kubectl get pplan NAME -o yaml"):
        assert f"`{command}`" in PAGE
        assert f"    {command} | {called}\n" in PAGE
    _, *arguments = shlex.split("pointsman explain NAME --inputs")
    assert parse(arguments[1:]).inputs
    assert missing(["with `0.95 90 16`, it prints `now 3P3D` and `expected 3P3D`"]) == []


def test_the_program_of_the_page_agrees_with_the_planner_on_other_loads() -> None:
    """Rates, queues, engines and attainments by a seed."""
    draw, cases, expected = random.Random(7), list[Case](), list[str]()
    for _ in range(300):
        point = operating_point.OperatingPoint(
            prefill_s=draw.uniform(0.005, 0.5), prefill_alone_s=0.1, reachable_s=draw.uniform(0.01, 0.6),
            prefill_scv=draw.uniform(0.05, 4), queued_tokens=2000, transfer_s=draw.choice([0.0, 0.01, 0.2]),
            ttft_s=draw.uniform(0.3, 3), output_tokens=draw.uniform(20, 800), batch=draw.uniform(4, 256),
            step_s=draw.uniform(0.01, 0.05), context_scv=draw.uniform(0, 2), drain_per_s=draw.uniform(1, 60),
            remote_share=draw.choice([1.0, 0.5]),
        )  # fmt: skip
        rate, attainment = draw.uniform(0.5, 80), draw.choice([0.5, 0.8, 0.95, 0.9995])
        start_s, prefill, decode = draw.uniform(5, 300), draw.randint(1, 8), draw.randint(1, 8)
        gateways_queue, most = draw.choice([False, True]), draw.choice([16, 1000])
        snapshot = demand.DemandSnapshot(
            point=point, attainment=attainment, prefill=demand.Pool(prefill), decode=demand.Pool(decode),
            forecaster=RateForecaster(Trend(rate, 0.0, 0.0, 0.0, 0.0), dispersion=draw.uniform(1, 9)),
            waiting=draw.choice([0.0, draw.uniform(0, 9000)]), holds_back=gateways_queue, most_queued=math.inf,
            window_s=2.5, now_s=100.0, lead_s=start_s + 2.5, memory_s=120.0, switchable=True, prompts_changed_s=None,
            most=most,
        )  # fmt: skip
        numbers = {
            "ratePerSecond": snapshot.rate_per_s, "expectedRatePerSecond": snapshot.ahead_per_s,
            "backlog": snapshot.backlog, "prefillWorkers": prefill, "outputTokens": point.output_tokens,
            "remoteShare": point.remote_share, "prefillMilliseconds": point.prefill_s * 1000,
            "prefillDispersion": point.prefill_scv, "arrivalDispersion": snapshot.forecaster.dispersion,
            "transferMilliseconds": point.transfer_s * 1000, "slackMilliseconds": point.slack_s * 1000,
            "stepMilliseconds": point.step_s * 1000, "decodeBatch": point.batch, "contextDispersion": point.context_scv,
            "decodeWorkers": decode, "decodeDrainPerSecond": point.drain_per_s,
        }  # fmt: skip
        if gateways_queue:
            numbers["queuedRequests"] = snapshot.waiting
        cases.append((listed(numbers), attainment, start_s, most))
        now = snapshot.needs(snapshot.rate_per_s, snapshot.backlog, at_once=True)
        later = snapshot.needs(snapshot.ahead_per_s, snapshot.backlog_at(snapshot.lead_s))
        expected.append(f"now {now} expected {later}")
    assert all_computed(cases) == expected
    assert len(set(expected)) > 100
    assert sum(needs.split()[1] != needs.split()[3] for needs in expected) > 100, "the queue makes a difference"


@pytest.mark.parametrize("load", ["step", "full changing mix on 6 GPUs"])
def test_the_program_of_the_page_has_the_needs_of_simulated_decisions(load: str) -> None:
    """What it misses has the reasons that the page gives, and no other."""
    service = LOADS[load].service(11)
    result = simulate(service.trace, service.simulation, service.policy, ours())
    made = [record for record in result.decisions if record.decision.inputs]
    shown = [dict(record.decision.inputs) for record in made]
    attainment, most = service.policy.objectives.attainment, service.policy.max_gpus
    cases = [(listed(shows), attainment, service.simulation.leads.start_s, most) for shows in shown]
    equal = []
    for record, shows, program in zip(made, shown, all_computed(cases), strict=True):
        (_, now, _, expected), (_, program_now, _, program_expected) = needs_of(shows).split(), program.split()
        equal.append((program_now == now, program_expected == expected))
        joining = [move for move in result.transitions if move.kind != "stop" and move.began_s < record.at_s]
        if shows["remoteShare"] < 1 or not all(move.ended_s <= record.at_s for move in joining):
            continue  # decode workers prefill, too, or not all workers serve
        assert all(equal[-1]), shows
    assert len(made) >= 20
    assert missing(["in two simulated loads, at least three of four present needs do, and as many expected ones"]) == []
    assert all(sum(of_needs) / len(made) >= 0.75 for of_needs in zip(*equal, strict=True))


def test_the_program_of_the_page_lists_the_decisions_of_the_replay_that_the_page_shows(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    replayed, read = re.findall(r"^    (?:pointsman replay|python3 examples/by_hand.py) (.*)$", PAGE, re.MULTILINE)
    arguments = shlex.split(replayed.replace("examples/", f"{ROOT}/examples/"))
    assert replay_command.main(arguments) == 0
    *values, _, name = shlex.split(read)
    document = json.loads(Path(name).read_text())
    simulation, budget = document["simulation"], document["policy"]["spec"]["budget"]
    assert values == [
        f"{document['objectives']['attainment']:g}",
        f"{simulation['startup_s']:g}",
        f"{budget['maxGpus']}",
    ]
    made = [each for each in document["decisions"] if each["inputs"]]
    attainment, start_s, most = values
    alone = all_computed([(listed(each["inputs"]), float(attainment), float(start_s), int(most)) for each in made])
    lines = run_program(Path(name).read_text(), *values).stdout.splitlines()
    assert len(lines) == len(made) < len(document["decisions"]), "one without numbers is left out"
    for line, each, needs_alone in zip(lines, made, alone, strict=True):
        at_s, _, needs = line.partition(" s: ")
        computed_needs, _, planned = needs.replace(",", "").partition("; planner: ")
        assert (float(at_s), computed_needs, planned) == (each["at_s"], needs_alone, needs_of(each["inputs"]))


@pytest.mark.parametrize(
    "arguments", [(), ("0.95",), ("0.95", "90"), ("0.95", "90", "16", "8"), ("95", "90", "16"), ("0.95", "soon", "16")]
)
def test_the_program_of_the_page_says_how_it_is_called(arguments: tuple[str, ...]) -> None:
    ended = run_program(INPUTS, *arguments)
    assert (ended.returncode, ended.stdout) == (1, "")
    assert ended.stderr.splitlines() == [
        "usage: python3 by_hand.py ATTAINMENT START_SECONDS MOST_WORKERS, for example:",
        "  pointsman explain chat --inputs | python3 by_hand.py 0.95 90 16",
    ]


@pytest.mark.parametrize("read", ["", "nothing", '{"items": []}', '{"decisions": [{"at_s": 2.5, "inputs": {}}]}'])
def test_the_program_of_the_page_says_that_there_are_no_numbers(read: str) -> None:
    ended = run_program(read, "0.95", "90", "16")
    assert (ended.returncode, ended.stderr.strip()) == (
        1, "the input has no decision with numbers of prefill and decode workers"
    )  # fmt: skip
