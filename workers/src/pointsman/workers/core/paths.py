"""Which paths of a worker's server other pods reach. A path that is not here does not exist for them. Pure.

An allow-list: the engine's server has many more paths, and a new version may add some. Several generate as
``/v1/completions`` does, outside roles and drains, or pass transfer parameters of a client on to the engine.
"""

from enum import Enum, auto
from typing import Final

from pointsman.workers.core.prompts import CHAT_PATH, COMPLETIONS_PATH

CONTROL_PREFIX: Final = "/pointsman/v1/"
METRICS_PATH: Final = "/metrics"


class Access(Enum):
    """What the worker does with a request before the engine sees it."""

    CONTROL = auto()  # the worker answers it itself
    WORK = auto()  # needs the worker's role, counts as in flight
    TOKENS = auto()  # computed from the tokenizer alone, in every role
    PAGE = auto()  # read without a body


_WORK: Final = frozenset(
    {
        COMPLETIONS_PATH,
        CHAT_PATH,
        "/v1/responses",
        "/v1/messages",
        "/v1/messages/count_tokens",
        "/v1/embeddings",
        "/v1/rerank",
        "/v1/score",
    }
)
_TOKENS: Final = frozenset({"/tokenize", "/detokenize"})
_PAGES: Final = frozenset({"/health", METRICS_PATH, "/version", "/v1/models"})


def access(method: str, path: str) -> Access | None:
    """How ``method path`` is served, with ``path`` percent-decoded; None: not at all."""
    if path.startswith(CONTROL_PREFIX):
        return Access.CONTROL
    if method == "POST":
        return Access.WORK if path in _WORK else Access.TOKENS if path in _TOKENS else None
    return Access.PAGE if method == "GET" and path in _PAGES else None
