"""The planner's errors: one tree."""

from pointsman.api.credentials import mask_credentials


class PlannerError(Exception):
    """Anything the planner raises for its callers. Its text shows no credentials of a URL."""

    def __str__(self) -> str:
        return mask_credentials(super().__str__())


class UnknownTable(PlannerError):
    """The policy names a performance table that is not shipped; the message lists the nearest."""


class TraceError(PlannerError):
    """A trace cannot be used; the message names file, line, field, what is there and what would be right."""


class PolicyFileError(PlannerError):
    """A policy file cannot be used; one sentence a mistake, each with its path."""


class CompareError(PlannerError):
    """Two replays cannot be compared; the message says what differs."""


class ReplayError(PlannerError):
    """A replay cannot be run as asked; the message names the option or field."""


class PrometheusFailed(PlannerError):
    """Prometheus did not answer, or not with what was asked; the message names its URL."""


class ExplainError(PlannerError):
    """There is nothing to explain; the message says why."""


class ProfileError(PlannerError):
    """A worker cannot be profiled; the message says why and what would be right."""


class TableError(PlannerError):
    """A performance table in a file or a ConfigMap cannot be used; the message names field, value and what is right."""
