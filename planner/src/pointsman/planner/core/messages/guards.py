"""Why a switch must wait or cannot be."""

from pointsman.api.protocol.names import Role
from pointsman.serving.words import are, quantity


def evaluations(seen: int, needed: int) -> str:
    """The switch was better in too few evaluations."""
    return f"needed in {seen} of {quantity(needed, 'evaluation')}"


def unread_gateways(gateways: int) -> str:
    """A part of the load is not known."""
    return f"the requests of {quantity(gateways, 'gateway')} are not known"


def switches_in_window(switches: int, most: int) -> str:
    """Too many lately."""
    return f"{quantity(switches, 'switch', 'switches')} in the last 10 minutes, at most {most} {are(most)} allowed"


def in_transition(switching: int, most: int, workers: int) -> str:
    """Too many at a time."""
    return f"{quantity(switching, 'worker')} {are(switching)} switching, at most {most} of {workers} may at a time"


def minimum(role: Role, replicas: int) -> str:
    """The pool would be too small."""
    return f"{role.label} would have fewer workers than minReplicas, {replicas}"
