"""Parts of messages: counts with their nouns and verbs, and several sentences in one message."""


def quantity(count: float, noun: str, plural: str = "") -> str:
    """1 worker, 2 workers. ``plural``: where it is not the noun and an s."""
    return f"{count:.0f} {noun if round(count) == 1 else plural or f'{noun}s'}"


def are(count: float) -> str:
    """The verb of so many."""
    return "is" if round(count) == 1 else "are"


def were(count: float) -> str:
    """The same in the past."""
    return "was" if round(count) == 1 else "were"


def do(count: float, verb: str) -> str:
    """``verb`` of so many: 1 waits, 2 wait."""
    return f"{verb}s" if round(count) == 1 else verb


def sentences(*parts: str) -> str:
    """One message of several sentences. A single one has no full stop, like other messages of Kubernetes."""
    given = [part.removesuffix(".") for part in parts if part]
    if len(given) < 2:
        return "".join(given)
    return " ".join(f"{part[0].upper()}{part[1:]}." for part in given)
