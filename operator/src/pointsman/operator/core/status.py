"""What is said about a service: counts, the summary, and conditions with stable reasons."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Final

from pointsman.api.protocol.names import Role, workers_in_words
from pointsman.api.v1alpha1.conditions import Condition, ConditionStatus, ConditionType, Reason, with_condition
from pointsman.api.v1alpha1.counts import PoolCounts
from pointsman.api.v1alpha1.llmservice import CurrentPlan, LLMServiceStatus, PoolsStatus
from pointsman.api.v1alpha1.plannerpolicy import Mode
from pointsman.api.v1alpha1.roleswitch import SwitchPhase
from pointsman.api.v1alpha1.workerpool import MAX_VICTIMS_SHOWN, VictimStatus, WorkerPoolStatus
from pointsman.operator.core.children import worker_selector
from pointsman.operator.core.desired import PoolTarget, budgeted_gpus, pool_target, room_in_budget
from pointsman.operator.core.gateway_status import Gateways, gateway_problems, gateway_ready
from pointsman.operator.core.kv_groups import incompatibilities
from pointsman.operator.core.messages import status as text
from pointsman.operator.core.problems import IMAGE_FAILURES, START_FAILURES, Problem, Verdict
from pointsman.operator.core.report import MESSAGE_LIMIT
from pointsman.operator.core.revision import revision as revision_of
from pointsman.operator.core.snapshot import DrainReason, Snapshot, Worker

_POOL_READY: Final = {
    Role.PREFILL: ConditionType.PREFILL_READY,
    Role.DECODE: ConditionType.DECODE_READY,
    Role.ENCODE: ConditionType.ENCODE_READY,
}
_NO_WORKER: Final = {
    Role.PREFILL: Reason.NO_PREFILL_WORKER,
    Role.DECODE: Reason.NO_DECODE_WORKER,
    Role.ENCODE: Reason.NO_ENCODE_WORKER,
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Report:
    """The whole outcome of one look at a service: what is written, and the sentence that is logged."""

    status: LLMServiceStatus
    pools: dict[Role, WorkerPoolStatus]
    reason: Reason
    sentence: str


def report(
    snapshot: Snapshot,
    problems: Sequence[Problem],
    *,
    endpoint: str,
    revision: str | None,
    before: LLMServiceStatus,
    now: datetime,
) -> Report:
    """The status of the service and of its pools. ``before`` is the present one: its times stay where nothing flips.

    ``problems`` are those the shell met (refused objects, failed verifications); what pods say is found here.
    """
    found = [*problems, *worker_problems(snapshot), *kv_problems(snapshot)]
    counts = {role: pool_counts(snapshot, role) for role in snapshot.roles}
    outdated = _outdated(snapshot, revision)
    verdicts = {
        _POOL_READY[role]: _pool_ready(snapshot, role, count, found, outdated) for role, count in counts.items()
    }
    deleting = snapshot.service.deleting_since_s is not None
    verdicts[ConditionType.GATEWAY_READY] = gateway_ready(_gateways(snapshot), found, deleting=deleting)
    ready = _ready(list(verdicts.values()), found)
    progressing = _progressing(snapshot, counts, outdated)
    everything = {
        ConditionType.READY: ready,
        ConditionType.AVAILABLE: _available(snapshot, counts),
        ConditionType.PROGRESSING: progressing,
        ConditionType.DEGRADED: degraded(found),
        ConditionType.SWITCH_IN_PROGRESS: _switching(snapshot),
        **verdicts,
    }
    summary = workers_in_words({role: count.routable for role, count in counts.items()})
    if snapshot.running_claims():
        summary += f"(+{len(snapshot.running_claims())} switching)"
    status = LLMServiceStatus(
        observed_generation=snapshot.service.generation,
        summary=summary,
        endpoint=endpoint,
        pools=PoolsStatus(prefill=counts[Role.PREFILL], decode=counts[Role.DECODE], encode=counts.get(Role.ENCODE)),
        revision=revision,
        kv_compatibility=snapshot.kv_compatibility,
        worker_image=snapshot.worker_image,
        routing=before.routing,
        plan=_current_plan(snapshot),
        conditions=conditions_of(before.conditions, everything, snapshot.service.generation, now),
    )
    pools = {
        role: _pool_status(snapshot, role, count, verdicts, now)
        for role, count in counts.items()
        if role in snapshot.pools
    }
    first = ready if not ready.status else progressing if progressing.status else ready
    return Report(status=status, pools=pools, reason=first.reason, sentence=text.summarized(summary, first.message))


def _current_plan(snapshot: Snapshot) -> CurrentPlan | None:
    newest = max(snapshot.plans, key=lambda plan: plan.spec.sequence, default=None)
    if newest is None:
        return None
    return CurrentPlan(current=newest.name, mode=newest.spec.mode, phase=newest.status.phase)


def pool_counts(snapshot: Snapshot, role: Role) -> PoolCounts:
    """The counts of one pool; terminating pods are in none of them."""
    workers = snapshot.counted(role)
    active = [worker for worker in workers if worker.active]
    ready = sum(worker.ready for worker in active)
    return PoolCounts(
        desired=None if _has_no_pool(snapshot, role) else pool_target(snapshot, role).replicas,
        existing=len(active),
        ready=ready,
        routable=sum(_serves(worker, snapshot) for worker in active),
        draining=sum(worker.draining for worker in workers),
        switching=sum(claim.target is role for claim in snapshot.running_claims()),
        starting=sum(_starts(worker) for worker in active),
    )


def _has_no_pool(snapshot: Snapshot, role: Role) -> bool:
    """Its WorkerPool should exist and does not, so the number of its workers is not known."""
    expected = role in snapshot.service.spec.roles and snapshot.service.deleting_since_s is None
    return expected and role not in snapshot.pools


def _starts(worker: Worker) -> bool:
    """It is on its way to its first request; one that served and is silent now, or whose node is, is not."""
    return not (worker.ready or worker.is_verified or worker.node_lost)


def _serves(worker: Worker, snapshot: Snapshot) -> bool:
    return worker.serves and not is_unreachable(worker, snapshot)


def is_unreachable(worker: Worker, snapshot: Snapshot) -> bool:
    """It is routable, but answers neither the operator nor the gateways.

    Kubernetes finds a node lost after 40 seconds only; gateways use other workers after the first failed request.
    """
    if not worker.serves or not worker.asked or worker.state is not None:
        return False
    views = [gateway for gateway in snapshot.gateways if gateway.ready and gateway.uses is not None]
    return bool(views) and all(worker.uid in gateway.avoids for gateway in views)


def worker_problems(snapshot: Snapshot) -> Iterable[Problem]:
    """What the pods of a service say has failed."""
    for worker in snapshot.workers:
        if worker.terminating:
            continue
        problem = problem_of(worker) if not worker.ready else unreachable(worker, snapshot)
        if problem is not None:
            yield problem
    yield from gateway_problems(_gateways(snapshot))


def unreachable(worker: Worker, snapshot: Snapshot) -> Problem | None:
    """Of a worker that is routable as far as Kubernetes knows."""
    if not is_unreachable(worker, snapshot):
        return None
    message = text.unreachable(worker.name, worker.node)
    return Problem(reason=Reason.WORKER_UNREACHABLE, message=message, role=worker.role)


def kv_problems(snapshot: Snapshot) -> Iterable[Problem]:
    """Workers that no worker of the other role may exchange KV with."""
    for role, message in incompatibilities(snapshot):
        yield Problem(reason=Reason.KV_INCOMPATIBLE, message=message, role=role)


def problem_of(worker: Worker) -> Problem | None:
    """What the kubelet says has failed in a pod with an engine container; None: nothing."""
    container, name = worker.container, worker.name
    why = container.waiting_reason
    if worker.node_lost:
        message = text.node_lost(name, worker.node)
        return Problem(reason=Reason.NODE_LOST, message=message, role=worker.role)
    if worker.is_verified and not worker.pod_ready:
        message = text.unresponsive(name)
        return Problem(reason=Reason.WORKER_UNRESPONSIVE, message=message, role=worker.role)
    if worker.unschedulable is not None:
        message = text.unschedulable(name, worker.unschedulable)
        return Problem(reason=Reason.UNSCHEDULABLE, message=message, role=worker.role)
    if worker.finished:
        return Problem(
            reason=Reason.WORKER_CRASHED,
            message=text.pod_ended(name, worker.phase, container.last_exit_message or worker.message or ""),
            role=worker.role,
        )
    if why in IMAGE_FAILURES:
        message = text.not_started(name, why, container.waiting_message)
        return Problem(reason=Reason.IMAGE_PULL_FAILED, message=message, role=worker.role)
    if why in START_FAILURES:
        message = text.not_started(name, why, container.waiting_message)
        return Problem(reason=Reason.CONTAINER_NOT_STARTED, message=message, role=worker.role)
    if container.last_exit_code is None:
        return None
    again = why == "CrashLoopBackOff" or container.restarts > 1
    return Problem(
        reason=Reason.CRASH_LOOP if again else Reason.WORKER_CRASHED,
        message=text.crashed(
            name,
            container.last_exit_code,
            container.last_exit_reason,
            container.restarts,
            container.last_exit_message,
        ),
        role=worker.role,
    )


def _pool_ready(
    snapshot: Snapshot, role: Role, counts: PoolCounts, problems: Sequence[Problem], outdated: Sequence[Worker]
) -> Verdict:
    target = pool_target(snapshot, role)
    have = text.serving(counts.routable, target.replicas, role)
    if _has_no_pool(snapshot, role):
        refused = in_the_way(problems)
        message = text.no_pool(counts.routable, role)
        if refused is not None:
            return Verdict(status=False, reason=refused.reason, message=text.also(message, refused.message))
        return Verdict(status=False, reason=Reason.CREATING, message=message)
    incompatible = next((p for p in problems if p.reason is Reason.KV_INCOMPATIBLE and p.role is Role.PREFILL), None)
    if role is Role.PREFILL and incompatible is not None:  # whoever serves prefills for nobody
        return Verdict(status=False, reason=incompatible.reason, message=text.also(have, incompatible.message))
    if counts.routable >= target.replicas:
        old = [worker for worker in outdated if worker.role is role]
        if old and snapshot.service.deleting_since_s is None:
            message = text.also(have, _rollout_needed(old, snapshot))
            return Verdict(status=False, reason=Reason.CHANGE_NEEDS_ROLLOUT, message=message)
        return Verdict(status=True, reason=Reason.AS_DESIRED, message=_with_bounds(have, target, snapshot))
    mine = next((problem for problem in problems if problem.role is role), None)
    if mine is None and counts.existing < target.replicas:  # what keeps all workers from being made
        mine = in_the_way([problem for problem in problems if not problem.of_gateway])
    if mine is not None:
        return Verdict(status=False, reason=mine.reason, message=text.also(have, mine.message))
    starting = [worker for worker in snapshot.counted(role) if worker.active and not worker.serves]
    if starting:
        message = text.starting(have, [(worker.name, _doing(worker)) for worker in starting])
        return Verdict(status=False, reason=Reason.WORKERS_STARTING, message=message)
    if snapshot.service.deleting_since_s is not None:
        return Verdict(status=False, reason=Reason.DELETING, message=have)
    if counts.existing < target.replicas and room_in_budget(snapshot) < budgeted_gpus(snapshot.service.spec, role):
        most = snapshot.policy.spec.budget.max_gpus if snapshot.policy else 0
        return Verdict(status=False, reason=Reason.BUDGET_REACHED, message=text.budget_used(have, most))
    if counts.existing < target.replicas and not snapshot.service.spec.paused:
        return Verdict(status=False, reason=Reason.CREATING, message=text.creating(have))
    if counts.routable == 0:
        return Verdict(status=False, reason=_NO_WORKER[role], message=have)
    return Verdict(status=False, reason=Reason.TOO_FEW_WORKERS, message=have)


SERVED: Final = (Reason.UNKNOWN_FIELD, Reason.UNCOUNTED_GPUS)
"""What degrades a service or a group that serves all that was kept of its spec."""


def in_the_way(problems: Sequence[Problem]) -> Problem | None:
    """The first that concerns the service as a whole."""
    return next((p for p in problems if p.role is None and p.reason not in SERVED), None)


def _with_bounds(sentence: str, target: PoolTarget, snapshot: Snapshot) -> str:
    """``sentence``, and which number of somebody's is not followed, and why."""
    role, bounds = target.role, snapshot.service.spec.pools.of(target.role)
    if target.spec_replicas != target.clamped:
        sentence = text.replicas_clamped(sentence, target.spec_replicas, role, bounds.min_replicas, bounds.max_replicas)
    pool, policy = snapshot.pools.get(role), snapshot.policy
    if pool is not None and (policy is None or policy.mode is Mode.SHADOW) and pool.replicas != bounds.replicas:
        return text.replicas_kept(sentence, role, bounds.replicas)
    if pool is None or policy is None or policy.mode is Mode.SHADOW or pool.copied_replicas == bounds.replicas:
        return sentence
    return text.replicas_ignored(sentence, role, bounds.replicas, policy.mode, policy.name)


def _doing(worker: Worker) -> str:
    if worker.node_lost:
        return text.node_does_not_answer(worker.node)
    if worker.busy is not None:
        return worker.busy
    if not worker.container.running:
        return text.waits_for_container() if worker.node else text.waits_for_node()
    if not worker.pod_ready:
        return text.probe_fails() if worker.is_verified else text.loading()
    if worker.is_verified and worker.routable_label:
        return text.waits_for_gates()
    if worker.state is None:
        return text.no_answer_yet() if worker.asked else text.waits_for_role()
    if worker.state.role is None:
        return text.waits_for_role()
    if worker.state.verified is not worker.role:
        return text.waits_for_verification(worker.role)
    return text.becomes_routable()


def _gateways(snapshot: Snapshot) -> Gateways:
    return Gateways(spec=snapshot.service.spec.gateway, deployment=snapshot.gateway_deployment, pods=snapshot.gateways)


def _ready(verdicts: Sequence[Verdict], problems: Sequence[Problem]) -> Verdict:
    missing = [verdict for verdict in verdicts if not verdict.status]
    # A refused write is in the way only of what is not there yet: what serves is not less ready for it.
    general = in_the_way([p for p in problems if missing or p.reason is not Reason.OBJECT_REFUSED])
    if general is not None:
        return Verdict(status=False, reason=general.reason, message=general.message)
    if not missing:
        return Verdict(status=True, reason=Reason.AS_DESIRED, message=text.together([v.message for v in verdicts]))
    return Verdict(status=False, reason=missing[0].reason, message=text.together([v.message for v in missing]))


def _available(snapshot: Snapshot, counts: dict[Role, PoolCounts]) -> Verdict:
    if not _gateways(snapshot).ready:
        return Verdict(status=False, reason=Reason.GATEWAY_NOT_READY, message=text.no_gateway())
    if not counts[Role.DECODE].routable:
        return Verdict(status=False, reason=Reason.NO_DECODE_WORKER, message=text.no_decode_worker())
    message = text.answered(has_prefill=counts[Role.PREFILL].routable > 0)
    return Verdict(status=True, reason=Reason.SERVING, message=message)


def _progressing(snapshot: Snapshot, counts: dict[Role, PoolCounts], outdated: Sequence[Worker]) -> Verdict:
    service = snapshot.service
    if service.deleting_since_s is not None:
        left = sum(not worker.terminating for worker in snapshot.workers)
        return Verdict(
            status=True,
            reason=Reason.DELETING,
            message=text.deleting(len(snapshot.gateways), left),
        )
    if service.spec.paused:
        return Verdict(status=False, reason=Reason.PAUSED, message=text.paused())
    draining = sum(count.draining for count in counts.values())
    if draining:
        return Verdict(status=True, reason=Reason.WORKERS_DRAINING, message=text.pool_draining(draining))
    starting = sum(count.starting for count in counts.values())
    if starting:
        return Verdict(status=True, reason=Reason.WORKERS_STARTING, message=text.pool_starting(starting))
    known = {role: count for role, count in counts.items() if count.desired is not None}
    if any(count.existing != count.desired for count in known.values()):
        message = text.scaling({role: (count.existing, count.desired) for role, count in known.items()})
        return Verdict(status=True, reason=Reason.SCALING, message=message)
    if outdated:
        return Verdict(status=False, reason=Reason.CHANGE_NEEDS_ROLLOUT, message=_rollout_needed(outdated, snapshot))
    return Verdict(status=False, reason=Reason.IDLE, message=_idle(snapshot))


def _idle(snapshot: Snapshot) -> str:
    """Also says if the operator's default image is another one than the service's."""
    kept, default = snapshot.worker_image, snapshot.default_image
    if kept == default or kept is None or snapshot.service.spec.engine.image is not None:
        return text.idle()
    return text.idle(kept, default)


def _outdated(snapshot: Snapshot, revision: str | None) -> list[Worker]:
    """Workers of another revision than the spec's, which is ``revision`` for prefill and decode workers.

    None: the spec is refused, so no worker is of it.
    """
    if revision is None:
        return []
    of_encode = revision_of(snapshot.service.spec, Role.ENCODE)
    return sorted(
        (
            worker
            for worker in snapshot.workers
            if worker.active and worker.revision != (of_encode if worker.role is Role.ENCODE else revision)
        ),
        key=lambda worker: worker.name,
    )


def _rollout_needed(outdated: Sequence[Worker], snapshot: Snapshot) -> str:
    return text.rollout_needed([worker.name for worker in outdated], _without_encode(outdated, snapshot))


def _without_encode(outdated: Sequence[Worker], snapshot: Snapshot) -> int:
    """How many workers were started before ``spec.encode`` was added."""
    spec = snapshot.service.spec
    if spec.encode is None:
        return 0
    before = revision_of(spec.model_copy(update={"encode": None}))
    return sum(worker.revision == before and worker.role is not Role.ENCODE for worker in outdated)


def _switching(snapshot: Snapshot) -> Verdict:
    running = [
        switch for switch in snapshot.switches if not switch.ended and snapshot.claimed_by(switch.uid) is not None
    ]
    if not running:
        return Verdict(status=False, reason=Reason.IDLE, message=text.no_switch())
    shown = [
        text.switch_running(s.name, s.source, s.target, s.status.phase or SwitchPhase.PENDING) for s in running[:3]
    ]
    return Verdict(status=True, reason=Reason.SWITCHING, message=text.together(shown))


def degraded(problems: Sequence[Problem]) -> Verdict:
    """The condition Degraded."""
    if not problems:
        return Verdict(status=False, reason=Reason.HEALTHY, message=text.nothing_failed())
    return Verdict(status=True, reason=problems[0].reason, message=text.together([each.message for each in problems]))


def conditions_of(
    before: tuple[Condition, ...], verdicts: Mapping[ConditionType, Verdict], generation: int, now: datetime
) -> tuple[Condition, ...]:
    """``before`` with these verdicts; the times of those that do not flip stay."""
    # Others write conditions of their own into the same list (PlannerHealthy): saying theirs would make them ours.
    conditions = tuple(item for item in before if item.type in verdicts)
    for kind, verdict in verdicts.items():
        conditions = with_condition(
            conditions,
            kind,
            ConditionStatus.TRUE if verdict.status else ConditionStatus.FALSE,
            verdict.reason,
            verdict.message[:MESSAGE_LIMIT],
            generation=generation,
            now=now,
        )
    return conditions


def _victims(snapshot: Snapshot, role: Role) -> tuple[VictimStatus, ...] | None:
    """Who leaves because the pool shrinks; numbers of the time of the choice, so that they do not move."""
    leaving = [
        worker for worker in snapshot.counted(role) if worker.draining and worker.drain_reason is DrainReason.SCALE_DOWN
    ]
    victims = tuple(
        VictimStatus(
            worker=worker.name,
            in_flight_tokens=worker.drain_score.in_flight_tokens,
            cached_blocks=worker.drain_score.cached_blocks,
        )
        for worker in sorted(leaving, key=lambda each: (each.drain_started_s or 0.0, each.name))[:MAX_VICTIMS_SHOWN]
    )
    return victims or None


def _pool_status(
    snapshot: Snapshot, role: Role, counts: PoolCounts, verdicts: dict[ConditionType, Verdict], now: datetime
) -> WorkerPoolStatus:
    pool = snapshot.pools[role]
    ready = verdicts[_POOL_READY[role]]
    target = pool_target(snapshot, role)
    if target.spec_replicas != target.clamped:
        progressing = Verdict(
            status=False, reason=Reason.OUT_OF_BOUNDS, message=_with_bounds(text.replicas_in_bounds(), target, snapshot)
        )
    elif counts.draining:
        progressing = Verdict(status=True, reason=Reason.WORKERS_DRAINING, message=text.pool_draining(counts.draining))
    elif counts.starting:
        progressing = Verdict(status=True, reason=Reason.WORKERS_STARTING, message=text.pool_starting(counts.starting))
    elif counts.existing != target.replicas:
        progressing = Verdict(
            status=True, reason=Reason.SCALING, message=text.pool_scaling(counts.existing, target.replicas)
        )
    else:
        progressing = Verdict(status=False, reason=Reason.IDLE, message=text.nothing_to_do())
    selector = ",".join(f"{key}={value}" for key, value in worker_selector(snapshot.service, role).items())
    return WorkerPoolStatus(
        **counts.model_dump(),
        observed_generation=pool.generation,
        selector=selector,
        victims=_victims(snapshot, role),
        conditions=conditions_of(
            pool.status.conditions,
            {ConditionType.READY: ready, ConditionType.PROGRESSING: progressing},
            pool.generation,
            now,
        ),
    )
