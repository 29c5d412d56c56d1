"""What the planner remembers of one service, and what an observation teaches it."""

from dataclasses import dataclass, field, replace
from typing import Final

from pointsman.planner.core import switch_guards
from pointsman.planner.core.encode.target import EncodeMemory
from pointsman.planner.core.engine.kv_transfer_time import Transfers
from pointsman.planner.core.engine.learned_model import LearnedModel, Learner, of_even_prompts, undisturbed
from pointsman.planner.core.engine.performance_model import PerformanceModel
from pointsman.planner.core.engine.startup_time import Leads
from pointsman.planner.core.engine.switch_time import SwitchLeads
from pointsman.planner.core.hysteresis import RaiseHoldoff
from pointsman.planner.core.prediction_score import Score
from pointsman.planner.core.sizing.pool_targets import Memory
from pointsman.planner.core.tuning import SHIPPED, Tuning
from pointsman.planner.core.types import Load, Observation, Policy
from pointsman.planner.core.virtual_fleet import VirtualFleet
from pointsman.planner.core.workload.arrival_forecast import RateForecaster
from pointsman.planner.core.workload.length_variability import Shape
from pointsman.planner.core.workload.request_lengths import Lengths
from pointsman.planner.core.workload.seasonality import Season, SeasonalForecast

STATE_VERSION: Final = 7


@dataclass(frozen=True, slots=True)
class State:
    """What the planner remembers of one service. Bounded, made of plain values, versioned."""

    version: int = STATE_VERSION
    forecaster: RateForecaster = field(default_factory=RateForecaster)
    season: Season = field(default_factory=Season)
    learner: Learner = field(default_factory=Learner)
    engine_model: LearnedModel | None = None  # of an engine without a table
    lengths: Lengths = field(default_factory=Lengths)
    requests: float = 0.0
    shape: Shape = field(default_factory=Shape)
    transfers: Transfers = field(default_factory=Transfers)
    encode: EncodeMemory = field(default_factory=EncodeMemory)
    leads: Leads = field(default_factory=Leads)
    switch_leads: SwitchLeads = field(default_factory=SwitchLeads)
    memory: Memory = field(default_factory=Memory)
    routing: RaiseHoldoff = field(default_factory=RaiseHoldoff)  # of the threshold
    score: Score = field(default_factory=Score)
    history: switch_guards.History = field(default_factory=switch_guards.History)
    virtual: VirtualFleet | None = None  # where decisions are not carried out
    unwanted_s: float | None = None  # for so long the plan that awaits approval was seen not to be wanted


def learn(
    state: State, observation: Observation, load: Load, policy: Policy, base: PerformanceModel | None = None
) -> State:
    """The state after an observation, before anything is decided."""
    window_s = observation.window_s
    leads = seen_starting(state, observation, policy)
    lengths = state.lengths.observe(load, window_s, observation.at_s, policy.tuning)
    arrivals_per_s = load.arrivals_per_s
    if observation.new_gateways and state.forecaster.trend is not None:
        arrivals_per_s = max(arrivals_per_s, state.forecaster.trend.level)  # what new gateways got is not counted yet
    arrivals = arrivals_per_s * window_s
    forecaster = state.forecaster.observe(arrivals, window_s, observation.at_s, policy.tuning)
    ahead_s = horizon_s(state, policy)
    season = state.season.observe(arrivals, window_s, observation.at_s, forecaster, ahead_s, policy.tuning)
    samples = list(observation.samples)
    prompt_tokens = lengths.prompt_tokens or load.prompt_tokens  # lengths are known when the first answer has ended
    if samples and prompt_tokens is not None:
        # With what this look says of its prompts: the table alone may think too little of those between its steps.
        seen = replace(state, learner=state.learner.observe(samples))
        known = model_of(seen, base, policy.tuning) or seen.learner.fit()
        if known is not None:
            new_tokens = max(1.0, prompt_tokens * (1 - lengths.cached_share))
            samples = of_even_prompts(undisturbed(samples, known, new_tokens), known)
    learner, engine_model = state.learner.observe(samples), state.engine_model
    # After the first twelve looks, a new fit at each would change what is needed with the noise of each.
    since_s = 0.0 if lengths.first_s is None else observation.at_s - lengths.first_s
    if base is None and (since_s < 12 * window_s or since_s % max(1.0, 12 * window_s) < window_s):
        engine_model = learner.fit() or engine_model
    return replace(
        state, leads=leads, lengths=lengths, learner=learner, engine_model=engine_model, forecaster=forecaster,
        transfers=state.transfers.observe(load.pulling_s, load.pulled_tokens),
        season=season if policy.seasonal else Season(),
        requests=min(state.requests + (load.measured or load.arrivals_per_s * window_s), 1e9),
        shape=state.shape.observe(samples, lengths), encode=state.encode.observe(observation, policy),
    )  # fmt: skip


def horizon_s(state: State, policy: Policy) -> float:
    """Until a worker that is started now serves, and one look more."""
    return state.leads.lead_s(policy.start_s) + policy.interval_s


def seasonal(state: State, policy: Policy, now_s: float) -> SeasonalForecast | None:
    """What the season says of the rate at the lead; None where it says nothing yet, or must not."""
    if not policy.seasonal:
        return None
    return state.season.forecast(now_s, state.forecaster, horizon_s(state, policy), policy.tuning)


def seen_starting(state: State, observation: Observation, policy: Policy) -> Leads:
    """With who starts and who serves now; a lead that was told holds."""
    leads = state.leads.look(observation.workers, observation.at_s, observation.window_s, policy.start_s, policy.tuning)
    return replace(leads, start_s=None) if policy.start_is_told else leads


def seen_switching(state: State, observation: Observation, policy: Policy) -> State:
    """With the switches that have begun since the last look, and how long the last ones took."""
    history = state.history.begun(state.switch_leads.begun(observation.workers), observation.layout, observation.at_s)
    return replace(state, history=history, switch_leads=state.switch_leads.observe(observation, policy.tuning))


def model_of(state: State, base: PerformanceModel | None, tuning: Tuning = SHIPPED) -> PerformanceModel | None:
    """The table, corrected by what was measured; without one what was fitted, None until both roles were measured."""
    if base is None:
        return state.engine_model
    lengths = state.lengths
    cached_tokens = lengths.prefixes.held_by_prefill if lengths.prefixes.matter else 0.0
    return state.learner.corrected(base, cached_tokens, state.shape.context_tokens(lengths), tuning)
