"""Messages of the condition PlannerHealthy."""


def planning(name: str) -> str:
    """``name``: of the service or the group."""
    return f"planning normally; run 'pointsman explain {name}' for the latest decision"


def service_fails(error: str) -> str:
    """Evaluations of a service end in an error."""
    return f"evaluations fail, so plans or routing numbers are missing: {error}"


def group_fails(error: str) -> str:
    """Evaluations of a group end in an error."""
    return f"evaluations fail, so nothing is planned: {error}"


def policy_unreadable(policy: str, error: str) -> str:
    """A field of the policy."""
    return f"PlannerPolicy '{policy}' cannot be read by this version of the planner: {error}; nothing is planned"


def policy_not_found(policy: str) -> str:
    """The reference leads nowhere."""
    return f"spec.policyRef names PlannerPolicy '{policy}', which does not exist, so nothing is planned"
