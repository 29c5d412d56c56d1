"""What ``kubectl get plan`` shows of a plan."""


def withdraws(plan: str) -> str:
    """In place of a change."""
    return f"withdraws {plan}"


def change(before: str, after: str) -> str:
    """Layouts, for example 1P2D, or numbers of instances."""
    return f"{before} -> {after}"


def attainment(without: float | None, with_plan: float | None) -> str:
    """Shares of requests within both objectives; one number where both are the same or one is unknown."""
    return " -> ".join(dict.fromkeys(f"{share:.0%}" for share in (without, with_plan) if share is not None))
