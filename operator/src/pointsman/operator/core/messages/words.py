"""Parts of messages."""


def last_lines(text: str, limit: int = 600) -> str:
    """The end of a log."""
    text = text.strip()
    return text if len(text) <= limit else "…" + text[-limit:]
