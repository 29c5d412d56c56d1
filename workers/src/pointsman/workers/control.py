"""The control API of a worker: ``/pointsman/v1/…`` on the engine's port, for the operator and the gateways."""

import logging
from collections.abc import AsyncGenerator, Mapping
from dataclasses import dataclass
from http import HTTPStatus

from pydantic import ValidationError

from pointsman.api.protocol import control as wire
from pointsman.workers.errors import ControlRefused
from pointsman.workers.sidecar import Sidecar

log = logging.getLogger(__name__)

JSON = "application/json"
BYTES = "application/octet-stream"


@dataclass(frozen=True, slots=True)
class ControlAnswer:
    """One HTTP answer: ``content``, or a ``stream`` of pieces that goes on until the client leaves."""

    status: int
    content: bytes
    content_type: str = JSON
    stream: AsyncGenerator[bytes, None] | None = None


class ControlApi:
    """Carries out control requests on one worker."""

    def __init__(self, sidecar: Sidecar) -> None:
        self._sidecar = sidecar

    def refusal(self, method: str, path: str, headers: Mapping[str, str]) -> ControlAnswer | None:
        """401 for a request without its credential, before its body is read. ``headers`` have lower-case names."""
        token = self._sidecar.settings.control_token.get_secret_value()
        given = headers.get("authorization", "")
        if (chat := _chat_of(method, path)) is not None:
            credentials = [wire.chat_credential(each, chat) for each in wire.accepted_tokens(token)]
            if not any(wire.authorized(given, each) for each in credentials):
                return _error(HTTPStatus.UNAUTHORIZED, "Unauthorized", "a chat needs the credential of its request")
        elif not wire.authorized(given, token):
            return _error(HTTPStatus.UNAUTHORIZED, "Unauthorized", "the control API needs the service's control token")
        return None

    async def handle(self, method: str, path: str, body: bytes) -> ControlAnswer:
        """Answer a request that has its credential."""
        if (chat := _chat_of(method, path)) is not None:
            return self._chat(chat)
        try:
            return await self.route(method, path, body)
        except ControlRefused as error:
            return _error(error.status, error.reason, error.message)
        except ValidationError as error:
            return _error(HTTPStatus.BAD_REQUEST, "BadRequest", str(error))

    def _chat(self, request_id: str) -> ControlAnswer:
        """A prompt with images, for the prefill worker that has taken it off the queue."""
        chat = self._sidecar.remote.chat(request_id)
        if chat is None:
            return _error(HTTPStatus.NOT_FOUND, "NoSuchChat", f"no request {request_id} waits for its prefill")
        return ControlAnswer(HTTPStatus.OK, chat)

    async def route(self, method: str, path: str, body: bytes) -> ControlAnswer:
        """Answer one authorized request. Raises ControlRefused or ValidationError."""
        sidecar = self._sidecar
        match method, path:
            case "GET", wire.STATE_PATH:
                return _ok(sidecar.state())
            case "POST", wire.ROLE_PATH:
                return _ok(sidecar.assign(wire.RoleRequest.model_validate_json(body)))
            case "POST", wire.DRAIN_PATH:
                return _ok(sidecar.drain(wire.DrainRequest.model_validate_json(body or b"{}")))
            case "POST", wire.VERIFY_PATH:
                return _ok(await sidecar.verify(wire.VerifyRequest.model_validate_json(body)))
            case "GET", wire.MODEL_PATH:
                return _ok(await sidecar.model())
            case "GET", _ if path.startswith(f"{wire.MODEL_FILES_PATH}/"):
                content = await sidecar.model_file(path.removeprefix(f"{wire.MODEL_FILES_PATH}/"))
                return ControlAnswer(HTTPStatus.OK, content, BYTES)
            case "GET", wire.KV_EVENTS_PATH:
                return ControlAnswer(HTTPStatus.OK, b"", BYTES, sidecar.kv_feed.stream())
        return _error(HTTPStatus.NOT_FOUND, "NoSuchPath", f"{method} {path} does not exist on this worker")


def _chat_of(method: str, path: str) -> str | None:
    """The request whose chat is asked for; None for another request."""
    prefix = f"{wire.PREFILL_CHATS_PATH}/"
    return path.removeprefix(prefix) if method == "GET" and path.startswith(prefix) else None


def _ok(message: wire.Wire) -> ControlAnswer:
    return ControlAnswer(HTTPStatus.OK, message.wire().encode())


def _error(status: HTTPStatus, reason: str, message: str) -> ControlAnswer:
    return ControlAnswer(status, wire.ControlError(reason=reason, message=message).wire().encode())
