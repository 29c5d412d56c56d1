"""What a decision says of the encode pool."""

from pointsman.planner.core.messages.words import sentences
from pointsman.planner.core.types import Layout
from pointsman.serving.words import are, do, quantity


def unchanged(message: str, has_workers: bool, is_counted: bool) -> str:
    """Nothing is known of the images, or of the pool. ``is_counted``: by each gateway."""
    why = "too few images were measured" if is_counted else "a gateway does not count images"
    why = why if has_workers else "the encode pool could not be read"
    return sentences(message, f"{why}, so the encode pool is not changed")


def need(needed: int, has: int, stuck: int, most: int) -> str:
    """Encode workers, with those that do not start. ``most``: that the pool may have."""
    negated = "does not start" if stuck == 1 else "do not start"
    idle = f", {stuck} of which {negated}" if stuck and has > 1 else f" and {negated}" if stuck else ""
    limit = f", maxReplicas is {most}" if needed > most else ""
    return f"{quantity(needed, 'encode worker')} {are(needed)} needed{limit}; {has} {do(has, 'run')}{idle}"


def with_need(message: str, need: str, ttft_share: float, max_gpus: int | None) -> str:
    """``need``: empty where it is in the first sentence. ``ttft_share``: what encoding takes of the TTFT objective.
    ``max_gpus``: the budget, where it is less than all pools need."""
    scarce = "" if max_gpus is None else f"all pools together need more than {_gpus(max_gpus)}"
    return sentences(message, need, f"encoding takes {ttft_share:.0%} of the TTFT objective", scarce)


def taken(layout: Layout, need: str, max_gpus: int, left: Layout) -> str:
    """Prefill and decode need ``layout`` and give workers to the encode pool, which has its own ``need``."""
    return sentences(
        f"change prefill and decode to {left}: all pools together need more than {_gpus(max_gpus)}",
        f"{layout} is needed for prefill and decode",
        need,
    )


def _gpus(max_gpus: int) -> str:
    return f"{quantity(max_gpus, 'GPU')}, so some get less than they need"


def scaled(message: str, before: int, after: int, need: str) -> str:
    """Replicas of the encode pool. ``need``: where nothing else is changed; then the change is the first sentence."""
    change = f"scale encode workers from {before} to {after}"
    return sentences(f"{change}: {need}", message) if need else sentences(message, change)
