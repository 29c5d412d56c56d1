"""What gateways do with new requests, and what a publication changes."""

from pointsman.planner.core.messages.words import quantity


def queueing(pending_tokens: int | None, decoding: int | None) -> str:
    """Bounds of flow control, of one worker each."""
    parts = (
        [f"{quantity(pending_tokens, 'pending prompt token')} per prefill worker"] if pending_tokens is not None else []
    )
    if decoding is not None:
        parts.append(f"{quantity(decoding, 'decoding request')} per decode worker")
    return f"gateways queue new requests above {' or '.join(parts)}" if parts else "gateways queue no requests"


def number_changed(field: str, before: int | None, after: int | None) -> str:
    """A field of ``status.routing``."""
    return f"{field} {_number(before)} -> {_number(after)}"


def _number(number: int | None) -> str:
    return "unset" if number is None else str(number)
