"""What can go wrong in the operator.

OperatorError
├── Refused            a service that cannot be served as written: a condition says which field and why
│   └── NotMergeable   its pod template cannot be merged
├── NameConflict       a foreign object has the name; it is never adopted
├── ControlFailed      a worker or gateway did not answer, or refused
├── NotLeading         the Lease is lost, so no write is made
└── StreamNotDeleted   NATS did not delete the stream of a service
"""

from pointsman.api.v1alpha1.conditions import Reason


class OperatorError(Exception):
    """Base of the tree."""


class Refused(OperatorError):
    """``reason`` goes into the conditions; the message names field, value, and what would be right."""

    def __init__(self, message: str, reason: Reason = Reason.INVALID_SPEC) -> None:
        super().__init__(message)
        self.reason = reason


class NotMergeable(Refused):
    """A pod template, ``of`` the spec, cannot be merged."""

    def __init__(self, message: str, of: str = "spec.worker.template") -> None:
        super().__init__(f"{of}: {message}", Reason.TEMPLATE_REFUSED)


class NameConflict(OperatorError):
    """``kind`` ``name`` exists and is not ours."""

    def __init__(self, kind: str, name: str, owner: str) -> None:
        super().__init__(
            f"{kind} {name} exists and belongs to {owner}, so it is not adopted; delete it or rename the service"
        )
        self.kind = kind
        self.name = name


class ControlFailed(OperatorError):
    """``status`` is the HTTP status, None when there was no answer at all; ``reason`` is the answer's machine word."""

    def __init__(self, message: str, status: int | None = None, reason: str | None = None) -> None:
        super().__init__(message)
        self.status = status
        self.reason = reason


class NotLeading(OperatorError):
    """This process lost its Lease; whoever holds it now does the work."""


class StreamNotDeleted(OperatorError):
    """A service's stream is still there: NATS did not answer, or refused."""
