"""Several sentences in one message."""


def sentences(*parts: str) -> str:
    """One message of several sentences. A single one has no full stop, like other messages of Kubernetes."""
    given = [part.removesuffix(".") for part in parts if part]
    if len(given) < 2:
        return "".join(given)
    return " ".join(f"{part[0].upper()}{part[1:]}." for part in given)
