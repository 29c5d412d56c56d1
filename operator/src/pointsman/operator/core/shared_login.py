"""Which pods may still use the NATS login that all services shared before each of them had its own."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class PodLogin:
    """What tells which login a pod has: it reads it from its service's Secret when a container starts."""

    created_s: float | None  # Unix time; None: not known
    is_worker: bool  # of an LLMService
    reports_metrics_port: bool
    finished: bool


def may_use_shared_login(pod: PodLogin, own_login_since_s: float | None) -> bool:
    """Whether the pod may need the shared login, or the rights of earlier versions. What is not known counts as use.

    ``own_login_since_s``: when the Secret of its service was last written, if it has the service's own login now.
    A worker with its own login but an image of an earlier version makes its stream itself, which only the rights of
    earlier versions allow; workers of this version report where their metrics are.
    """
    if pod.finished:
        return False
    if own_login_since_s is None or pod.created_s is None or pod.created_s <= own_login_since_s:
        return True
    return pod.is_worker and not pod.reports_metrics_port
