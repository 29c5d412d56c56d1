"""A replay of an elastic group: its simulation from options and the group's file, and the document of its result."""

from collections.abc import Callable
from dataclasses import replace

from pointsman.api.protocol import names
from pointsman.api.v1alpha1.plannerpolicy import Mode
from pointsman.planner.errors import ReplayError
from pointsman.planner.policies import policy_of_group
from pointsman.planner.replay.group_files import GroupFile
from pointsman.planner.replay.options import Options
from pointsman.planner.replay.policy_files import PolicyFile
from pointsman.planner.simulator.elastic.planners import GROUP_PLANNERS
from pointsman.planner.simulator.elastic.simulate import simulate_group
from pointsman.planner.simulator.elastic.times import LinearTimes
from pointsman.planner.simulator.elastic.types import (
    GroupFaults,
    GroupLeads,
    GroupResult,
    GroupSimulation,
    Instances,
)
from pointsman.planner.simulator.types import Trace
from pointsman.serving.elastic.types import Settings


def run_group(
    options: Options, policy: PolicyFile, group: GroupFile, trace: Trace, progress: Callable[[float], None]
) -> tuple[GroupResult, dict[str, object]]:
    """Simulate; the result, and what it was run with. Raises ReplayError for what cannot be used."""
    if options.planner not in GROUP_PLANNERS:
        known = " or ".join(GROUP_PLANNERS)
        raise ReplayError(f"--planner {options.planner} plans no elastic groups; with --group use {known}")
    if trace.images is not None and trace.images.any():
        raise ReplayError(f"{trace.name} has requests with images, which an elastic group does not take")
    if group.slots is None:
        raise ReplayError(
            f"{group.name}: neither status.slots and status.instances.joined nor spec.instance.kvTokens has how many "
            "tokens of KV an instance keeps"
        )
    step = options.step_s or group.step
    if step is None:
        raise ReplayError(
            f"{group.name}: no plan in the file has the time of a decode step: add the output of 'kubectl get "
            f"plans -l {names.SERVICE_LABEL}={group.name} -o yaml', or use --step-milliseconds "
            "FIXED,PER_REQUEST"
        )
    ready = group.replicas if options.instances is None else options.instances
    least, most = group.bounds.least, group.bounds.most
    if not least <= ready <= most:
        raise ReplayError(f"--instances {ready} is not within spec.instances ({least} to {most})")
    gpus, budget = max(1, group.gpus), policy.spec.budget.max_gpus
    if ready * gpus > budget:
        raise ReplayError(f"{ready} instances need {ready * gpus} GPUs, budget.maxGpus is {budget}")
    simulation = GroupSimulation(
        instances=Instances(LinearTimes(group.latency, *step, 0.0, 0.0), group.latency, group.slots, gpus),
        ready=ready,
        bounds=group.bounds,
        max_degree=group.max_degree,
        settings=Settings(min_degree=group.min_degree),
        leads=GroupLeads(start_s=options.startup_s),
        faults=GroupFaults(
            start_failure_share=options.start_failures, metric_dropout_share=options.metric_dropout
        ),
        noise_sigma=options.noise,
        seed=options.seed,
    )  # fmt: skip
    core = replace(policy_of_group(policy.spec), mode=Mode.ACTIVE)
    result = simulate_group(trace, simulation, core, GROUP_PLANNERS[options.planner](), progress=progress)
    described: dict[str, object] = {
        "group": group.name,
        "instances": ready,
        "bounds": [least, most],
        "gpus": gpus,
        "slots": group.slots,
        "max_degree": group.max_degree,
        "min_degree": group.min_degree,
        "prefill_s": {
            str(degree): [of.alpha_s, of.beta_s, of.gamma_s] for degree, of in group.latency.by_degree.items()
        },
        "step_s": list(step),
        "startup_s": options.startup_s,
        "noise": options.noise,
        "metric_dropout": options.metric_dropout,
        "start_failures": options.start_failures,
        "seed": options.seed,
    }
    return result, described


def assumptions(options: Options, group: GroupFile) -> list[str]:
    """What the file does not say."""
    notes = ["a further member of a decode step, and a hand-over of KV, are taken to cost no time: no status has them"]
    unmeasured = [degree for degree in range(1, group.max_degree + 1) if degree not in group.latency.by_degree]
    if unmeasured:
        notes.append(f"degrees that were not measured form no groups: {', '.join(map(str, unmeasured))}")
    if group.gpus == 0:
        notes.append("instances compute on CPU; each counts as one GPU")
    if options.instances is None:
        notes.append(f"starts with spec.instances.replicas ({group.replicas}); --instances sets another number")
    return notes
