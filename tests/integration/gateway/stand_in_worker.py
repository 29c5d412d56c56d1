"""A stand-in for a worker: speaks vLLM's completions, /tokenize and the control API's model part; has no model.

Used where a test needs many workers, or one that misbehaves at an exact moment. What real engines answer is tested in
tests/engine. Its "model" is a pure function of the tokens so far, so a test knows every token, and an answer whose
first tokens are in the prompt goes on as it would have.
"""

import asyncio
import hashlib
import json
from collections import deque
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from string import ascii_lowercase
from typing import Any

from aiohttp import web
from multidict import CIMultiDict

from fixtures.plain_tokenizer import file_digests
from pointsman.api.protocol import headers
from pointsman.api.protocol.control import MODEL_FILES_PATH, MODEL_PATH, ModelFile, ModelInfo
from pointsman.api.protocol.resume import RESUME_FIELD

SERVED_NAME = "stand-in"
BLOCK_SIZE = 16
MAX_MODEL_LEN = 4096
TOKEN = "the-control-token"


@dataclass
class Behaviour:
    """What the worker does with one request. Without any, it answers.

    ``tokens`` come first, then a ``flood``. Then the connection is cut (``cut``), the engine aborts (``abort``) or
    reports an error in the stream (``error_event``), a ``malformed`` event comes, or it waits for ``gate``. ``status``
    answers with that status (and retry reason), at once or after the ``gate``.
    """

    tokens: int = 0
    status: int | None = None
    retry: str | None = None
    died: str = ""  # prefill workers, with the retry reason for it
    cut: bool = False
    abort: bool = False
    error_event: bool = False
    malformed: str = ""  # of a whole answer: all of it
    flood: int = 0  # so many events of 16 KB each come after the tokens
    finish: bool = False  # after the gate, end as a whole answer does
    gate: asyncio.Event | None = None
    body: dict[str, Any] | None = None


@dataclass
class Seen:
    """One request as it arrived."""

    path: str
    headers: CIMultiDict[str]
    body: dict[str, Any]


@dataclass(eq=False)
class StandInWorker:
    """See the module. ``behaviours`` are used up one per request, in order."""

    name: str
    folder: Path
    tokenizer: Any
    url: str = ""
    behaviours: deque[Behaviour] = field(default_factory=deque)
    seen: list[Seen] = field(default_factory=list)
    cancelled: asyncio.Event = field(default_factory=asyncio.Event)
    begun: asyncio.Event = field(default_factory=asyncio.Event)
    asked: asyncio.Event = field(default_factory=asyncio.Event)  # what it serves
    other_template: bool = False  # /tokenize renders chats differently from the files
    says_its_model: asyncio.Event | None = None  # it answers what it serves only when this is set
    earlier_version: bool = False  # it cannot resume the streams of others
    decode_ms: float | None = 0.001  # from the first to the last token of whole answers; None: it does not report it
    adapters: tuple[str, ...] = ()
    max_model_len: int = MAX_MODEL_LEN
    block_size: int = BLOCK_SIZE
    token: str = TOKEN
    answers: int = 0
    running: int = 0  # requests that it generates for

    def application(self) -> web.Application:
        """Its HTTP application."""
        app = web.Application(middlewares=[_refuse_what_is_no_request], client_max_size=2**27)
        app.add_routes(self.routes())
        return app

    def routes(self) -> list[web.RouteDef]:
        """What it answers."""
        return [
            web.post("/v1/completions", self._completions),
            web.post("/v1/chat/completions", self._chat),
            web.post("/tokenize", self._tokenize),
            web.get(MODEL_PATH, self._model),
            web.get(MODEL_FILES_PATH + "/{digest}", self._file),
        ]

    def output(self, prompt: list[int], tokens: int, choice: int = 0) -> list[int]:
        """The first ``tokens`` of the answer this "model" gives: letters, each from all that stands before it."""
        seen = list(prompt)
        for _ in range(tokens):
            seen.append(self._letters[(choice + sum((place + 1) * token for place, token in enumerate(seen))) % 26])
        return seen[len(prompt) :]

    @cached_property
    def _letters(self) -> list[int]:
        return [self.tokenizer(letter, add_special_tokens=False)["input_ids"][-1] for letter in ascii_lowercase]

    async def _model(self, request: web.Request) -> web.Response:
        if request.headers.get(headers.CONTROL_TOKEN) != f"Bearer {self.token}":
            return web.Response(status=401)
        if self.says_its_model is not None:
            self.asked.set()
            await self.says_its_model.wait()
        digests = file_digests(self.folder)
        info = ModelInfo(
            served_name=SERVED_NAME,
            max_model_len=self.max_model_len,
            block_size=self.block_size,
            files=tuple(
                ModelFile(name=name, sha256=digest, bytes=(self.folder / name).stat().st_size)
                for name, digest in digests.items()
            ),
            digest=hashlib.sha256(json.dumps(digests).encode()).hexdigest(),
            adapters=self.adapters,
        )
        return web.Response(text=info.wire(), content_type="application/json")

    async def _file(self, request: web.Request) -> web.Response:
        if request.headers.get(headers.CONTROL_TOKEN) != f"Bearer {self.token}":
            return web.Response(status=401)
        wanted = request.match_info["digest"]
        name = next((name for name, digest in file_digests(self.folder).items() if digest == wanted), None)
        return web.Response(status=404) if name is None else web.Response(body=(self.folder / name).read_bytes())

    async def _tokenize(self, request: web.Request) -> web.Response:
        body = await request.json()
        if "prompt" in body:
            ids = self.tokenizer(body["prompt"])["input_ids"]
        else:
            text = self.tokenizer.apply_chat_template(body["messages"], tokenize=False, add_generation_prompt=True)
            ids = self.tokenizer("Rules.\n" + text if self.other_template else text, add_special_tokens=False)[
                "input_ids"
            ]
        return web.json_response({"tokens": ids, "count": len(ids), "max_model_len": self.max_model_len})

    def rendered(self, body: dict[str, Any]) -> list[int]:
        """The prompt of a chat."""
        messages = [
            message
            | {
                "content": "".join(
                    "<image>" if part.get("type") == "image_url" else part["text"] for part in message["content"]
                )
            }
            if isinstance(message["content"], list)
            else message
            for message in body["messages"]
        ]
        text = self.tokenizer.apply_chat_template(messages, tokenize=False, add_generation_prompt=True)
        return list(self.tokenizer(text, add_special_tokens=False)["input_ids"])

    async def _chat(self, request: web.Request) -> web.StreamResponse:
        body = await request.json()
        self.seen.append(Seen(request.path, request.headers.copy(), body))
        if not body.get("tools"):
            return await self._generated(request, body, self.rendered(body))
        self.answers += 1
        call = {
            "id": "call-1",
            "type": "function",
            "function": {"name": "set_switch", "arguments": '{"track": 7}'},
        }
        message = {"role": "assistant", "content": None, "tool_calls": [call]}
        if not body.get("stream"):
            return web.json_response(
                {
                    "id": "chatcmpl-engine", "object": "chat.completion", "created": 1, "model": SERVED_NAME,
                    "choices": [{"index": 0, "message": message, "finish_reason": "tool_calls"}],
                    "usage": {"prompt_tokens": 5, "completion_tokens": 3, "total_tokens": 8},
                }
            )  # fmt: skip
        response = web.StreamResponse(headers={"Content-Type": "text/event-stream"})
        await response.prepare(request)
        head = {"id": "chatcmpl-engine", "object": "chat.completion.chunk", "created": 1, "model": SERVED_NAME}
        said = {"tool_calls": [call | {"index": 0}]}
        for delta, reason in (({"role": "assistant", "content": ""}, None), (said, "tool_calls")):
            chunk = head | {"choices": [{"index": 0, "delta": delta, "finish_reason": reason}]}
            await response.write(b"data: " + json.dumps(chunk).encode() + b"\n\n")
        await response.write(b"data: [DONE]\n\n")
        return response

    async def _completions(self, request: web.Request) -> web.StreamResponse:
        body = await request.json()
        self.seen.append(Seen(request.path, request.headers.copy(), body))
        prompt = body["prompt"]
        if isinstance(prompt[0], list):
            prompt = prompt[0]
        return await self._generated(request, body, prompt)

    async def _generated(self, request: web.Request, body: dict[str, Any], prompt: list[int]) -> web.StreamResponse:
        behaviour = self.behaviours.popleft() if self.behaviours else None
        self.running += 1
        try:
            return await self._answer(request, body, prompt, behaviour)
        except (asyncio.CancelledError, ConnectionError):
            self.cancelled.set()
            raise
        finally:
            self.running -= 1

    async def _answer(
        self, request: web.Request, body: dict[str, Any], prompt: list[int], behaviour: Behaviour | None
    ) -> web.StreamResponse:
        if behaviour is not None and behaviour.status is not None:
            if behaviour.gate is not None:
                await behaviour.gate.wait()
            found = {headers.RETRY: behaviour.retry} if behaviour.retry else {}
            found |= {headers.DIED: behaviour.died} if behaviour.died else {}
            error = behaviour.body or {"error": {"message": "not now", "type": "error", "code": behaviour.status}}
            return web.json_response(error, status=behaviour.status, headers=found)
        if body["model"] not in (SERVED_NAME, *self.adapters):
            missing = {"message": "The model does not exist.", "type": "NotFoundError", "param": "model", "code": 404}
            return web.json_response({"error": missing}, status=404)
        is_chat = request.path.endswith("/chat/completions")
        limit = body.get("max_completion_tokens") or body.get("max_tokens", 16)
        chosen = [self.output(prompt, limit, choice) for choice in range(body.get("n", 1))]
        if behaviour is not None:
            chosen = [tokens[: behaviour.tokens] for tokens in chosen]
        worker = {headers.WORKER: self.name, headers.PREFILL: "local", headers.PREFILL_REASON: "short"}
        resumed = body.get(RESUME_FIELD)
        if resumed is not None and not self.earlier_version:
            worker[headers.RESUMED] = "1"
        head = {"id": f"{'chatcmpl' if is_chat else 'cmpl'}-{request.headers[headers.REQUEST_ID]}",
                "object": "chat.completion.chunk" if is_chat else "text_completion", "created": 1,
                "model": SERVED_NAME}  # fmt: skip
        output = sum(map(len, chosen))
        usage = {"prompt_tokens": len(prompt), "completion_tokens": output, "total_tokens": len(prompt) + output,
                 "prompt_tokens_details": {"cached_tokens": 1}}  # fmt: skip
        if not body.get("stream"):
            if behaviour is not None and behaviour.gate is not None:
                self.begun.set()
                await behaviour.gate.wait()
            if behaviour is not None and behaviour.cut:
                self._cut(request)
            if behaviour is not None and behaviour.malformed:
                return web.Response(text=behaviour.malformed, content_type="application/json", headers=worker)
            aborted = behaviour is not None and behaviour.abort
            choices = []
            for index, tokens in enumerate(chosen):
                text = self.tokenizer.decode(tokens)
                said = {"message": {"role": "assistant", "content": text}} if is_chat else {"text": text}
                choices.append({"index": index, **said, "logprobs": None, "stop_reason": None,
                                "finish_reason": "abort" if aborted else "length", "token_ids": tokens,
                                "prompt_token_ids": prompt})  # fmt: skip
            self.answers += not aborted
            if self.decode_ms is not None:
                first_is_last = all(len(tokens) == 1 for tokens in chosen)
                worker[headers.DECODE_MS] = f"{0.0 if first_is_last else self.decode_ms:.3f}"
            return web.json_response(head | {"choices": choices, "usage": usage}, headers=worker)
        response = web.StreamResponse(headers={"Content-Type": "text/event-stream", **worker})
        await response.prepare(request)
        make = self._chat_events if is_chat else self._completion_events
        for choice in make(body, prompt, chosen, ends=behaviour is None):
            await response.write(b"data: " + json.dumps(head | choice).encode() + b"\n\n")
        for _ in range(behaviour.flood if behaviour is not None else 0):
            choice = {"index": 0, "text": "x" * 2**14, "logprobs": None, "finish_reason": None, "token_ids": [5]}
            await response.write(b"data: " + json.dumps(head | {"choices": [choice]}).encode() + b"\n\n")
        if behaviour is not None and behaviour.abort:
            choice = {"index": 0, "text": "", "logprobs": None, "finish_reason": "abort", "token_ids": []}
            await response.write(b"data: " + json.dumps(head | {"choices": [choice]}).encode() + b"\n\n")
        if behaviour is not None and behaviour.error_event:
            error = {"error": {"message": "engine died", "type": "InternalServerError", "code": 500}}
            await response.write(b"data: " + json.dumps(head | error).encode() + b"\n\n")
        if behaviour is not None and behaviour.malformed:
            await response.write(b"data: " + behaviour.malformed.encode() + b"\n\n")
        self.begun.set()
        if behaviour is not None:
            if behaviour.gate is not None:
                await behaviour.gate.wait()
            if behaviour.cut:
                self._cut(request)
            if not behaviour.finish:
                return response
        if (body.get("stream_options") or {}).get("include_usage"):
            await response.write(b"data: " + json.dumps(head | {"choices": [], "usage": usage}).encode() + b"\n\n")
        await response.write(b"data: [DONE]\n\n")
        self.answers += 1
        return response

    def _completion_events(
        self, body: dict[str, Any], prompt: list[int], chosen: list[list[int]], *, ends: bool
    ) -> Iterator[dict[str, Any]]:
        del body
        for number, index, token, last in _interleaved(chosen, ends):
            choice: dict[str, Any] = {"index": index, "text": self.tokenizer.decode([token]), "logprobs": None,
                                      "finish_reason": "length" if last else None, "token_ids": [token]}  # fmt: skip
            if number == 0:
                choice["prompt_token_ids"] = prompt
            yield {"choices": [choice]}

    def _chat_events(
        self, body: dict[str, Any], prompt: list[int], chosen: list[list[int]], *, ends: bool
    ) -> Iterator[dict[str, Any]]:
        """As a parser that sees only pairs of letters: every other token waits for the next one."""
        ids_shown = bool(body.get("return_token_ids"))
        for index in range(len(chosen)):
            role = {"index": index, "delta": {"role": "assistant", "content": ""}, "finish_reason": None}
            yield {"choices": [role]} | ({"prompt_token_ids": prompt} if ids_shown else {})
        waiting = [""] * len(chosen)
        for number, index, token, last in _interleaved(chosen, ends):
            waiting[index] += self.tokenizer.decode([token])
            delta: dict[str, Any] = {}
            if number % 2 or last:
                delta, waiting[index] = {"content": waiting[index]}, ""
            if delta or ids_shown:
                choice = {"index": index, "delta": delta, "logprobs": None, "finish_reason": "length" if last else None}
                yield {"choices": [choice | {"token_ids": [token] if ids_shown else None}]}

    def _cut(self, request: web.Request) -> None:
        if request.transport is not None:
            request.transport.abort()
        raise ConnectionResetError("cut on purpose")


def _interleaved(chosen: list[list[int]], ends: bool) -> Iterator[tuple[int, int, int, bool]]:
    """Number of the token in its choice, index of the choice, token, whether it is the last; in turns."""
    longest = max(map(len, chosen))
    for number in range(longest):
        for index, tokens in enumerate(chosen):
            if number < len(tokens):
                yield number, index, tokens[number], ends and number == len(tokens) - 1


@web.middleware
async def _refuse_what_is_no_request(
    request: web.Request, handler: Callable[[web.Request], Awaitable[web.StreamResponse]]
) -> web.StreamResponse:
    """As engines do: a mistake of the client is its own, also one that this stand-in cannot read."""
    if request.method == "POST":
        try:
            body = json.loads(await request.read())
        except (ValueError, RecursionError):
            body = None
        if not isinstance(body, dict) or isinstance(body.get("prompt"), dict):
            return web.json_response(
                {"error": {"message": "no request", "type": "BadRequest", "code": 400}}, status=400
            )
    return await handler(request)


@asynccontextmanager
async def running(worker: StandInWorker, *, host: str = "127.0.0.1", port: int = 0) -> AsyncIterator[StandInWorker]:
    """Serve ``worker`` on a free port of ``host`` (or ``port``)."""
    runner = web.AppRunner(worker.application(), handler_cancellation=True, access_log=None, shutdown_timeout=0)
    await runner.setup()
    site = web.TCPSite(runner, host, port)
    await site.start()
    worker.url = f"http://{host}:{runner.addresses[0][1]}"
    try:
        yield worker
    finally:
        await runner.cleanup()
