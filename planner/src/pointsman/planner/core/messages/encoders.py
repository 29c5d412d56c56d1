"""What a decision says of the encode pool."""

from pointsman.planner.core.types import Layout


def unchanged(message: str, has_workers: bool) -> str:
    """Nothing is known of the images, or of the pool."""
    why = "too few images were measured" if has_workers else "the encode pool could not be read"
    return f"{message}; {why}, so the encode pool is not changed"


def need(
    images_per_s: float, image_ms: float, ahead_per_s: float, needed: int, has: int, stuck: int, ttft_share: float
) -> str:
    """Images, workers, and the share of the TTFT objective that encoding takes."""
    idle = f", {stuck} of which do not start" if stuck else ""
    workers = "worker" if needed == 1 else "workers"
    return (
        f"{images_per_s:.2f} images/s of {image_ms:.0f} ms now, {ahead_per_s:.2f} expected: {needed} encode {workers} "
        f"needed, {has} there{idle}; encoding takes {ttft_share:.0%} of the TTFT objective"
    )


def scarce(message: str, max_gpus: int) -> str:
    """The budget is less than all pools need."""
    return f"{message}, and all pools together need more than {max_gpus} GPUs, which are split by work"


def taken(layout: Layout, encode: str, max_gpus: int, left: Layout) -> str:
    """Prefill and decode need ``layout`` and give workers to the encode pool, which needs ``encode``."""
    split = f"together more than {max_gpus} GPUs, which are split by work: {left} for the other pools"
    return f"{layout} is needed, and {encode}: {split}"


def scaled(message: str, before: int, after: int) -> str:
    """Replicas of the encode pool."""
    return f"{message}; scale encode workers from {before} to {after}"
