"""What happens to requests and workers when roles move, things fail, and metrics are late."""

import json
from dataclasses import replace
from importlib.resources import files
from pathlib import Path

import numpy as np
import pytest

from pointsman.api.protocol.names import Role
from pointsman.planner.core.types import Bounds, Decision, Observation, Reason, RoutingNumbers, Switch, WorkerCondition
from pointsman.planner.performance_tables import performance_table, table_names
from pointsman.planner.policies import planner_policy
from pointsman.planner.replay.generators import generate, named_shape
from pointsman.planner.replay.policy_files import load_policy
from pointsman.planner.shipped_engines import shipped_engine
from pointsman.planner.simulator.baselines import PLANNERS
from pointsman.planner.simulator.simulate import simulate
from pointsman.planner.simulator.types import (
    Engine,
    Faults,
    Leads,
    Outcome,
    PrefillPlace,
    Result,
    Simulation,
    Trace,
    Truth,
)
from pointsman.serving.flow_control import UNBOUNDED, FlowBounds
from unit.planner.simulator.scenes import ENGINE, POLICY, conversations, poisson, scripted, static, stay, to

EXAMPLES = Path(__file__).parents[4] / "examples" / "policies"
TO_PREFILL = Switch(Role.DECODE, Role.PREFILL, 1)
ALL_LOCAL = RoutingNumbers(1_000_000, 8)


def same(one: Result, other: Result) -> bool:
    return all(
        np.array_equal(getattr(one, name), getattr(other, name), equal_nan=name.endswith("_s"))
        for name in ("outcome", "prefilled", "ttft_s", "tpot_s", "end_s", "preemptions")
    ) and (one.gpu_hours, one.timeline, one.transitions) == (other.gpu_hours, other.timeline, other.transitions)


def test_the_same_seed_gives_the_same_result_and_another_seed_another() -> None:
    trace = poisson(8.0, 60, 3000, 100)
    noisy = Simulation(ENGINE, 2, 2, truth=Truth(noise_sigma=0.1), faults=Faults(crashes_per_worker_hour=20), seed=1)
    first, second = (simulate(trace, noisy, POLICY, static()) for _ in range(2))
    assert same(first, second)
    assert not same(first, simulate(trace, replace(noisy, seed=2), POLICY, static()))


@pytest.mark.parametrize("seed", range(4))
def test_every_request_ends_exactly_once_whatever_fails(seed: int) -> None:
    trace = poisson(10.0, 120, 2500, 120, seed=seed)
    faults = Faults(
        start_failure_share=0.3,
        switch_failure_share=0.3,
        crashes_per_worker_hour=60,
        metric_dropout_share=0.1,
        metric_outages_s=((40.0, 60.0),),
    )
    rough = Simulation(
        replace(ENGINE, kv_capacity_tokens=60_000),
        3,
        3,
        leads=Leads(start_s=10, start_spread=0.5, drain_timeout_s=2.0),
        faults=faults,
        truth=Truth(1.2, 1.2, 0.1),
        routing=RoutingNumbers(512, 6),
        seed=seed,
    )
    acts = {
        10.0: to(4, 2, TO_PREFILL),
        30.0: to(2, 4, Switch(Role.PREFILL, Role.DECODE, 2)),
        50.0: to(5, 5),
        80.0: to(2, 3),
        90.0: to(3, 3),
    }
    result = simulate(trace, rough, POLICY, scripted(acts))
    assert (result.outcome == Outcome.COMPLETED).all(), f"seed {seed}: {np.bincount(result.outcome)}"
    assert (result.ttft_s > 0).all()
    assert (result.end_s - result.arrival_s >= result.ttft_s).all()
    assert sum(t.kind == "crash" for t in result.transitions) > 3
    assert result.preemptions.sum() >= 0


def test_a_switch_drains_then_flips_and_loses_nothing() -> None:
    trace = poisson(4.0, 120, 2000, 200)
    simulation = Simulation(ENGINE, 1, 3, leads=Leads(flip_s=4, verify_s=2, reaction_s=0.5))
    result = simulate(trace, simulation, POLICY, scripted({50.0: to(2, 2, TO_PREFILL)}))
    (switch,) = result.transitions
    assert (switch.kind, switch.role, switch.succeeded) == ("switch", Role.PREFILL, True)
    # Drained when its last stream ended: at most as long as a stream takes here, and then flip and verify.
    assert 6.0 <= switch.ended_s - switch.began_s <= 6.0 + 3.0
    assert (result.outcome == Outcome.COMPLETED).all()
    during = [p for p in result.timeline if switch.began_s < p.at_s < switch.ended_s]
    assert {(p.prefill_active, p.decode_active, p.switching) for p in during} == {(1, 2, 1)}
    assert (result.timeline[-1].prefill_active, result.timeline[-1].decode_active) == (2, 2)


def test_a_failed_switch_leaves_the_worker_in_its_old_role_and_scales_nothing() -> None:
    trace = poisson(4.0, 100, 2000, 50)
    simulation = Simulation(ENGINE, 1, 3, faults=Faults(switch_failure_share=1.0))
    seen: list[Observation] = []
    result = simulate(trace, simulation, POLICY, scripted({30.0: to(3, 2, TO_PREFILL)}, seen))
    assert [(t.kind, t.succeeded) for t in result.transitions] == [("switch", False)]
    assert (result.timeline[-1].prefill_active, result.timeline[-1].decode_active) == (1, 3)
    assert not seen[-1].plan_in_progress


def test_a_new_worker_serves_after_its_start_and_is_billed_from_the_decision() -> None:
    trace = poisson(2.0, 200, 2000, 50)
    simulation = Simulation(ENGINE, 1, 1, leads=Leads(start_s=60, reaction_s=0.5))
    result = simulate(trace, simulation, POLICY, scripted({50.0: to(2, 1)}))
    served = min(p.at_s for p in result.timeline if p.prefill_active == 2)
    assert 50 + 60.5 <= served <= 50 + 60.5 + 2 * POLICY.interval_s
    assert result.gpu_hours == pytest.approx((2 * result.ended_s + result.ended_s - 50.5) / 3600, rel=1e-3)
    assert result.peak_gpus == 3


def test_a_worker_that_leaves_finishes_its_streams_first_and_is_billed_until_then() -> None:
    trace = poisson(4.0, 100, 1000, 400)
    result = simulate(trace, Simulation(ENGINE, 1, 2), POLICY, scripted({50.0: to(1, 1)}))
    (stop,) = result.transitions
    assert stop.kind == "stop" and 0.5 < stop.ended_s - stop.began_s < 10
    assert (result.outcome == Outcome.COMPLETED).all()
    assert result.gpu_hours == pytest.approx((2 * result.ended_s + stop.ended_s) / 3600)


def test_a_start_waits_until_what_leaves_has_left_the_budget() -> None:
    trace = poisson(4.0, 120, 1000, 400)
    simulation = Simulation(ENGINE, 1, 3, leads=Leads(start_s=10, reaction_s=0.5))
    result = simulate(trace, simulation, replace(POLICY, max_gpus=4), scripted({40.0: to(3, 1)}))
    assert result.peak_gpus == 4
    starts = sorted(t.began_s for t in result.transitions if t.kind == "start")
    stops = sorted(t.ended_s for t in result.transitions if t.kind == "stop")
    assert starts == stops and len(starts) == 2 and starts[0] > 41  # each begins when one is gone
    assert (result.timeline[-1].prefill_active, result.timeline[-1].decode_active) == (3, 1)
    assert (result.outcome == Outcome.COMPLETED).all()


def test_a_decision_outside_the_policy_is_refused_as_the_operator_does() -> None:
    trace = poisson(2.0, 30, 1000, 10)
    result = simulate(trace, Simulation(ENGINE, 1, 1), POLICY, scripted({10.0: to(12, 12)}))
    assert "budget.maxGpus" in next(d.refused for d in result.decisions if d.decision.changes_layout)
    assert result.transitions == ()


def test_local_prefills_take_the_time_of_those_that_decode_and_remote_ones_do_not() -> None:
    trace = poisson(3.0, 120, 8000, 200)
    local = simulate(trace, Simulation(ENGINE, 1, 1, routing=ALL_LOCAL), POLICY, static())
    remote = simulate(trace, Simulation(ENGINE, 1, 1, routing=RoutingNumbers(0, 1000)), POLICY, static())
    assert set(local.prefilled) == {PrefillPlace.LOCAL} and set(remote.prefilled) == {PrefillPlace.REMOTE}
    assert local.itl_s.quantile(0.995) > 10 * remote.itl_s.quantile(0.995)
    assert np.nanmean(local.tpot_s) > 1.5 * np.nanmean(remote.tpot_s)


def test_a_full_prefill_queue_keeps_prompts_local() -> None:
    trace = poisson(30.0, 20, 8000, 20)
    result = simulate(trace, Simulation(ENGINE, 1, 2, routing=RoutingNumbers(512, 2)), POLICY, static())
    assert max(p.prefill_queue for p in result.timeline) <= 2
    assert (result.prefilled == PrefillPlace.LOCAL).any() and (result.prefilled == PrefillPlace.REMOTE).any()


def test_a_prefix_that_was_seen_before_is_not_computed_again() -> None:
    count = 40
    at_s, lengths, outputs = np.arange(0.0, 2.0 * count, 2.0), np.full(count, 8192), np.full(count, 20)
    shared = tuple((*range(15), 1000 + i) for i in range(count))
    apart = tuple(tuple(range(16 * i, 16 * i + 16)) for i in range(count))
    simulation = Simulation(ENGINE, 1, 1)
    warm = simulate(Trace("shared", at_s, lengths, outputs, shared), simulation, POLICY, static())
    cold = simulate(Trace("apart", at_s, lengths, outputs, apart), simulation, POLICY, static())
    assert warm.ttft_s[0] == pytest.approx(cold.ttft_s[0])
    assert np.median(warm.ttft_s[1:]) < 0.3 * np.median(cold.ttft_s[1:])


def test_a_full_kv_cache_preempts_and_everything_still_ends() -> None:
    trace = poisson(20.0, 30, 500, 400)
    small = replace(ENGINE, kv_capacity_tokens=20_000)
    result = simulate(trace, Simulation(small, 2, 1), POLICY, static())
    assert result.preemptions.sum() > 0
    assert (result.outcome == Outcome.COMPLETED).all()
    assert max(p.kv_usage for p in result.timeline) <= 1.0


def test_a_request_larger_than_a_worker_is_refused_and_counts_as_missed() -> None:
    trace = Trace("large", np.array([1.0, 2.0]), np.array([100, 500_000]), np.array([5, 5]))
    result = simulate(trace, Simulation(ENGINE, 1, 1), POLICY, static())
    assert list(result.outcome) == [Outcome.COMPLETED, Outcome.REFUSED]
    assert result.attainment == 0.5


def test_more_waiting_than_allowed_is_shed() -> None:
    trace = poisson(40.0, 20, 8000, 10)
    result = simulate(
        trace, Simulation(ENGINE, 1, 1, routing=RoutingNumbers(0, 10_000), max_waiting=4), POLICY, static()
    )
    assert (result.outcome == Outcome.SHED).mean() > 0.5
    assert max(p.prefill_queue for p in result.timeline) <= 4


# --- what the planner sees ---


def overload(flow: FlowBounds, seed: int = 0) -> Result:
    """Twice what one prefill worker can do, for a minute, and then nothing more."""
    numbers = RoutingNumbers(0, 10_000, flow)
    service = Simulation(ENGINE, 1, 2, routing=numbers, truth=Truth(noise_sigma=0.05), seed=seed)
    return simulate(poisson(18.0, 60, 4000, 60, seed), service, POLICY, static())


def test_under_overload_those_that_can_be_in_time_are() -> None:
    queued, held = overload(UNBOUNDED), overload(FlowBounds(pending_tokens_per_prefill_worker=45_000))
    assert queued.attainment < 0.2
    assert held.attainment > 0.45
    assert (held.outcome == Outcome.COMPLETED).all()
    late = held.held_s > 0
    assert not held.met[late].any()  # nobody was held who could have been in time
    assert held.ended_s <= queued.ended_s * 1.02  # and nothing stood idle


@pytest.mark.parametrize("seed", range(3))
def test_held_requests_go_in_order(seed: int) -> None:
    result = overload(FlowBounds(20_000, 30), seed)
    went_s = (result.arrival_s + result.held_s)[result.held_s > 0]
    assert len(went_s) > 100
    assert (np.diff(went_s) >= 0).all()
    assert any(point.held for point in result.timeline)


def test_a_very_long_prompt_makes_nobody_late_while_other_prefill_workers_are_idle() -> None:
    rng = np.random.default_rng(5)
    short = poisson(6.0, 120, 4000, 20, seed=5)
    prompts = np.where(rng.random(len(short)) < 0.05, 90_000, short.prompt_tokens)  # six seconds of one worker
    trace = replace(short, prompt_tokens=prompts)

    def played(flow: FlowBounds) -> Result:
        service = Simulation(ENGINE, 6, 2, routing=RoutingNumbers(0, 10_000, flow))
        return simulate(trace, service, POLICY, static())

    queued, held = played(UNBOUNDED), played(FlowBounds(pending_tokens_per_prefill_worker=45_000, slack_ms=1300))
    assert queued.attainment > 0.85
    assert held.attainment > queued.attainment - 0.03
    assert held.held_s.max() < 20.0


@pytest.mark.parametrize("slack_tokens", [90_000, 45_000, 10_000])
def test_late_prompts_use_every_prefill_worker_that_is_idle(slack_tokens: int) -> None:
    """However few prompts leave time for another: where they are long, a share of what may be pending is not one."""
    trace = poisson(1.2, 200, 90_000, 20, seed=6)
    numbers = RoutingNumbers(0, 10_000, FlowBounds(pending_tokens_per_prefill_worker=slack_tokens))
    queued = simulate(trace, Simulation(ENGINE, 6, 2, routing=replace(numbers, flow=UNBOUNDED)), POLICY, static())
    held = simulate(trace, Simulation(ENGINE, 6, 2, routing=numbers), POLICY, static())
    assert (held.held_s > 0).sum() > 50
    assert held.ended_s <= queued.ended_s * 1.1  # a prompt is under way also while its KV is sent


def test_bounds_that_go_away_let_everybody_go() -> None:
    def free(observation: Observation) -> Decision:
        return replace(stay(observation), routing=RoutingNumbers(0, 10_000), routing_reason=Reason.THRESHOLD)

    numbers = RoutingNumbers(0, 10_000, FlowBounds(pending_tokens_per_prefill_worker=10_000))
    result = simulate(
        poisson(18.0, 60, 4000, 60), Simulation(ENGINE, 1, 2, routing=numbers), POLICY, scripted({30.0: free})
    )
    assert (result.arrival_s + result.held_s)[result.held_s > 0].max() == pytest.approx(30.0, abs=POLICY.interval_s)


def test_prompts_at_workers_that_leave_still_wait() -> None:
    bound = 45_000
    numbers = RoutingNumbers(0, 10_000, FlowBounds(pending_tokens_per_prefill_worker=bound))
    service = Simulation(ENGINE, 1, 4, routing=numbers)
    result = simulate(poisson(18.0, 60, 4000, 60), service, POLICY, scripted({30.0: to(1, 1)}))
    went_s, first_s = result.arrival_s + result.held_s, result.arrival_s + result.ttft_s
    ahead = [4000 * int(((went_s < at_s) & (first_s > at_s)).sum()) for at_s in went_s]
    # One of them passes the bound, and a first token is counted when its step begins.
    assert 30_000 < max(ahead) <= bound + 2 * 4000


def test_who_is_held_stays_so_while_there_is_no_decode_worker() -> None:
    numbers = RoutingNumbers(0, 10_000, FlowBounds(pending_tokens_per_prefill_worker=10_000))
    service = Simulation(ENGINE, 1, 1, routing=numbers, leads=Leads(start_s=20, reaction_s=0.5, drain_timeout_s=2))
    policy = replace(POLICY, decode=Bounds(0, 15))
    acts = {30.0: to(1, 0), 50.0: to(1, 1)}
    result = simulate(poisson(18.0, 40, 4000, 60), service, policy, scripted(acts))
    went_s = (result.arrival_s + result.held_s)[result.held_s > 0]
    nobody = [point for point in result.timeline if point.decode_active == 0]
    assert nobody and min(point.held for point in nobody) > 50
    back_s = 50 + 20.5
    assert not ((went_s > 32.5 + 0.5) & (went_s < back_s)).any()
    assert (went_s >= back_s).sum() > 50
    assert (result.outcome == Outcome.COMPLETED).all()


def test_who_is_held_to_the_end_was_held_for_all_that_time() -> None:
    numbers = RoutingNumbers(0, 10_000, FlowBounds(pending_tokens_per_prefill_worker=10_000))
    service = Simulation(ENGINE, 1, 1, routing=numbers, drain_s=1.0)
    result = simulate(poisson(30.0, 20, 4000, 60), service, POLICY, static())
    never = result.prefilled == PrefillPlace.NOWHERE
    assert never.sum() > 50
    assert result.held_s[never] == pytest.approx(result.ended_s - result.arrival_s[never])


def test_the_planner_sees_what_the_live_shell_would_show_it() -> None:
    seen: list[Observation] = []
    trace = poisson(8.0, 100, 3000, 100)
    simulate(trace, Simulation(ENGINE, 2, 2), POLICY, scripted({}, seen))
    middle = seen[20]
    assert middle.load is not None and middle.service is not None
    assert np.mean([o.load.arrivals_per_s for o in seen if o.load]) == pytest.approx(8.0, rel=0.1)
    assert middle.load.prompt_tokens == 3000
    # One bucket of the gateway's histogram, told by its geometric middle.
    ((length, share),) = middle.load.prompt_length_shares
    assert length == pytest.approx((2048 * 4096) ** 0.5)
    assert share == 1.0
    assert middle.load.output_tokens == 100
    assert middle.service.ttft_attainment == 1.0
    decode = [s for s in middle.samples if s.role is Role.DECODE]
    assert decode and all(6 < s.observed_ms < 20 for s in decode)
    prefill = [s for s in middle.samples if s.role is Role.PREFILL]
    # One prompt takes 5 + 3000 · 0.02 + 1e-6 · 3000²/2 ms, and two of one batch a little less each.
    assert prefill and all(s.tokens == 3000 and 60 <= s.observed_ms <= 2 * 69.6 for s in prefill)
    assert [w.condition for w in middle.workers] == [WorkerCondition.ACTIVE] * 4
    assert (middle.kv_capacity_tokens, middle.max_sequences) == (ENGINE.kv_capacity_tokens, ENGINE.max_batch)


def test_an_outage_makes_what_is_known_old_and_its_end_tells_the_whole_time() -> None:
    seen: list[Observation] = []
    trace = poisson(8.0, 100, 1000, 10)
    simulation = Simulation(ENGINE, 1, 1, faults=Faults(metric_outages_s=((30.0, 60.0),)))
    simulate(trace, simulation, POLICY, scripted({}, seen))
    blind = [o for o in seen if 30 <= o.at_s < 60]
    assert blind and all(o.old_pages == 1 and o.age_s == pytest.approx(o.at_s - 27.5) for o in blind)
    assert blind[-1].age_s > POLICY.stale_after_s, "from then on nothing is changed"
    back = next(o for o in seen if o.at_s >= 60)
    assert back.load is not None
    assert (back.old_pages, back.age_s) == (0, 0.0)
    assert back.load.arrivals_per_s == pytest.approx(8.0, rel=0.3)


def test_late_metrics_are_old_but_roles_are_not() -> None:
    seen: list[Observation] = []
    trace = poisson(8.0, 60, 1000, 10)
    simulation = Simulation(ENGINE, 1, 2, faults=Faults(metric_delay_s=7.5), leads=Leads(flip_s=0.1, verify_s=0.1))
    simulate(trace, simulation, POLICY, scripted({30.0: to(2, 1, TO_PREFILL)}, seen))
    assert seen[0].load is None
    assert {o.age_s for o in seen[4:]} == {7.5}
    after = next(o for o in seen if o.at_s >= 35)
    assert after.active(Role.PREFILL) == 2


def test_an_unread_worker_is_unreachable_and_as_it_was_last_seen() -> None:
    seen: list[Observation] = []
    trace = poisson(8.0, 120, 1000, 10)
    simulation = Simulation(ENGINE, 2, 2, faults=Faults(metric_dropout_share=0.2))
    simulate(trace, simulation, POLICY, scripted({}, seen))
    last: dict[str, tuple[int | None, float | None]] = {}
    lost = 0
    for observation in seen:
        for worker in observation.workers:
            shown = worker.in_flight, worker.kv_usage
            if worker.condition is WorkerCondition.UNREACHABLE:
                assert shown == last.get(worker.name, (None, None))
                lost += shown != (0, 0.0)
            last[worker.name] = shown
    assert lost
    assert 0.1 < np.mean([o.old_pages > 0 for o in seen]) < 1
    assert all(o.load is not None for o in seen[1:]), "the last page of a gateway stands for the lost one"


def test_requests_are_counted_once_though_pages_are_lost() -> None:
    """A page that stands for a lost one brings its requests again, and the live loop leaves them out."""
    seen: list[Observation] = []
    trace = poisson(8.0, 300, 1000, 10)
    simulation = Simulation(ENGINE, 2, 2, faults=Faults(metric_dropout_share=0.3))
    simulate(trace, simulation, POLICY, scripted({}, seen))
    counted = sum(o.load.arrivals_per_s * o.window_s for o in seen if o.load is not None)
    assert counted == pytest.approx(len(trace), rel=0.1)


def test_routing_numbers_hold_from_the_next_request_on() -> None:
    def all_local(observation: Observation) -> Decision:
        return replace(stay(observation), reason=Reason.THRESHOLD, routing=ALL_LOCAL, routing_reason=Reason.THRESHOLD)

    trace = poisson(5.0, 60, 2000, 10)
    result = simulate(trace, Simulation(ENGINE, 1, 1), POLICY, scripted({30.0: all_local}))
    assert set(result.prefilled[result.arrival_s <= 30]) == {PrefillPlace.REMOTE}
    assert set(result.prefilled[result.arrival_s > 30]) == {PrefillPlace.LOCAL}


# --- the model of a mixed step ---


def mixed_step_errors(name: str) -> np.ndarray:
    """Composed against the table's own mixed steps (chunk, batch, context, ms), which the simulator does not read."""
    model, gpu, engine, tp = name.split()
    table = performance_table(model, gpu, engine, int(tp.removeprefix("tp")))
    path = files("pointsman.planner") / "tables" / f"{model}__{gpu}__{engine}__{tp}.json"
    fixed_ms = table.prefill_ms(0, 0)
    return np.array(
        [
            (table.decode_step_ms(batch, batch * context) + table.prefill_ms(chunk, 0) - fixed_ms) / measured_ms - 1
            for chunk, batch, context, measured_ms in json.loads(path.read_text())["mixed_step_ms"]["rows"]
        ]
    )


def test_a_mixed_step_is_the_decode_step_plus_the_prefill_without_its_fixed_part() -> None:
    errors = {name: mixed_step_errors(name) for name in table_names()}
    assert len(errors) >= 40
    assert np.mean([np.abs(each).mean() for each in errors.values()]) < 0.08
    worst = max(errors, key=lambda name: np.abs(errors[name]).mean())
    assert np.abs(errors[worst]).mean() < 0.15, worst


def test_a_shipped_table_can_be_simulated() -> None:
    table = performance_table("Meta-Llama-3.1-8B", "h100_sxm", "vllm", 1)
    result = simulate(poisson(10.0, 30, 4000, 250), Simulation(Engine(table, 432_992, 131_072), 2, 2), POLICY, static())
    assert result.attainment == 1.0
    assert 0.005 < np.nanmean(result.tpot_s) < 0.02


@pytest.mark.parametrize("seed", [16, 23])
def test_a_switch_takes_no_start_that_is_needed_and_a_policy_that_allows_more_is_not_blamed(seed: int) -> None:
    """2 requests/s become 5, with most of the budget free; workers start while others switch."""
    policy = planner_policy(load_policy(EXAMPLES / "chat.yaml").spec, prefill=Bounds(1, 12), decode=Bounds(1, 12))
    engine = shipped_engine("meta-llama/Meta-Llama-3.1-8B", "l40s", "vllm", 1)
    trace = generate(named_shape("step:low=2,high=5"), seed)
    result = simulate(trace, Simulation(engine, 2, 2), policy, PLANNERS["pointsman"]())
    decisions = [record.decision for record in result.decisions]
    assert max(decision.prefill + decision.decode for decision in decisions) < policy.max_gpus
    assert [decision.message for decision in decisions if "the policy allows" in decision.message] == []
    switches = [decision for decision in decisions if decision.switches]
    assert switches
    for decision in switches:
        role, numbers = decision.switches[0].target.value.lower(), dict(decision.inputs)
        gained = numbers[f"{role}Workers"] + decision.switches[0].count
        assert getattr(decision, role) >= min(numbers[f"{role}NeededNow"], gained), decision.message


def test_turns_of_conversations_that_decode_workers_hold_start_no_prefill_workers() -> None:
    """One prefill worker does it: the end of a turn stays where the conversation is, and only beginnings are sent."""
    trace = conversations(25.0, 300.0, first=12, further=1, turns=8, output=40, seed=1)
    kept = simulate(trace, Simulation(ENGINE, 1, 1), POLICY, static())
    assert kept.attainment > 0.99
    planned = simulate(trace, Simulation(ENGINE, 1, 1), POLICY, PLANNERS["pointsman"]())
    assert planned.attainment > 0.99
    assert planned.gpu_hours == pytest.approx(kept.gpu_hours)
