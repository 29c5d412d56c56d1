"""Sends one choice of an answer to a worker, to another one while nothing was lost, and hands back what comes.

Before the first token a request may move: the connection failed, the worker said 503 (`RETRY` header or not), the
engine aborted (``finish_reason: "abort"`` is vLLM's answer while it shuts down, with HTTP 200) or died. Afterwards the
client has tokens, and a failure is reported as an error in the stream.

Cancelling the task that waits here closes the connection to the worker, which makes vLLM abort the request.
"""

import logging
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

import aiohttp
import msgspec

from pointsman.api.protocol import headers
from pointsman.api.protocol.control import RetryReason
from pointsman.gateway.core.sse import EngineError, EventSplitter, MalformedEvent, Step, Translator
from pointsman.gateway.errors import NoWorkerAvailable, RefusedByEngine, StreamBroken, WorkersFailed
from pointsman.gateway.fleet import Fleet, Pick
from pointsman.gateway.metrics import GatewayMetrics
from pointsman.gateway.types import WorkerKey

log = logging.getLogger(__name__)

T = TypeVar("T")

BACKOFF_FIRST_SECONDS = 0.05
BACKOFF_MOST_SECONDS = 1.0


@dataclass(frozen=True, slots=True)
class Leg:
    """What one choice of an answer needs from a worker.

    ``prompt_tokens`` is exact when the gateway tokenised (``digest`` set), else an estimate; ``chain`` are the prompt's
    block hashes for the index, empty when unknown.
    """

    request_id: str
    path: str
    body: bytes
    prompt_tokens: int
    chain: Sequence[int] = ()
    digest: str | None = None


@dataclass(frozen=True, slots=True)
class Limits:
    """Patience of the forwarder, seconds; see Settings."""

    patience_seconds: float
    max_attempts: int
    connect_timeout_seconds: float
    inactivity_timeout_seconds: float
    answer_timeout_seconds: float


@dataclass(frozen=True, slots=True)
class Provenance:
    """Who answered and where the prompt was prefilled, as the worker's headers say."""

    worker: str
    prefill: str | None = None  # "local" or "remote"
    prefill_reason: str | None = None
    prefill_worker: str | None = None

    @property
    def path(self) -> str:
        """Label of the latency metrics."""
        return "remote" if self.prefill == "remote" else "local"


@dataclass(frozen=True, slots=True)
class Answer:
    """A whole answer that was not streamed."""

    body: dict[str, Any]
    provenance: Provenance


class _Unsuitable(Exception):
    """This attempt failed and nothing reached the client: try another worker. ``reason`` is a metric label."""

    def __init__(self, reason: str, detail: str = "", *, suspect: bool = False) -> None:
        super().__init__(detail or reason)
        self.reason = reason
        self.suspect = suspect


class LiveStream:
    """An open stream of one worker. ``pull`` until ``ended``; ``close`` in any case.

    ``hold_usage``: the event that only brings usage is kept in ``usage`` and not passed on.
    """

    def __init__(
        self, pick: Pick, response: aiohttp.ClientResponse, translator: Translator, *, hold_usage: bool
    ) -> None:
        self.provenance = _provenance(pick, response)
        self.worker_key = pick.worker.key
        self.tokens = 0
        self.begun = False  # the first token (or the end) was read
        self.ended = False  # [DONE] was read
        self.usage = b""  # JSON of the engine's usage, once it came
        self.finish_reason: str | None = None
        self._pick = pick
        self._response = response
        self._content = response.content
        self._translator = translator
        self._hold_usage = hold_usage
        self._splitter = EventSplitter()
        self._failure: Exception | None = None

    async def pull(self) -> tuple[bytes, int]:
        """Bytes for the client from one read of the network, and the tokens in them.

        Raises RefusedByEngine or _Unsuitable; what came before a failure in the same read is returned first.
        """
        if self._failure is not None:
            raise self._failure
        try:
            received = await self._content.readany()
        except TimeoutError as error:
            raise _Unsuitable("inactive", "nothing arrived for too long", suspect=True) from error
        except (aiohttp.ClientError, OSError) as error:
            raise _Unsuitable("worker-died", f"{type(error).__name__}: {error}", suspect=True) from error
        if not received:
            raise _Unsuitable("worker-died", "the stream ended without [DONE]", suspect=True)
        out = bytearray()
        tokens = 0
        for event in self._splitter.feed(received):
            try:
                step = self._translator.read(event)
                self._check(step)
            except (MalformedEvent, _Unsuitable, RefusedByEngine) as error:
                failure = _Unsuitable("malformed", str(error)) if isinstance(error, MalformedEvent) else error
                if not out:
                    raise failure from error
                self._failure = failure
                break
            if step.usage:
                self.usage = step.usage
            if not (step.usage and self._hold_usage):
                out += step.out
            tokens += step.tokens
            if step.finish_reason is not None:
                self.finish_reason = step.finish_reason
            if step.tokens or step.finish_reason is not None or step.done:
                self.begun = True
            if step.done:
                self.ended = True
                break
        if tokens:
            self.tokens += tokens
            self._pick.entry.produced(tokens)
        return bytes(out), tokens

    def close(self) -> None:
        """Give the worker up: a connection with an unread rest is closed, so the engine aborts the request."""
        self._pick.entry.end()
        if self.ended:
            self._response.release()
        else:
            self._response.close()

    def _check(self, step: Step) -> None:
        if step.error is not None:
            raise _engine_failed(step.error)
        if step.finish_reason == "abort":
            raise _Unsuitable("engine-aborted")


class Forwarder:
    """Sends legs to the fleet's workers."""

    def __init__(
        self,
        fleet: Fleet,
        session: aiohttp.ClientSession,
        metrics: GatewayMetrics,
        limits: Limits,
        clock: Callable[[], float],
    ) -> None:
        self._fleet = fleet
        self._session = session
        self._metrics = metrics
        self._limits = limits
        self._clock = clock
        connect = limits.connect_timeout_seconds
        self._stream_timeout = aiohttp.ClientTimeout(
            total=None, sock_connect=connect, sock_read=limits.inactivity_timeout_seconds
        )
        self._answer_timeout = aiohttp.ClientTimeout(total=limits.answer_timeout_seconds, sock_connect=connect)

    async def answer(self, leg: Leg) -> Answer:
        """The whole answer. Raises NoWorkerAvailable, WorkersFailed or RefusedByEngine."""
        return await self._retrying(leg, lambda pick: self._answer_once(leg, pick))

    async def open(
        self, leg: Leg, translator: Callable[[], Translator], *, hold_usage: bool = False
    ) -> tuple[LiveStream, bytes]:
        """A stream that has its first token, with the bytes so far. Raises as ``answer`` does."""
        return await self._retrying(leg, lambda pick: self._open_once(leg, pick, translator, hold_usage))

    async def pull(self, stream: LiveStream) -> tuple[bytes, int]:
        """More of an open stream. Raises StreamBroken: the client has tokens, so nothing is tried elsewhere."""
        try:
            return await stream.pull()
        except _Unsuitable as error:
            if error.suspect:
                self._fleet.suspect(stream.worker_key)
            raise StreamBroken(
                f"The answer broke off after {stream.tokens} tokens: {error} (worker {stream.provenance.worker})."
            ) from error
        except RefusedByEngine as error:
            raise StreamBroken(f"The engine failed after {stream.tokens} tokens: {error}.") from error

    async def _retrying(self, leg: Leg, attempt: Callable[[Pick], Awaitable[T]]) -> T:
        deadline_s = self._clock() + self._limits.patience_seconds
        backoff_s = BACKOFF_FIRST_SECONDS
        avoid: set[WorkerKey] = set()
        failures: list[str] = []
        while True:
            pick = self._fleet.pick(prompt_tokens=leg.prompt_tokens, chain=leg.chain, digest=leg.digest, avoid=avoid)
            if pick is None:
                left_s = deadline_s - self._clock()
                if left_s <= 0:
                    raise self._gave_up(leg, failures)
                # Everybody there was tried, or there is nobody: what refused a moment ago may be ready after a change.
                await self._fleet.wait_change(min(backoff_s, left_s))
                backoff_s = min(2 * backoff_s, BACKOFF_MOST_SECONDS)
                avoid.clear()
                continue
            _log_choice(leg, pick)
            try:
                result = await attempt(pick)
            except _Unsuitable as error:
                pick.entry.end()
                key = pick.worker.key
                avoid.add(key)
                if error.suspect:
                    self._fleet.suspect(key)
                failures.append(f"{pick.worker.name}: {error}")
                log.warning(
                    "attempt failed",
                    extra={
                        "request_id": leg.request_id,
                        "worker": pick.worker.name,
                        "reason": error.reason,
                        "detail": str(error),
                    },
                )
                if len(failures) >= self._limits.max_attempts:
                    raise self._gave_up(leg, failures) from error
                self._metrics.retried(error.reason)
            except BaseException:
                pick.entry.end()
                raise
            else:
                self._fleet.trust(pick.worker.key)
                return result

    def _gave_up(self, leg: Leg, failures: list[str]) -> NoWorkerAvailable | WorkersFailed:
        if failures:
            return WorkersFailed(
                f"{len(failures)} attempts failed before the first token; the last: {failures[-1]}. Try again."
            )
        return NoWorkerAvailable(
            "No decode worker is routable at the moment; try again "
            f"(waited {self._limits.patience_seconds:g} s for one, request {leg.request_id})."
        )

    async def _answer_once(self, leg: Leg, pick: Pick) -> Answer:
        async with await self._post(leg, pick, self._answer_timeout) as response:
            try:
                data = await response.read()
            except TimeoutError as error:
                raise _Unsuitable("inactive", "no answer in time", suspect=True) from error
            except (aiohttp.ClientError, OSError) as error:
                raise _Unsuitable("worker-died", f"{type(error).__name__}: {error}", suspect=True) from error
        try:
            body = msgspec.json.decode(data)
            aborted = any(choice.get("finish_reason") == "abort" for choice in body["choices"])
        except (msgspec.DecodeError, KeyError, TypeError, AttributeError) as error:
            raise _Unsuitable("malformed", f"{error}: {data[:200]!r}") from error
        if aborted:
            raise _Unsuitable("engine-aborted")
        pick.entry.end()
        return Answer(body, _provenance(pick, response))

    async def _open_once(
        self, leg: Leg, pick: Pick, translator: Callable[[], Translator], hold_usage: bool
    ) -> tuple[LiveStream, bytes]:
        response = await self._post(leg, pick, self._stream_timeout)
        stream = LiveStream(pick, response, translator(), hold_usage=hold_usage)
        try:
            head = b""
            while not stream.begun:
                out, _tokens = await stream.pull()
                head += out
        except BaseException:
            stream.close()
            raise
        return stream, head

    async def _post(self, leg: Leg, pick: Pick, timeout: aiohttp.ClientTimeout) -> aiohttp.ClientResponse:
        """A response with status 200. Raises _Unsuitable or RefusedByEngine."""
        sent = {"Content-Type": "application/json", headers.REQUEST_ID: leg.request_id}
        if pick.rule is not None:
            sent[headers.MAX_LOCAL_PREFILL_TOKENS] = str(pick.rule.max_local_prefill_tokens)
            sent[headers.MAX_PREFILL_QUEUE_SIZE] = str(pick.rule.max_prefill_queue_size)
        if leg.chain:
            sent[headers.EXPECTED_CACHED_TOKENS] = str(pick.choice.chosen.overlap_tokens)
        try:
            response = await self._session.post(
                pick.worker.url + leg.path, data=leg.body, headers=sent, timeout=timeout, allow_redirects=False
            )
        except TimeoutError as error:
            raise _Unsuitable("inactive", "no answer began in time", suspect=True) from error
        except (aiohttp.ClientError, OSError) as error:
            reason = "unreachable" if isinstance(error, aiohttp.ClientConnectorError) else "worker-died"
            raise _Unsuitable(reason, f"{type(error).__name__}: {error}", suspect=True) from error
        if response.status == 200:
            return response
        async with response:
            try:
                data = await response.read()
            except (aiohttp.ClientError, OSError, TimeoutError) as error:
                raise _Unsuitable("worker-died", f"{type(error).__name__}: {error}", suspect=True) from error
        refusal = response.headers.get(headers.RETRY)
        if refusal is not None:
            raise _Unsuitable(refusal if refusal in _RETRY_REASONS else "refused", f"503 {refusal}")
        if response.status >= 500 or response.status in (408, 429):
            raise _Unsuitable(f"http-{response.status}", data[:200].decode("utf-8", "replace"))
        raise RefusedByEngine(response.status, data)


_RETRY_REASONS = frozenset(RetryReason)


def _engine_failed(error: EngineError) -> Exception:
    if error.is_clients and isinstance(error.code, int):
        return RefusedByEngine(error.code, msgspec.json.encode({"error": error}))
    return _Unsuitable("engine-error", error.message)


def _provenance(pick: Pick, response: aiohttp.ClientResponse) -> Provenance:
    found = response.headers
    return Provenance(
        worker=found.get(headers.WORKER, pick.worker.name),
        prefill=found.get(headers.PREFILL),
        prefill_reason=found.get(headers.PREFILL_REASON),
        prefill_worker=found.get(headers.PREFILL_WORKER),
    )


def _log_choice(leg: Leg, pick: Pick) -> None:
    if log.isEnabledFor(logging.DEBUG):
        log.debug(
            "worker chosen",
            extra={
                "request_id": leg.request_id,
                "worker": pick.worker.name,
                "prompt_tokens": leg.prompt_tokens,
                "overlap_tokens": pick.choice.chosen.overlap_tokens,
                "costs": {
                    candidate.key: round(cost, 3)
                    for candidate, cost in zip(pick.choice.candidates, pick.choice.costs, strict=True)
                },
            },
        )
