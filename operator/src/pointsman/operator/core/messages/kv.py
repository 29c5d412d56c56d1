"""Messages about workers that cannot exchange KV."""

from collections.abc import Sequence

from pointsman.api.protocol.names import Role
from pointsman.serving.words import names_of


def images(found: Sequence[tuple[str | None, str | None]]) -> str:
    """Images and KV groups of workers: flags too may tell them apart."""
    shown = sorted({(image or "unknown image", str(group)) for image, group in found})
    return ", ".join(f"{image}, KV group {group}" for image, group in shown[:3])


def incompatible(
    role: Role,
    workers: Sequence[str],
    own: Sequence[tuple[str | None, str | None]],
    others: Sequence[tuple[str | None, str | None]],
    outdated: Sequence[str],
) -> str:
    """``workers`` have no peer of the other role. ``own``, ``others``: image and KV group of both sides."""
    peer = "decode" if role is Role.PREFILL else "prefill"
    consequence = (
        "no decode worker can pull their KV" if role is Role.PREFILL else "they compute all prompts themselves"
    )
    advice = f"; delete the workers of the older image or flags one by one: {names_of(outdated)}" if outdated else ""
    return (
        f"{names_of(workers)} ({images(own)}) cannot exchange KV with the {peer} workers ({images(others)}): "
        f"{consequence}{advice}"
    )
