"""Messages of the condition PlannerHealthy."""

from collections.abc import Sequence


def planning(name: str) -> str:
    """``name``: of the service or the group."""
    return f"planning normally; run 'pointsman explain {name}' for the latest decision"


def stale_before_scrape(stale_after_s: float, every_s: float) -> str:
    """A policy's metrics.staleAfterSeconds, and how often Prometheus scrapes."""
    return (
        f"metrics.staleAfterSeconds is {stale_after_s:g}, but Prometheus scrapes gateways every {every_s:.0f} s; "
        f"set more than {2 * every_s:.0f}, or remove the field"
    )


def service_fails(error: str) -> str:
    """Evaluations of a service end in an error."""
    return f"evaluations fail, so plans or routing numbers are missing: {error}"


def group_fails(error: str) -> str:
    """Evaluations of a group end in an error."""
    return f"evaluations fail, so nothing is planned: {error}"


def policy_unreadable(policy: str, error: str) -> str:
    """A field of the policy."""
    return f"PlannerPolicy '{policy}' cannot be read by this version of the planner: {error}; nothing is planned"


def no_table_config_map(name: str, namespace: str) -> str:
    """Of performance.configMap."""
    return f"performance.configMap is '{name}', which does not exist in namespace '{namespace}'"


def no_table_in_config_map(name: str, entries: Sequence[str], entry: str) -> str:
    """Several entries, and none is ``entry``."""
    has = f"it has {', '.join(entries)}: name the table {entry}" if entries else "it has no entry"
    return f"performance.configMap is '{name}': {has}"


def table_entry(name: str, entry: str) -> str:
    """Where a table is, for errors about it."""
    return f"performance.configMap is '{name}', key '{entry}'"


def policy_not_found(policy: str) -> str:
    """The reference leads nowhere."""
    return f"spec.policyRef names PlannerPolicy '{policy}', which does not exist, so nothing is planned"
