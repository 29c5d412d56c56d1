"""The planner's errors: one tree."""


class PlannerError(Exception):
    """Anything the planner raises for its callers."""


class ScrapeFailed(PlannerError):
    """A target's metrics could not be read."""


class UnknownTable(PlannerError):
    """The policy names a performance table that is not shipped; the message lists the nearest."""


class TraceError(PlannerError):
    """A trace cannot be used; the message names file, line, field, what is there and what would be right."""


class PolicyFileError(PlannerError):
    """A policy file cannot be used; one sentence a mistake, each with its path."""
