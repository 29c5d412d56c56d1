"""Ours with what goes wrong or is believed wrongly, beside the same without, or told, or that knows the present."""

from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any, Final

from bench.planner.cells import CAUSAL, COMMAND, Measurement, Run, beside_causal, lost, run_of
from bench.planner.scenarios import LEADS, SCENARIOS, Scenario
from bench.rows import Row, row
from pointsman.api.protocol.names import LANGUAGE_ROLES, Role
from pointsman.planner.core.decide import decide as production
from pointsman.planner.core.engine.performance_model import PerformanceModel
from pointsman.planner.core.engine.startup_time import with_pods_start
from pointsman.planner.core.state import State, model_of
from pointsman.planner.core.tuning import SHIPPED
from pointsman.planner.core.types import Decision, EngineSample, Load, NextTick, Observation, Policy, WorkerCondition
from pointsman.planner.core.workload.output_length_startup import FirstAnswers
from pointsman.planner.core.workload.request_lengths import Lengths
from pointsman.planner.replay.generators import Step, generate, named_shape
from pointsman.planner.replay.requests import Arrived, trace_of
from pointsman.planner.simulator.baselines import causal
from pointsman.planner.simulator.baselines.pointsman import ours
from pointsman.planner.simulator.simulate import simulate
from pointsman.planner.simulator.timing import TrueModel
from pointsman.planner.simulator.types import Faults, Planner, Simulation, Trace

ROBUST: Final = "robust"
LOAD: Final = SCENARIOS["step"]
CHANGES_S: Final = 150.0  # until the mix of the load with many switches changes
CHANGES: Final = 10
BELIEVED_RATE: Final = 3.0  # requests a second of what is remembered from before a pause
PROMPT_TOKENS, OUTPUT_TOKENS = 4000.0, 250.0  # the true means of LOAD
ENOUGH: Final = (4, 4)  # workers for 8 requests a second of these
NOTHING: Final = "nothing"
FAILING: Final = "20 % of starts and switches fail"
STEP_S: Final = Step().up_s
OUTAGE_S: Final = (STEP_S - 5, STEP_S + 55)  # the step comes in it
MOST_LOST: Final = 0.05
MOST_LOST_TO_TOLD: Final = 0.03
LEARNED: Final = 0.1  # of the truth: what is believed is as good as known
LEARNED_MINUTES: Final = 10.0
START_UP, ENGINE = "start-up", "engine"


@dataclass(frozen=True)
class Case:
    """What is other than in ``load``, and what that is judged by.

    ``kappa``: of the true engine, relative to the table. ``start_s``: what starts take; ``believed_start_s``: what
    those of the first workers took, as their pods show it (None: as long); ``told``: the user says it. ``lengths``:
    what the planner remembers of prompts and outputs from before a pause, in multiples of what then comes.
    ``later_output``: what outputs become in the middle of a constant rate. ``beside``: the case without the error;
    None: this is one, or it is judged beside causal. ``lost``: the most that may be. ``learned``: what must be found
    out within ten minutes.
    """

    faults: Faults = field(default_factory=Faults)
    load: Scenario = LOAD
    kappa: float | None = None
    start_s: float | None = None
    believed_start_s: float | None = None
    told: bool = False
    lengths: tuple[float, float] | None = None
    later_output: float | None = None
    beside: str | None = NOTHING
    lost: float = MOST_LOST
    learned: str | None = None
    beside_causal: bool = False

    def trace(self, seed: int) -> Trace:
        """The load."""
        if self.lengths is not None:
            return _constant_mix(seed, "rate=14,later_rate=3,at_s=500,duration_s=900")
        if self.later_output is not None:
            return _constant_mix(seed, "rate=8,later_rate=8", self.later_output)
        return self.load.trace(seed)

    def simulation(self, seed: int) -> Simulation:
        """The service as it is."""
        made = replace(self.load.simulation(seed), faults=self.faults)
        truth, leads = made.truth, made.leads
        if self.kappa is not None:
            truth = replace(truth, prefill_kappa=self.kappa, decode_kappa=self.kappa)
        if self.start_s is not None:
            leads = replace(leads, start_s=self.start_s)
        if self.believed_start_s is not None:
            leads = replace(leads, first_start_s=self.believed_start_s)
        if self.later_output is not None:
            made = replace(made, prefill_workers=ENOUGH[0], decode_workers=ENOUGH[1])
        return replace(made, truth=truth, leads=leads)

    def policy(self) -> Policy:
        """What is told of starts."""
        if self.told:
            return replace(self.load, told_start_s=self.start_s or LEADS.start_s).policy()
        return self.load.policy()

    def planner(self) -> Planner:
        """Ours, with what it remembers."""
        lengths = self.lengths
        return ours() if lengths is None else replace(ours(), first_state=lambda: remembering(*lengths))


def changing(seed: int, rates: str = "") -> Trace:
    """Long prompts and short answers, then short prompts and long answers, and so on. ``rates``: those of mixshift."""
    piece = named_shape(f"mixshift:at_s={CHANGES_S:g},duration_s={2 * CHANGES_S:g}{rates}")
    requests = []
    for number in range(CHANGES // 2):
        trace = generate(piece, 1000 * seed + number)
        arrivals_s = trace.arrival_s + 2 * CHANGES_S * number
        for at_s, prompt, output in zip(arrivals_s, trace.prompt_tokens, trace.output_tokens, strict=True):
            requests.append(Arrived(float(at_s), int(prompt), int(output)))
    return trace_of("changing", requests)


CHANGING: Final = replace(SCENARIOS["mixshift"], name="mix that changes", trace=changing)
TOLD = ", told"  # after what was told beforehand
KNOWN_LENGTHS = "lengths remembered rightly"
ONLY_CHANGING = f"{NOTHING}, {CHANGING.name}"
_FAILURES: Final = Faults(start_failure_share=0.2, switch_failure_share=0.2)
_TOLD: Final = f"start-up {LEADS.start_s:.0f} s{TOLD}"


def _starts(start_s: float) -> dict[str, Case]:
    """What starts take, learned, and beside it told."""
    what = f"start-up {start_s:.0f} s"
    learned = Case(start_s=start_s, beside=what + TOLD, lost=MOST_LOST_TO_TOLD, learned=START_UP)
    return {what: learned, what + TOLD: Case(start_s=start_s, told=True, beside=None)}


def _believed(factor: float) -> Case:
    """What starts take is believed wrongly by this factor at first."""
    believed_s = factor * LEADS.start_s
    return Case(believed_start_s=believed_s, beside=_TOLD, lost=MOST_LOST_TO_TOLD, learned=START_UP)


CASES: Final = {
    NOTHING: Case(beside=None),
    "5 % of scrapes lost": Case(Faults(metric_dropout_share=0.05)),
    "60 s outage of all metrics": Case(Faults(metric_outages_s=(OUTAGE_S,))),
    "metrics 10 s late": Case(Faults(metric_delay_s=10.0)),
    FAILING: Case(_FAILURES, beside_causal=True),
    ONLY_CHANGING: Case(load=CHANGING, beside=None),
    f"{FAILING}, {CHANGING.name}": Case(_FAILURES, load=CHANGING, beside=ONLY_CHANGING),
    "a crash every two worker hours": Case(Faults(crashes_per_worker_hour=0.5)),
    "engine κ 0.7": Case(kappa=0.7, learned=ENGINE),
    "engine κ 1.0": Case(kappa=1.0),
    "engine κ 1.3": Case(kappa=1.3, learned=ENGINE),
    **_starts(30.0),
    **_starts(300.0),
    **_starts(600.0),
    "start-up believed 2.5 times too long": _believed(2.5),
    "start-up believed 2.5 times too short": _believed(1 / 2.5),
    _TOLD: Case(told=True, beside=None),
    "outputs remembered twice as long": Case(lengths=(1.0, 2.0), beside=KNOWN_LENGTHS),
    "outputs remembered half as long": Case(lengths=(1.0, 0.5), beside=KNOWN_LENGTHS),
    "prompts remembered twice as long": Case(lengths=(2.0, 1.0), beside=KNOWN_LENGTHS),
    "prompts remembered half as long": Case(lengths=(0.5, 1.0), beside=KNOWN_LENGTHS),
    KNOWN_LENGTHS: Case(lengths=(1.0, 1.0), beside=None),
    "outputs double at a constant rate": Case(later_output=2.0, beside=None, beside_causal=True),
    "outputs halve at a constant rate": Case(later_output=0.5, beside=None, beside_causal=True),
}


def _constant_mix(seed: int, rates: str, later_output: float = 1.0) -> Trace:
    prompts = f"prompt_tokens={PROMPT_TOKENS:g},later_prompt_tokens={PROMPT_TOKENS:g}"
    outputs = f"output_tokens={OUTPUT_TOKENS:g},later_output_tokens={later_output * OUTPUT_TOKENS:g}"
    return generate(named_shape(f"mixshift:{rates},{prompts},{outputs}"), seed)


def of_causal(what: str) -> str:
    """The name of the reference's run in the same case."""
    return f"{CAUSAL}, {what}"


def is_ours(what: str) -> bool:
    """Whether a run of these is to be made again when our planner has changed."""
    return not what.startswith(CAUSAL)


def cases(seed: int) -> Iterator[Measurement]:
    """All of them, and the references."""
    for what, case in CASES.items():
        yield what, partial(_measured, what, case, seed)
        if case.beside_causal:
            yield of_causal(what), partial(_reference, what, case, seed)


def _measured(what: str, case: Case, seed: int) -> Run:
    simulation, planner = case.simulation(seed), case.planner()
    watch = None if case.learned is None else Watch(case.learned, simulation)
    result = simulate(case.trace(seed), simulation, case.policy(), planner if watch is None else watch.on(planner))
    run = run_of(ROBUST, seed, what, result)
    return run if watch is None else replace(run, learned_s=watch.learned_s)


def _reference(what: str, case: Case, seed: int) -> Run:
    found = causal.search(case.trace(seed), case.simulation(seed), case.policy())
    return run_of(ROBUST, seed, of_causal(what), found)


def remembering(prompts: float, outputs: float) -> State:
    """What a planner remembers of lengths from before a pause, in multiples of ``LOAD``'s; of rates nothing."""
    window_s, lengths = LOAD.policy().interval_s, Lengths()
    for number in range(-int(SHIPPED.length_window_s / window_s), 0):
        load = Load(
            arrivals_per_s=BELIEVED_RATE,
            prompt_tokens=prompts * PROMPT_TOKENS,
            output_tokens=outputs * OUTPUT_TOKENS,
            measured=BELIEVED_RATE * window_s,
        )
        lengths = lengths.observe(load, window_s, number * window_s)
    return State(lengths=replace(lengths, first=FirstAnswers(over=True)))


# --- when it is learned ---


class Watch:
    """How far what a planner believes is from the truth, tick by tick. One is for one run.

    ``what``: ``START_UP``, counted from the first start, before which nobody can know; or ``ENGINE``, counted from the
    beginning: the times of the passes that are measured, beside what another of our planners says of them, to which
    the truth was given at first and everything else shown that this one sees. (What is measured of a prompt is no lone
    prompt's time, where several share a pass: the planner has to learn that, whatever it was given.)
    """

    def __init__(self, what: str, simulation: Simulation) -> None:
        self._what, self._simulation = what, simulation
        self._informed = State()
        self._began_s: float | None = None
        self._wrong_s: float | None = None  # when it was last wrong

    def on(self, planner: Planner) -> Planner:
        """The planner, watched."""

        def decide(
            state: Any, observation: Observation, policy: Policy, now_s: float, base: PerformanceModel | None
        ) -> tuple[Any, Decision, NextTick]:
            after, decision, tick = planner.decide(state, observation, policy, now_s, base)
            if self._what == START_UP:
                error = self._start_up(after, observation, policy)
            else:
                error = self._engine(after, observation, policy, base)
            if error is not None:
                self._began_s = now_s if self._began_s is None else self._began_s
                self._wrong_s = now_s if error > LEARNED else self._wrong_s
            return after, decision, tick

        return replace(planner, decide=decide)

    @property
    def learned_s(self) -> float | None:
        """Until it was within a tenth for good; the rest of the run if never; None: nobody could know."""
        if self._began_s is None:
            return None
        return 0.0 if self._wrong_s is None else round(self._wrong_s - self._began_s, 1)

    def _start_up(self, state: State, observation: Observation, policy: Policy) -> float | None:
        starting = any(worker.condition is WorkerCondition.STARTING for worker in observation.workers)
        if self._began_s is None and not starting:
            return None
        true_s = self._simulation.leads.start_s
        believed_s = with_pods_start(policy, observation.pods_start_s).start_s
        return abs(state.leads.lead_s(believed_s) - true_s) / true_s

    def _engine(
        self, state: State, observation: Observation, policy: Policy, base: PerformanceModel | None
    ) -> float | None:
        if base is None:
            return None
        truth = TrueModel(base, self._simulation.truth)
        self._informed, _, _ = production(self._informed, observation, policy, observation.at_s, truth)
        believed, right = model_of(state, base), model_of(self._informed, truth)
        if believed is None or right is None or not observation.samples:
            return None
        return max(
            abs(sum(_ms(believed, each) for each in of_role) / sum(_ms(right, each) for each in of_role) - 1)
            for role in LANGUAGE_ROLES
            if (of_role := [each for each in observation.samples if each.role is role])
        )


def _ms(model: PerformanceModel, sample: EngineSample) -> float:
    """What a model says of a measured pass."""
    tokens = sample.tokens or 0.0
    if sample.role is Role.PREFILL:
        return model.prefill_ms(tokens, 0)
    return model.decode_step_ms(sample.batch, tokens)


# --- rows ---


def rows(found: dict[str, list[Run]]) -> Iterator[Row]:
    """What each costs, and how soon it is learned."""
    for what, case in CASES.items():
        runs, reference = found.get(what), found.get(of_causal(what), [])
        if runs is None:
            continue
        if case.later_output is not None:
            if reference:
                name = f"8 requests/s, {what}: share within objectives lost to {CAUSAL}, which knows all lengths"
                yield lost(name, runs, reference, MOST_LOST)
            continue
        beside = found.get(case.beside) if case.beside is not None else None
        if beside is not None and case.beside is not None:
            # What a slow start costs anybody is no error of the planner's: what it does not know of it costs is.
            told = case.beside.endswith(TOLD)
            of = "" if case.beside.startswith(NOTHING) else " to being told so" if told else f" to {case.beside}"
            load = "step" if case.load is LOAD else case.load.name
            load = load if case.lengths is None else "14 requests/s after a pause"
            name = f"{load}, {what.removesuffix(f', {load}')}: share within objectives lost{of}"
            yield lost(name, runs, beside, case.lost)
        yield from beside_causal(f"step, {what}", runs, reference)
        learned = [run.learned_s for run in runs if run.learned_s is not None]
        if case.learned is not None and len(learned) == len(runs):
            since = "the first start" if case.learned == START_UP else "the beginning"
            name = f"step, {what}: from {since} until what is believed of it is within 10 % of the truth"
            minutes = [seconds / 60 for seconds in learned]
            yield row(name, "minutes", minutes, at_most=LEARNED_MINUTES, of_means=True, command=COMMAND)
