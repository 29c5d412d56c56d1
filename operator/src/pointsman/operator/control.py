"""Client of the workers' control API and of the gateways' report."""

import asyncio
from collections.abc import Callable
from http import HTTPStatus
from typing import Final, TypeVar

import aiohttp
from pydantic import ValidationError

from pointsman.api.protocol import control as wire
from pointsman.api.protocol.elastic import OBJECTIVES_PATH, ElasticObjectives, ElasticState, ObjectivesRequest
from pointsman.api.protocol.elastic import STATE_PATH as ELASTIC_STATE_PATH
from pointsman.api.protocol.headers import CONTROL_TOKEN
from pointsman.api.protocol.names import GATEWAY_PORT, Role, address_url
from pointsman.operator.errors import ControlFailed, NotLeading

STATE_TIMEOUT_S: Final = 2.0
ENDPOINTS_TIMEOUT_S: Final = 1.0  # a gateway that is silent for longer is passed over
COMMAND_TIMEOUT_S: Final = 5.0
VERIFY_TIMEOUT_S: Final = 30.0  # of the worker; a first NIXL handshake between two workers alone may take 5 s
_CONNECTIONS: Final = 128
_MAX_REFUSED_URLS: Final = 1000

Answer = TypeVar("Answer", bound=wire.Wire)


class ControlClient:
    """Requests to workers and gateways. Every method raises ControlFailed.

    Those that change a worker raise NotLeading when ``leads`` says no: another operator may command it already.
    """

    def __init__(self, leads: Callable[[], bool]) -> None:
        self._leads = leads
        self.refused: dict[str, None] = {}
        """URLs of workers and gateways whose last answer was 401: they started with another token."""
        self._session: aiohttp.ClientSession | None = None

    async def __aenter__(self) -> "ControlClient":
        # Each pod is asked now and then: a kept connection would mostly meet a pod that is gone.
        connector = aiohttp.TCPConnector(limit=_CONNECTIONS, force_close=True)
        self._session = aiohttp.ClientSession(connector=connector, trust_env=False)
        return self

    async def __aexit__(self, *_: object) -> None:
        if self._session is not None:
            await self._session.close()

    def fence(self) -> None:
        """Raise NotLeading in a process that has lost the Lease."""
        if not self._leads():
            raise NotLeading("the Lease is lost, so no worker is commanded")

    async def state(self, url: str, token: str) -> wire.WorkerState:
        """What the worker at ``url`` says about itself."""
        return await self._request("GET", url, wire.STATE_PATH, token, None, wire.WorkerState, STATE_TIMEOUT_S)

    async def give_role(
        self, url: str, token: str, role: Role | None, prefill_token_budget: int | None = None
    ) -> wire.WorkerState:
        """Give (or with None take) a role and the numbers that hold in it. Idempotent."""
        return await self._role(url, token, wire.RoleRequest(role=role, prefill_token_budget=prefill_token_budget))

    async def set_prefill_token_budget(self, url: str, token: str, tokens: int) -> wire.WorkerState:
        """Change the number of a worker that serves prefill; a drain that began meanwhile is not ended by it."""
        body = wire.RoleRequest(role=Role.PREFILL, prefill_token_budget=tokens, if_serving=True)
        return await self._role(url, token, body)

    async def _role(self, url: str, token: str, body: wire.RoleRequest) -> wire.WorkerState:
        return await self._request("POST", url, wire.ROLE_PATH, token, body, wire.WorkerState, COMMAND_TIMEOUT_S)

    async def drain(self, url: str, token: str, reason: str) -> wire.WorkerState:
        """Have the worker take nothing new."""
        body = wire.DrainRequest(reason=reason)
        return await self._request("POST", url, wire.DRAIN_PATH, token, body, wire.WorkerState, COMMAND_TIMEOUT_S)

    async def verify(self, url: str, token: str, role: Role, partner_url: str | None) -> wire.VerifyResult:
        """Have the worker prove its role with a real request; a proof that failed is ControlFailed too."""
        body = wire.VerifyRequest(role=role, partner_url=partner_url, timeout_seconds=VERIFY_TIMEOUT_S)
        result = await self._request(
            "POST", url, wire.VERIFY_PATH, token, body, wire.VerifyResult, VERIFY_TIMEOUT_S + COMMAND_TIMEOUT_S
        )
        if not result.ok:
            raise ControlFailed(f"not verified as {role} worker: {result.detail}", status=200, reason="NotVerified")
        return result

    async def elastic_state(self, url: str, token: str) -> ElasticState:
        """What the manager of an elastic group says about it."""
        return await self._request("GET", url, ELASTIC_STATE_PATH, token, None, ElasticState, STATE_TIMEOUT_S)

    async def elastic_objectives(self, url: str, token: str, objectives: ElasticObjectives | None) -> ElasticState:
        """Tell the manager of an elastic group what requests must meet."""
        body = ObjectivesRequest(objectives=objectives)
        return await self._request("PUT", url, OBJECTIVES_PATH, token, body, ElasticState, STATE_TIMEOUT_S)

    async def endpoints(self, pod_ip: str, token: str) -> wire.EndpointsReport:
        """The workers a gateway uses right now."""
        url = address_url("http", pod_ip, GATEWAY_PORT)
        return await self._request(
            "GET", url, wire.ENDPOINTS_PATH, token, None, wire.EndpointsReport, ENDPOINTS_TIMEOUT_S
        )

    async def _request(
        self,
        method: str,
        url: str,
        path: str,
        token: str,
        body: wire.Wire | None,
        answer: type[Answer],
        timeout_s: float,
    ) -> Answer:
        """The answer to the first token that is not refused: while one is rotated, the pod has the new or the old."""
        tokens = wire.accepted_tokens(token)
        if not tokens:
            raise ControlFailed(f"{method} {url}{path}: there is no control token")
        for each in tokens:
            try:
                status, text = await self._send(method, url + path, each, body, timeout_s)
            except ControlFailed:
                self.refused.pop(url, None)
                raise
            if status != HTTPStatus.UNAUTHORIZED:
                self.refused.pop(url, None)
                break
        else:
            self._remember_refusal(url)
        try:
            if status == HTTPStatus.OK:
                return answer.model_validate_json(text)
            problem = wire.ControlError.model_validate_json(text)
        except ValidationError:
            shown = text[:200].decode("utf-8", "replace")
            raise ControlFailed(f"{method} {url}{path}: {status} {shown}", status) from None
        raise ControlFailed(f"{method} {url}{path}: {status} {problem.message}", status, problem.reason)

    def _remember_refusal(self, url: str) -> None:
        self.refused[url] = None
        while len(self.refused) > _MAX_REFUSED_URLS:  # of pods that are gone
            del self.refused[next(iter(self.refused))]

    async def _send(
        self, method: str, address: str, token: str, body: wire.Wire | None, timeout_s: float
    ) -> tuple[int, bytes]:
        """Status and body of one answer. Raises ControlFailed without one, NotLeading for a command."""
        assert self._session is not None, "used outside of its context"
        if method != "GET":
            self.fence()
        headers = {CONTROL_TOKEN: f"Bearer {token}"}
        if body is not None:
            headers["Content-Type"] = "application/json"
        try:
            async with asyncio.timeout(timeout_s):
                async with self._session.request(
                    method, address, data=body.wire() if body else None, headers=headers
                ) as response:
                    return response.status, await response.read()
        except TimeoutError as error:
            raise ControlFailed(f"{method} {address}: no answer within {timeout_s:g} s") from error
        except (aiohttp.ClientError, OSError) as error:
            raise ControlFailed(f"{method} {address}: {error}") from error
