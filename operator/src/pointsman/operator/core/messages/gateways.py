"""Messages of the condition GatewayReady."""

from pointsman.serving.words import are, quantity


def ready(count: int, desired: int) -> str:
    return f"{count} of {quantity(desired, 'gateway')} {are(desired)} ready"


def scaled_to_zero() -> str:
    return "the gateway's Deployment is scaled to 0; scale it up, or change spec.gateway.replicas"


def failed(have: str, cause: str) -> str:
    return f"{have}; {cause}"


def one_is_enough(have: str, cause: str) -> str:
    return f"{have}; {cause}; one is enough, because spec.gateway.replicas is not set"


def pod_refused(error: str) -> str:
    return f"the API server refused a gateway pod: {error}"


def unschedulable(pod: str, scheduler: str) -> str:
    return f"gateway {pod} waits for a node: {scheduler}"


def node_lost(pod: str, node: str | None) -> str:
    return f"gateway {pod} is on node {node}, which does not answer"


def not_started(pod: str, reason: str | None, message: str) -> str:
    return f"gateway {pod}: {reason} {message}".strip()
