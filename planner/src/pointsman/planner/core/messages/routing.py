"""What gateways do with new requests, and what a publication changes."""

from pointsman.serving.words import are, quantity


def queueing(pending_tokens: int | None, decoding: int | None) -> str:
    """Bounds of flow control, of one worker each."""
    parts = []
    if pending_tokens is not None:
        parts.append(f"{quantity(pending_tokens, 'prompt token')} per prefill worker {are(pending_tokens)} pending")
    if decoding is not None:
        parts.append(f"{quantity(decoding, 'request')} per decode worker {are(decoding)} being decoded")
    if not parts:
        return "gateways queue no requests"
    return f"gateways queue new requests while more than {' or '.join(parts)}"


def number_changed(field: str, before: int | None, after: int | None) -> str:
    """A field of ``status.routing``."""
    return f"{field} {_number(before)} -> {_number(after)}"


def _number(number: int | None) -> str:
    return "unset" if number is None else str(number)
