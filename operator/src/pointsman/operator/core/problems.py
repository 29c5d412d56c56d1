"""What is found about a service before it becomes conditions."""

from dataclasses import dataclass
from typing import Final

from pointsman.api.protocol.names import Role
from pointsman.api.v1alpha1.conditions import Reason
from pointsman.operator.core.messages import status as text

IMAGE_FAILURES: Final = ("ErrImagePull", "ImagePullBackOff", "InvalidImageName", "ErrImageNeverPull")
START_FAILURES: Final = ("CreateContainerConfigError", "CreateContainerError", "RunContainerError")
"""Reasons for which a kubelet does not start a container."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Problem:
    """Something that will not mend itself by waiting. ``role`` None: it is not about one pool's workers.

    ``of_gateway``: it keeps a gateway from serving, and no worker.
    """

    reason: Reason
    message: str
    role: Role | None = None
    of_gateway: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Verdict:
    """What a condition says."""

    status: bool
    reason: Reason
    message: str


def unreadable(kind: str, name: str, why: str) -> Problem:
    """An object that this version cannot read; ``why`` names its fields."""
    return Problem(reason=Reason.UNREADABLE, message=text.unreadable(kind, name, why))
