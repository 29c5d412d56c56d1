"""Whether the gateways of a service or an elastic group are ready, and why not."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from pointsman.api.v1alpha1.conditions import Reason
from pointsman.api.v1alpha1.gateway import GatewaySpec
from pointsman.operator.core.messages import gateways as text
from pointsman.operator.core.problems import IMAGE_FAILURES, START_FAILURES, Problem, Verdict
from pointsman.operator.core.snapshot import GatewayDeployment, GatewayPod


@dataclass(frozen=True, slots=True, kw_only=True)
class Gateways:
    """The gateways at one moment. ``deployment`` None: there is none yet, or it was deleted."""

    spec: GatewaySpec
    deployment: GatewayDeployment | None
    pods: Sequence[GatewayPod]

    @property
    def ready(self) -> int:
        return sum(pod.ready and not pod.terminating for pod in self.pods)

    @property
    def desired(self) -> int:
        """What the Deployment asks for: an autoscaler may have changed the spec's number."""
        return self.spec.desired_replicas if self.deployment is None else self.deployment.replicas

    @property
    def one_is_enough(self) -> bool:
        """Nobody asked for a second gateway, and one serves: what keeps the second from a node is no failure."""
        return self.spec.replicas is None and self.ready > 0


def gateway_problems(gateways: Gateways) -> list[Problem]:
    """What has failed."""
    return [*([] if gateways.one_is_enough else _unplaced(gateways)), *_failed(gateways)]


def gateway_ready(gateways: Gateways, problems: Sequence[Problem], *, deleting: bool = False) -> Verdict:
    """The condition GatewayReady."""
    have = text.ready(gateways.ready, gateways.desired)
    if gateways.desired == 0 and not deleting:
        message = text.scaled_to_zero()
        return Verdict(status=False, reason=Reason.GATEWAY_NOT_READY, message=message)
    if gateways.desired and gateways.ready >= gateways.desired:
        return Verdict(status=True, reason=Reason.AS_DESIRED, message=have)
    found = [problem for problem in problems if problem.of_gateway or problem.reason is Reason.GATEWAY_REFUSED]
    if found:
        return Verdict(status=False, reason=found[0].reason, message=text.failed(have, found[0].message))
    unplaced = next(_unplaced(gateways), None)
    if gateways.one_is_enough and unplaced is not None:
        message = text.one_is_enough(have, unplaced.message)
        return Verdict(status=True, reason=Reason.AS_DESIRED, message=message)
    if deleting:
        return Verdict(status=False, reason=Reason.DELETING, message=have)
    return Verdict(status=False, reason=Reason.GATEWAY_STARTING, message=have)


def _unplaced(gateways: Gateways) -> Iterator[Problem]:
    """Gateways that no node has room for, or that the API server lets nobody make."""
    deployment = gateways.deployment
    if deployment is not None and deployment.refused is not None and gateways.ready < deployment.replicas:
        message = text.pod_refused(deployment.refused)
        yield Problem(reason=Reason.GATEWAY_REFUSED, message=message, of_gateway=True)
    for pod in gateways.pods:
        if pod.unschedulable is not None and not pod.terminating:
            message = text.unschedulable(pod.name, pod.unschedulable)
            yield Problem(reason=Reason.UNSCHEDULABLE, message=message, of_gateway=True)


def _failed(gateways: Gateways) -> Iterator[Problem]:
    for pod in gateways.pods:
        if pod.node_lost and not pod.terminating:
            message = text.node_lost(pod.name, pod.node)
            yield Problem(reason=Reason.GATEWAY_NOT_READY, message=message, of_gateway=True)
            continue
        failed = pod.waiting_reason in ("CrashLoopBackOff", *IMAGE_FAILURES, *START_FAILURES)
        if failed and not pod.ready and not pod.terminating:
            message = text.not_started(pod.name, pod.waiting_reason, pod.message)
            yield Problem(reason=Reason.GATEWAY_NOT_READY, message=message, of_gateway=True)
