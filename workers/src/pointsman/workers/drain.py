"""``python -m pointsman.workers.drain``: the preStop hook of a worker's container.

Whoever deletes the pod (an eviction, ``kubectl delete pod``, the node's shutdown, the operator), the worker leaves the
same way: it takes no new work, and the engine gets its SIGTERM only when nothing is in flight, queued or leased, or
when ``drain.timeoutSeconds`` is over. It asks the worker beside it over the control API and ends with 0, or with 1 and
a sentence when work was left or the worker does not say what it has. Where nothing listens there is nothing to lose.
"""

import sys
import time
import urllib.error
import urllib.request
from collections.abc import Callable
from http import HTTPStatus
from typing import Final

from pydantic import ValidationError

from pointsman.api.protocol import names
from pointsman.api.protocol.control import (
    DRAIN_PATH,
    STATE_PATH,
    DrainRequest,
    WorkerPhase,
    WorkerState,
    accepted_tokens,
)
from pointsman.process.errors import BadSettings
from pointsman.process.lifetime import ExitStatus
from pointsman.workers.settings import WorkerSettings

POLL_S: Final = 0.2
ANSWER_S: Final = 10.0  # as patient as the liveness probe: an engine in a long step answers late
_NO_PROXY: Final = urllib.request.build_opener(urllib.request.ProxyHandler({}))


class NoAnswer(Exception):
    """The worker does not say what it has; the message is for the pod's Event."""


class NotListening(Exception):
    """No engine listens: it has not started yet, or it is gone."""


class Control:
    """The control API of the worker in this container."""

    def __init__(self, settings: WorkerSettings) -> None:
        self._url = names.address_url("http", settings.own_host, names.ENGINE_PORT)
        self._token = accepted_tokens(settings.control_token.get_secret_value())[0]

    def drain(self, reason: str) -> WorkerState:
        """Have it take no new work. Raises NoAnswer, NotListening."""
        return self._ask(DRAIN_PATH, DrainRequest(reason=reason).wire().encode())

    def state(self) -> WorkerState:
        """What it still has. Raises NoAnswer, NotListening."""
        return self._ask(STATE_PATH, None)

    def _ask(self, path: str, body: bytes | None) -> WorkerState:
        headers = {"Authorization": f"Bearer {self._token}"}
        request = urllib.request.Request(self._url + path, data=body, headers=headers)  # with a body it is a POST
        try:
            with _NO_PROXY.open(request, timeout=ANSWER_S) as answer:
                return WorkerState.model_validate_json(answer.read())
        except urllib.error.HTTPError as error:
            raise NoAnswer(f"{path} was answered with {error.code} {HTTPStatus(error.code).phrase}") from error
        except (OSError, ValidationError) as error:  # URLError and TimeoutError are OSErrors
            if isinstance(getattr(error, "reason", None), ConnectionRefusedError):
                raise NotListening from error
            raise NoAnswer(f"{path}: {error}") from error


def drain(
    control: Control, timeout_s: float, *, now: Callable[[], float], pause: Callable[[float], None]
) -> str | None:
    """Drain the worker and wait until it holds nothing. Returns None, or what was left at the deadline.

    ``now``: monotonic seconds; ``pause`` waits so many. Raises NoAnswer, NotListening.
    """
    deadline_s = now() + timeout_s
    state = control.drain("the pod is being deleted")
    while not state.idle and state.phase is not WorkerPhase.FAILED:
        if now() >= deadline_s:
            return f"{state.in_flight} in flight, {state.queued_prefills} queued, {state.leases} leased"
        pause(POLL_S)
        state = control.state()
    return None


def main() -> int:
    """Drain the worker of this container; 0 when it held nothing in the end."""
    try:
        settings = WorkerSettings.read()
    except BadSettings as error:
        print(f"drain: {error}", file=sys.stderr)
        return ExitStatus.WRONG_SETTINGS
    timeout_s = settings.drain_timeout_seconds
    try:
        left = drain(Control(settings), timeout_s, now=time.monotonic, pause=time.sleep)
    except NotListening:
        return 0
    except NoAnswer as error:
        print(f"drain of {settings.worker}: {error}; the engine is ended", file=sys.stderr)
        return 1
    if left is not None:
        print(f"drain of {settings.worker}: after {timeout_s:.0f} s there is still {left}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
