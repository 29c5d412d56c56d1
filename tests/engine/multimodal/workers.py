"""An encode, a prefill and a decode worker of one service, and one plain server of the same model."""

import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import aiohttp

from engine.multimodal.images import Image, chat_of
from fixtures.engines import SMALL_ENGINE, Engines, RunningEngine
from fixtures.nats_server import PASSWORD, USER, NatsServer
from pointsman.api.protocol import control
from pointsman.api.protocol.names import EmbeddingRole, Role
from waiting import eventually

TOKEN = "a-token-of-the-tests"
LEASE_SECONDS = 6.0
AUTHORIZED = {"Authorization": f"Bearer {TOKEN}"}
EMBEDDING_BYTES = "pointsman_worker_embedding_bytes"
FETCHES = "pointsman_worker_embedding_fetches_total"
CHAT = "/v1/chat/completions"


@dataclass(frozen=True)
class VisionWorkers:
    """``start(name, role)`` starts another worker of the service, not yet healthy."""

    encode: RunningEngine
    prefill: RunningEngine
    decode: RunningEngine
    alone: RunningEngine
    start: Callable[..., RunningEngine]

    @property
    def gateway_targets(self) -> tuple[tuple[Role, RunningEngine], tuple[Role, RunningEngine]]:
        """The workers that a gateway sends to: encode and decode."""
        return (Role.ENCODE, self.encode), (Role.DECODE, self.decode)


def start_vision_workers(engines: Engines, nats_server: NatsServer, service_uid: str) -> VisionWorkers:
    """All of them, healthy."""
    login = {"nats_url": nats_server.url, "nats_user": USER, "nats_password": PASSWORD, "service_uid": service_uid}

    def start(name: str, embedding_role: EmbeddingRole | None, **changes: Any) -> RunningEngine:
        settings = engines.settings(
            name,
            embedding_role=embedding_role,
            lease_seconds=LEASE_SECONDS,
            max_local_prefill_tokens=64,
            ack_wait_seconds=2.0,
            heartbeat_seconds=0.5,
            drain_timeout_seconds=5.0,
            **(login | changes),
        )
        return engines.worker(settings, SMALL_ENGINE)

    encode = start("encode-0", EmbeddingRole.PRODUCER)
    prefill, decode = (start(name, EmbeddingRole.CONSUMER) for name in ("prefill-0", "decode-0"))
    alone = engines.plain(engines.settings("vision-alone"))
    for engine in (encode, prefill, decode, alone):
        engine.wait_until_healthy()
    return VisionWorkers(encode, prefill, decode, alone, start)


@dataclass(frozen=True)
class Answer:
    """Token ids of an answer, where its prompt was prefilled, and the whole body."""

    token_ids: tuple[int, ...]
    prefill: str | None
    body: dict[str, Any]


class Client:
    """Talks to workers as gateway and operator do."""

    def __init__(self, session: aiohttp.ClientSession) -> None:
        self._session = session

    async def take_role(self, worker: RunningEngine, role: Role) -> None:
        """Give it a role, as soon as it can take one."""

        async def taken() -> bool:
            body = control.RoleRequest(role=role).model_dump(mode="json", by_alias=True)
            async with self._session.post(worker.url + control.ROLE_PATH, json=body, headers=AUTHORIZED) as response:
                state = await response.json()
            return bool(response.status == 200 and state["natsConnected"])

        await eventually(taken, f"{worker.name} takes role {role}")

    async def assign(self, worker: RunningEngine, role: Role) -> tuple[int, dict[str, Any]]:
        """Ask it to take a role; status and body of the answer."""
        body = control.RoleRequest(role=role).model_dump(mode="json", by_alias=True)
        async with self._session.post(worker.url + control.ROLE_PATH, json=body, headers=AUTHORIZED) as response:
            return response.status, await response.json()

    async def verify(self, worker: RunningEngine, role: Role) -> control.VerifyResult:
        """Have it prove a role."""
        body = control.VerifyRequest(role=role).model_dump(mode="json", by_alias=True)
        async with self._session.post(worker.url + control.VERIFY_PATH, json=body, headers=AUTHORIZED) as response:
            return control.VerifyResult.model_validate(await response.json())

    async def state(self, worker: RunningEngine) -> control.WorkerState:
        """What the worker says of itself."""
        async with self._session.get(worker.url + control.STATE_PATH, headers=AUTHORIZED) as response:
            return control.WorkerState.model_validate(await response.json())

    async def encode(self, worker: RunningEngine, images: Sequence[Image]) -> dict[str, Any]:
        """``ec_transfer_params`` for these images."""
        body = chat_of(images, "", max_tokens=1)
        async with self._session.post(worker.url + CHAT, json=body) as response:
            answer = await response.json()
            assert response.status == 200, answer
        params: dict[str, Any] = answer["ec_transfer_params"]
        return params

    async def ask(self, worker: RunningEngine, body: dict[str, Any], **headers: str) -> Answer:
        """Send a chat; the whole answer."""
        async with self._session.post(worker.url + CHAT, json=body, headers=headers) as response:
            answer = json.loads(await response.text())
            assert response.status == 200, answer
            ids = [token for choice in answer["choices"] for token in choice["token_ids"]]
            return Answer(tuple(ids), response.headers.get("X-Pointsman-Prefill-Reason"), answer)

    async def page(self, worker: RunningEngine) -> str:
        """Its /metrics."""
        async with self._session.get(worker.url + "/metrics") as response:
            return await response.text()

    async def metric(self, worker: RunningEngine, name: str, labels: str = "") -> float:
        """Sum of the samples of one metric whose labels contain ``labels``."""
        lines = (await self.page(worker)).split("\n")
        found = [line for line in lines if line.startswith((f"{name}{{", f"{name} ")) and labels in line]
        return sum(float(line.rsplit(" ", 1)[1]) for line in found)
