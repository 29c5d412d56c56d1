"""Which control token a worker takes: while the service's token is rotated, some have the new one and some the old."""

from pointsman.api.protocol.control import accepted_tokens
from pointsman.api.protocol.headers import CONTROL_TOKEN
from pointsman.gateway.types import WorkerKey


class ControlTokens:
    """The tokens in ``control_token``; a worker that refuses one is sent the next at the next try."""

    def __init__(self, control_token: str) -> None:
        self._tokens = accepted_tokens(control_token)
        self._refusals: dict[WorkerKey, int] = {}

    def headers(self, worker: WorkerKey) -> dict[str, str]:
        """What a request to ``worker`` carries; nothing if the gateway has no token."""
        if not self._tokens:
            return {}
        token = self._tokens[self._refusals.get(worker, 0) % len(self._tokens)]
        return {CONTROL_TOKEN: f"Bearer {token}"}

    def refused(self, worker: WorkerKey) -> None:
        """``worker`` answered 401."""
        self._refusals[worker] = self._refusals.get(worker, 0) + 1
