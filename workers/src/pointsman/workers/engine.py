"""The engine as this room uses it, and the one way it is reached: calling its ASGI application in this process.

No socket, no second HTTP parser: a prefill leg is a function call on the engine's own event loop, and a cancelled call
aborts the request in the engine, as a client that hangs up does.
"""

import asyncio
import json
from collections.abc import Awaitable, Callable, Mapping, MutableMapping
from contextlib import suppress
from typing import Any, Protocol

import msgspec
from prometheus_client import REGISTRY, CollectorRegistry

from pointsman.serving.local_remote import PrefillReason
from pointsman.workers import answer_times
from pointsman.workers.core.prompts import COMPLETIONS_PATH
from pointsman.workers.errors import EngineUnavailable
from pointsman.workers.resumption import teach
from pointsman.workers.types import EngineAnswer, EngineFacts, EngineLoad, RenderedChat
from pointsman.workers.vllm.chat_renderer import VllmChatRenderer

HANG_UP_S = 5.0  # for the application to notice that its client has left

Scope = MutableMapping[str, Any]
Message = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Message]]
Send = Callable[[Message], Awaitable[None]]
AsgiApp = Callable[[Scope, Receive, Send], Awaitable[None]]


class Engine(Protocol):
    """What the code beside an engine needs of it."""

    @property
    def facts(self) -> EngineFacts:
        """What does not change while it runs."""

    def load(self) -> EngineLoad:
        """Its gauges now; reads memory only."""

    async def post(self, path: str, body: Mapping[str, Any], *, request_id: str) -> EngineAnswer:
        """Send one request and return its whole answer; cancelling the call aborts it in the engine.

        Raises EngineUnavailable if there is no well-formed answer at all.
        """

    async def render_chat(self, body: Mapping[str, Any], *, images: bool = False) -> RenderedChat | None:
        """The prompt that the chat endpoint makes of ``body``, which may be changed by it. ``images``: it has some.

        None: the endpoint will refuse the request.
        """

    @property
    def resumes(self) -> bool:
        """Whether it repeats and continues streams that broke elsewhere, see resumption."""

    async def healthy(self) -> bool:
        """Whether it can compute."""

    async def adapters(self) -> tuple[str, ...]:
        """Names of the LoRA adapters it serves beside the model, sorted. Raises EngineUnavailable."""

    async def release(self, kv_transfer_params: Mapping[str, Any], *, model: str, request_id: str) -> None:
        """Free KV that was prefilled elsewhere for a request nobody wants any more. Best effort."""


class ChatRenderer(Protocol):
    """Makes the prompts of chats; see Engine."""

    async def render(self, body: Mapping[str, Any], *, images: bool) -> RenderedChat | None:
        """See Engine.render_chat."""


class AsgiEngine:
    """vLLM's (or any) OpenAI server as the ASGI application ``app``.

    ``host``: the application object requests carry as ``scope["app"]`` (Starlette's handlers need it);
    ``renderer``: by default vLLM's own, where ``host`` has it.
    """

    def __init__(
        self,
        app: AsgiApp,
        *,
        host: Any = None,
        registry: CollectorRegistry = REGISTRY,
        renderer: ChatRenderer | None = None,
    ) -> None:
        self._app = app
        self._host = host
        self._renderer = renderer or _renderer_of(host)
        self._gauges = _VllmGauges(registry)
        self._facts = _facts_of(host)
        engine_client = getattr(getattr(host, "state", None), "engine_client", None)
        answer_times.teach(engine_client)
        self._resumes = teach(engine_client)

    @property
    def resumes(self) -> bool:
        """See Engine; a server without an engine client that is known here does not."""
        return self._resumes

    @property
    def facts(self) -> EngineFacts:
        """From the server's own configuration object."""
        return self._facts

    def load(self) -> EngineLoad:
        """From the Prometheus registry the server writes to in this process."""
        return self._gauges.read()

    async def post(self, path: str, body: Mapping[str, Any], *, request_id: str) -> EngineAnswer:
        """Call the application in this task's name; see Engine."""
        return await self._call("POST", path, _encoded(body), request_id)

    async def render_chat(self, body: Mapping[str, Any], *, images: bool = False) -> RenderedChat | None:
        """See Engine; a server without a renderer that is known here prefills its chats itself."""
        if self._renderer is None:
            return RenderedChat((), PrefillReason.UNSUPPORTED)
        return await self._renderer.render(body, images=images)

    async def healthy(self) -> bool:
        """What the server's /health says."""
        try:
            return (await self._call("GET", "/health", b"", "health")).status == 200
        except EngineUnavailable:
            return False

    async def adapters(self) -> tuple[str, ...]:
        """The entries of the server's /v1/models that have a ``parent``; none where it has no such list."""
        answer = await self._call("GET", "/v1/models", b"", "models")
        cards = answer.body.get("data") if answer.status == 200 else None
        found = [card.get("id") for card in cards or [] if isinstance(card, dict) and card.get("parent")]
        return tuple(sorted(name for name in found if isinstance(name, str)))

    async def release(self, kv_transfer_params: Mapping[str, Any], *, model: str, request_id: str) -> None:
        """Tell the engine that holds the KV to free it, through this engine's connector.

        vLLM has a call for exactly this (a request aborted before it was scheduled makes the connector notify the
        prefill side); a server without it pulls the KV for one token instead.
        """
        client = getattr(getattr(self._host, "state", None), "engine_client", None)
        notify = getattr(client, "notify_kv_transfer_request_rejected", None)
        if notify is not None:
            await notify(request_id, dict(kv_transfer_params))
            return
        body = {"model": model, "prompt": [0], "max_tokens": 1, "kv_transfer_params": dict(kv_transfer_params)}
        await self.post(COMPLETIONS_PATH, body, request_id=request_id)

    async def _call(self, method: str, path: str, body: bytes, request_id: str) -> EngineAnswer:
        response = _Response()
        gone = asyncio.Event()
        call = asyncio.create_task(
            self._run(http_scope(method, path, body, request_id, self._host), body, gone, response),
            name=f"engine {path} {request_id}",
        )
        try:
            await asyncio.shield(call)
        except asyncio.CancelledError:
            # A hung-up client is how an ASGI server learns of a cancelled request; then the call ends by itself.
            gone.set()
            with suppress(EngineUnavailable, TimeoutError):
                async with asyncio.timeout(HANG_UP_S):
                    await call
            raise
        return response.answer(path)

    async def _run(self, scope: Scope, body: bytes, gone: asyncio.Event, response: "_Response") -> None:
        sent = False

        async def receive() -> Message:
            nonlocal sent
            if not sent:
                sent = True
                return {"type": "http.request", "body": body, "more_body": False}
            await gone.wait()
            return {"type": "http.disconnect"}

        try:
            await self._app(scope, receive, response.take)
        except Exception as error:
            raise EngineUnavailable(f"{scope['path']}: {type(error).__name__}: {error}") from error


class _Response:
    """Collects the messages of one ASGI response."""

    def __init__(self) -> None:
        self._status: int | None = None
        self._chunks: list[bytes] = []

    async def take(self, message: Message) -> None:
        if message["type"] == "http.response.start":
            self._status = message["status"]
        elif message["type"] == "http.response.body":
            self._chunks.append(message.get("body", b""))

    def answer(self, path: str) -> EngineAnswer:
        if self._status is None:
            raise EngineUnavailable(f"{path}: no response")
        raw = b"".join(self._chunks)
        try:
            body = json.loads(raw) if raw else {}
        except ValueError as error:
            raise EngineUnavailable(f"{path}: HTTP {self._status} with a body that is no JSON") from error
        return EngineAnswer(self._status, body if isinstance(body, dict) else {})


def http_scope(method: str, path: str, body: bytes, request_id: str, host: Any) -> Scope:
    """An HTTP request of this process to the engine's application; ``host``: see AsgiEngine."""
    headers = [
        (b"host", b"localhost"),
        (b"content-type", b"application/json"),
        (b"content-length", str(len(body)).encode()),
        (b"x-request-id", request_id.encode()),
    ]
    return {
        "type": "http",
        "asgi": {"version": "3.0"},
        "http_version": "1.1",
        "method": method,
        "scheme": "http",
        "path": path,
        "raw_path": path.encode(),
        "root_path": "",
        "query_string": b"",
        "headers": headers,
        "client": ("127.0.0.1", 0),
        "server": ("127.0.0.1", 0),
        "state": {},
        "app": host,
    }


def _facts_of(host: Any) -> EngineFacts:
    """From ``app.state.vllm_config``, where vLLM's server keeps it; nothing is assumed about other servers."""
    config = getattr(getattr(host, "state", None), "vllm_config", None)
    if config is None:
        return EngineFacts()
    chat = getattr(host.state, "openai_serving_chat", None)
    model, cache, scheduler = config.model_config, config.cache_config, config.scheduler_config
    return EngineFacts(
        max_model_len=model.max_model_len,
        block_size=cache.block_size,
        max_running_requests=scheduler.max_num_seqs,
        total_kv_blocks=cache.num_gpu_blocks,
        model_directory=str(model.tokenizer or model.model),
        model_revision=model.tokenizer_revision,
        parses_chat=getattr(chat, "parser_cls", None) is not None,
        chat_max_tokens=None if chat is None else _chat_max_tokens(chat, model.max_model_len),
    )


def _chat_max_tokens(chat: Any, max_model_len: int) -> int:
    """What the chat endpoint takes for a request that names no limit: a chat may fill the context by default."""
    defaults = getattr(chat, "default_sampling_params", None) or {}
    return int(defaults.get("max_tokens", max_model_len))


def _encoded(body: Mapping[str, Any]) -> bytes:
    try:
        return msgspec.json.encode(body)
    except UnicodeEncodeError:  # a lone surrogate in a client's text, which the engine takes
        return json.dumps(body).encode()


def _renderer_of(host: Any) -> ChatRenderer | None:
    serving = getattr(getattr(host, "state", None), "openai_serving_chat", None)
    return VllmChatRenderer(serving) if hasattr(serving, "render_chat_request") else None


class _VllmGauges:
    """Reads the few samples needed out of the registry without rendering all of /metrics."""

    _NAMES = (
        "vllm:num_requests_running",
        "vllm:num_requests_waiting",
        "vllm:kv_cache_usage_perc",
        "vllm:prefix_cache_queries",
        "vllm:prefix_cache_hits",
    )

    def __init__(self, registry: CollectorRegistry) -> None:
        self._registry = registry

    def read(self) -> EngineLoad:
        found: dict[str, float] = {}
        wanted = [*self._NAMES, *(f"{name}_total" for name in self._NAMES)]
        for family in self._registry.restricted_registry(wanted).collect():
            for sample in family.samples:
                name = sample.name.removesuffix("_total")
                if name in self._NAMES:  # one engine per process: several label sets would be ranks of it
                    found[name] = found.get(name, 0.0) + sample.value
        running = found.get("vllm:num_requests_running")
        waiting = found.get("vllm:num_requests_waiting")
        queries = found.get("vllm:prefix_cache_queries")
        return EngineLoad(
            running=None if running is None else int(running),
            waiting=None if waiting is None else int(waiting),
            kv_usage=found.get("vllm:kv_cache_usage_perc"),
            prefix_hit_rate=found.get("vllm:prefix_cache_hits", 0.0) / queries if queries else None,
        )
