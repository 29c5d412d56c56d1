"""Which Prometheus servers a policy may name. Who writes a policy chooses where the planner sends its queries."""

from collections.abc import Collection
from typing import Final
from urllib.parse import SplitResult, unquote, urlsplit

_PORTS: Final = {"http": 80, "https": 443}


def is_allowed(url: str, allowed: Collection[str]) -> bool:
    """Whether ``url`` is one of ``allowed``, or a path below one. With none of them every address is allowed.

    Scheme, host and port must be equal; user and password do not count.
    """
    if not allowed:
        return True
    if "\\" in url:
        return False  # parsers disagree on the host of such an address
    try:
        wanted = urlsplit(url)
        return any(_is_below(wanted, urlsplit(each)) for each in allowed)
    except ValueError:  # no host or no port that can be one
        return False


def _is_below(wanted: SplitResult, base: SplitResult) -> bool:
    if (wanted.scheme, wanted.hostname, _port(wanted)) != (base.scheme, base.hostname, _port(base)):
        return False
    if ".." in unquote(wanted.path).split("/"):
        return False
    return f"{wanted.path.rstrip('/')}/".startswith(f"{base.path.rstrip('/')}/")


def _port(url: SplitResult) -> int | None:
    return url.port or _PORTS.get(url.scheme)
