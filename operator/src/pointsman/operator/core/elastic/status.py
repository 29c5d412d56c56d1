"""What is said about an elastic group: counts, groups, conditions with stable reasons."""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Final

from pointsman.api.protocol.elastic import ElasticState
from pointsman.api.v1alpha1.conditions import ConditionType, Reason
from pointsman.api.v1alpha1.elasticgroup import (
    MAX_GROUPS_SHOWN,
    ElasticGroup,
    ElasticGroupStatus,
    GroupStatus,
    InstanceCounts,
    PrefillTimeStatus,
    SlotCounts,
)
from pointsman.operator.core.elastic.manifests import instance_selector
from pointsman.operator.core.gateway_status import Gateways, gateway_problems, gateway_ready
from pointsman.operator.core.messages import groups as text
from pointsman.operator.core.messages import status as service_text
from pointsman.operator.core.problems import Problem, Verdict
from pointsman.operator.core.snapshot import GatewayDeployment, GatewayPod, Worker
from pointsman.operator.core.status import SERVED, conditions_of, degraded, problem_of


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupView:
    """An elastic group at one moment. ``state``: what its manager says; None: it was not asked, or did not answer."""

    group: ElasticGroup
    instances: tuple[Worker, ...] = ()
    manager: Worker | None = None
    gateways: tuple[GatewayPod, ...] = ()
    gateway_deployment: GatewayDeployment | None = None
    state: ElasticState | None = None
    worker_image: str | None = None  # of pods that are created now


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupReport:
    """The outcome of one look: what is written, and the sentence that is logged."""

    status: ElasticGroupStatus
    reason: Reason
    sentence: str
    settled: bool  # all is as desired, and nothing is under way


def group_report(view: GroupView, problems: Sequence[Problem], *, endpoint: str, now: datetime) -> GroupReport:
    """The status of the group. ``problems``: what the shell met; what pods say is found here."""
    found = [*problems, *_problems(view)]
    counts = _counts(view)
    gateway = gateway_ready(_gateways(view), found)
    ready = _ready(view, counts, gateway, found)
    verdicts = {
        ConditionType.READY: ready,
        ConditionType.AVAILABLE: _available(view, counts),
        ConditionType.PROGRESSING: _progressing(view, counts),
        ConditionType.DEGRADED: degraded(found),
        ConditionType.GATEWAY_READY: gateway,
    }
    group, state = view.group, view.state
    degrees = sorted(len(each.instances) for each in state.iterations) if state else []
    summary = _summary(view, counts)
    return GroupReport(
        status=ElasticGroupStatus(
            observed_generation=group.metadata.generation,
            summary=summary,
            endpoint=endpoint,
            worker_image=view.worker_image,
            instances=counts,
            slots=_slots(state),
            degrees=_range(degrees),
            groups=_groups(state),
            latency_model=_latency_model(state),
            selector=",".join(f"{key}={value}" for key, value in instance_selector(group.metadata.name).items()),
            conditions=conditions_of(group.status.conditions, verdicts, group.metadata.generation, now),
        ),
        reason=ready.reason,
        sentence=service_text.summarized(summary, ready.message),
        settled=ready.status and not verdicts[ConditionType.PROGRESSING].status,
    )


_OURS: Final = (
    ConditionType.READY,
    ConditionType.AVAILABLE,
    ConditionType.PROGRESSING,
    ConditionType.DEGRADED,
    ConditionType.GATEWAY_READY,
)


_SERVES_WITH: Final = (
    *SERVED,
    Reason.POLICY_NOT_FOUND,
    Reason.UNREADABLE,
    Reason.OBJECT_REFUSED,
    Reason.BUDGET_BELOW_MINIMUM,
    Reason.BUDGET_ABOVE_MAXIMUM,
)


def without_others(status: ElasticGroupStatus) -> ElasticGroupStatus:
    """The status as far as the operator writes it: the planner has a condition of its own there."""
    return status.model_copy(update={"conditions": tuple(each for each in status.conditions if each.type in _OURS)})


def _counts(view: GroupView) -> InstanceCounts:
    staying = [each for each in view.instances if not each.terminating]
    joined = None
    if view.state is not None:
        joined = sum(not each.draining for each in view.state.instances)
    return InstanceCounts(
        desired=view.group.spec.instances.replicas,
        existing=len(staying),
        ready=sum(each.pod_ready for each in staying),
        joined=joined,
        draining=len(view.instances) - len(staying),
    )


def _slots(state: ElasticState | None) -> SlotCounts | None:
    if state is None:
        return None
    total = sum(each.slots for each in state.instances)
    return SlotCounts(total=total, free=total - sum(each.used_slots for each in state.instances))


def _groups(state: ElasticState | None) -> tuple[GroupStatus, ...]:
    if state is None:
        return ()
    ordered = sorted(state.iterations, key=lambda each: (-len(each.instances), -each.tokens, each.instances))
    return tuple(
        GroupStatus(
            phase=each.phase,
            degree=len(each.instances),
            instances=each.instances,
            requests=each.requests,
            tokens=each.tokens,
        )
        for each in ordered[:MAX_GROUPS_SHOWN]
    )


def _latency_model(state: ElasticState | None) -> tuple[PrefillTimeStatus, ...]:
    if state is None:
        return ()
    return tuple(
        PrefillTimeStatus(
            degree=each.degree,
            alpha_ms=round(each.alpha_seconds * 1e3, 3),
            beta_ms_per_token=round(each.beta_seconds * 1e3, 6),
            gamma_ms_per_squared_token=round(each.gamma_seconds * 1e3, 9),
            error_percent=round(each.error * 100, 1),
        )
        for each in state.latency_model
    )


def _range(degrees: Sequence[int]) -> str | None:
    if not degrees:
        return None
    return str(degrees[0]) if degrees[0] == degrees[-1] else f"{degrees[0]}-{degrees[-1]}"


def _summary(view: GroupView, counts: InstanceCounts) -> str:
    """For example: 4 instances, 3 groups (1x2 Prefill, 2x1 Decode)."""
    if view.state is None:
        return text.summary(counts.existing, text.groups_unknown())
    if not view.state.iterations:
        return text.summary(counts.existing, text.no_groups())
    kinds = Counter((len(each.instances), str(each.phase)) for each in view.state.iterations)
    listed = [(count, degree, phase) for (degree, phase), count in sorted(kinds.items(), reverse=True)]
    return text.summary(counts.existing, text.groups(len(view.state.iterations), listed))


def _problems(view: GroupView) -> list[Problem]:
    pods = [*view.instances, *([view.manager] if view.manager else [])]
    found = [problem_of(each) for each in pods if not each.terminating and not each.pod_ready]
    return [*(problem for problem in found if problem is not None), *gateway_problems(_gateways(view))]


def _gateways(view: GroupView) -> Gateways:
    return Gateways(spec=view.group.spec.gateway, deployment=view.gateway_deployment, pods=view.gateways)


def _ready(view: GroupView, counts: InstanceCounts, gateway: Verdict, problems: Sequence[Problem]) -> Verdict:
    have = text.working(counts.joined, counts.desired)
    # A dropped field or a policy that cannot be followed degrades the group, but it serves.
    failed = next((problem for problem in problems if problem.reason not in _SERVES_WITH), None)
    if failed is not None:
        return Verdict(status=False, reason=failed.reason, message=text.failed(have, failed.message))
    if view.manager is None or not view.manager.pod_ready or view.state is None:
        return Verdict(status=False, reason=Reason.MANAGER_NOT_READY, message=text.manager_silent(have))
    starting = [each.name for each in view.instances if not each.terminating and not each.pod_ready]
    if starting:
        message = text.loading(have, starting)
        return Verdict(status=False, reason=Reason.INSTANCES_STARTING, message=message)
    if counts.joined is None or counts.joined < counts.desired:
        return Verdict(status=False, reason=Reason.TOO_FEW_INSTANCES, message=have)
    if not gateway.status:
        return gateway
    return Verdict(status=True, reason=Reason.AS_DESIRED, message=text.failed(have, gateway.message))


def _available(view: GroupView, counts: InstanceCounts) -> Verdict:
    if not _gateways(view).ready:
        return Verdict(status=False, reason=Reason.GATEWAY_NOT_READY, message=text.no_gateway())
    if view.manager is None or not view.manager.pod_ready:
        return Verdict(status=False, reason=Reason.MANAGER_NOT_READY, message=text.manager_not_ready())
    if counts.joined == 0:
        return Verdict(status=False, reason=Reason.NO_INSTANCE, message=text.no_instance())
    return Verdict(status=True, reason=Reason.SERVING, message=text.answered())


def _progressing(view: GroupView, counts: InstanceCounts) -> Verdict:
    if view.group.spec.paused:
        return Verdict(status=False, reason=Reason.PAUSED, message=text.paused())
    if counts.draining:
        return Verdict(status=True, reason=Reason.INSTANCES_DRAINING, message=text.draining(counts.draining))
    if counts.existing != counts.desired:
        message = text.scaling(counts.existing, counts.desired)
        return Verdict(status=True, reason=Reason.SCALING, message=message)
    if counts.ready < counts.existing:
        message = text.starting(counts.existing - counts.ready, counts.existing)
        return Verdict(status=True, reason=Reason.INSTANCES_STARTING, message=message)
    return Verdict(status=False, reason=Reason.IDLE, message=text.nothing_to_do())
