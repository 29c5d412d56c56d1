"""The worker's middleware with the paths that only the manager of an elastic group has."""

from http import HTTPStatus
from typing import Any

from pointsman.api.protocol.elastic import OBJECTIVES_PATH, STATE_PATH, ObjectivesRequest
from pointsman.workers.control import ControlAnswer, ControlApi
from pointsman.workers.middleware import PointsmanMiddleware
from pointsman.workers.sidecar import Sidecar


class ManagerMiddleware(PointsmanMiddleware):
    """See the module."""

    def make_control(self, sidecar: Sidecar, host: Any) -> ControlApi:
        """See PointsmanMiddleware."""
        return _ManagerControl(sidecar, host)


class _ManagerControl(ControlApi):
    """``host``: vLLM's application, whose engine core is the manager."""

    def __init__(self, sidecar: Sidecar, host: Any) -> None:
        super().__init__(sidecar)
        self._core = host.state.engine_client.engine_core

    async def route(self, method: str, path: str, body: bytes) -> ControlAnswer:
        """See ControlApi."""
        if (method, path) == ("PUT", OBJECTIVES_PATH):
            self._core.aim_at(ObjectivesRequest.model_validate_json(body).objectives)
        elif (method, path) != ("GET", STATE_PATH):
            return await super().route(method, path, body)
        state = self._core.state().model_copy(update={"metrics_port": self._sidecar.metrics_port})
        return ControlAnswer(HTTPStatus.OK, state.wire().encode())
