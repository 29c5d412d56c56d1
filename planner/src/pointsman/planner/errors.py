"""The planner's errors: one tree."""


class PlannerError(Exception):
    """Anything the planner raises for its callers."""


class SettingsError(PlannerError):
    """A setting is missing or wrong; the message names it."""


class ScrapeFailed(PlannerError):
    """A target's metrics could not be read."""


class UnknownTable(PlannerError):
    """The policy names a performance table that is not shipped; the message lists the nearest."""
