"""Sends one choice of an answer to a worker, to another one when that fails, and hands back what comes.

Before the first token a request moves as it is: the connection failed, the worker said 503 (`RETRY` header or not), the
engine aborted (``finish_reason: "abort"`` is vLLM's answer while it shuts down, with HTTP 200) or died. Afterwards the
client has tokens: another worker gets them as part of the prompt and sends the rest. Only what cannot be continued
(`core.resume`) or finds no worker in time is reported as an error in the stream.

Cancelling the task that waits here closes the connection to the worker, which makes vLLM abort the request.
"""

import logging
from collections.abc import Awaitable, Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Any, TypeVar

import aiohttp
import msgspec

from pointsman.api.protocol import headers
from pointsman.api.protocol.control import RetryReason
from pointsman.gateway.attempt import LiveStream, Provenance, Unsuitable, provenance_of
from pointsman.gateway.core.resume import Resumption, Transcript, continued_body, repeated_body
from pointsman.gateway.core.sse import TokenTranslator, Translator
from pointsman.gateway.errors import NoWorkerAvailable, RefusedByEngine, StreamBroken, WorkersFailed
from pointsman.gateway.fleet import Fleet, Pick
from pointsman.gateway.flow_control import FlowControl
from pointsman.gateway.metrics import GatewayMetrics
from pointsman.gateway.types import WorkerKey

log = logging.getLogger(__name__)

T = TypeVar("T")

BACKOFF_FIRST_SECONDS = 0.05
BACKOFF_MOST_SECONDS = 1.0


@dataclass(frozen=True, slots=True)
class Leg:
    """What the answers to one prompt (or a verbatim body) need from a worker.

    ``prompt_tokens`` is exact when the gateway tokenised (``digest`` set), else an estimate; ``chain`` are the prompt's
    block hashes for the index, empty when unknown. ``resumption``: how a broken stream goes on at another worker, None:
    not at all; of the model ``resume_digest`` where ``digest`` is None. ``repeats``: the worker must repeat and resume.
    """

    request_id: str
    path: str
    body: bytes
    prompt_tokens: int
    chain: Sequence[int] = ()
    digest: str | None = None
    resumption: Resumption | None = None
    resume_digest: str | None = None
    repeats: bool = False


@dataclass(frozen=True, slots=True)
class Limits:
    """Patience of the forwarder, seconds; see Settings."""

    patience_seconds: float
    max_attempts: int
    connect_timeout_seconds: float
    inactivity_timeout_seconds: float
    answer_timeout_seconds: float


@dataclass(frozen=True, slots=True)
class Answer:
    """A whole answer that was not streamed."""

    body: dict[str, Any]
    provenance: Provenance


@dataclass(frozen=True, slots=True)
class Continued:
    """A stream that goes on for a broken one, and the leg it answers; ``carried`` tokens came from others."""

    leg: Leg
    stream: LiveStream
    head: bytes
    carried: int


def continued(leg: Leg, sampled: Sequence[int]) -> Leg:
    """The leg that brings the rest after ``sampled``. Raises ValueError when nothing is left to bring."""
    return replace(
        leg,
        request_id=f"{leg.request_id}+{len(sampled)}",  # an engine may still hold the old one
        body=continued_body(leg.body, sampled),
        prompt_tokens=leg.prompt_tokens + len(sampled),
    )


def repeated(leg: Leg, transcript: Transcript, tokens: int) -> Leg:
    """The leg whose worker repeats ``transcript``, of ``tokens`` new ones, and goes on. Raises ValueError."""
    return replace(
        leg,
        request_id=f"{leg.request_id}+{tokens}",
        body=repeated_body(leg.body, transcript),
        prompt_tokens=leg.prompt_tokens + tokens,
        digest=leg.digest or leg.resume_digest,
        repeats=True,
    )


class AnswerStream:
    """One choice of a streamed answer, whichever workers send it. ``pull`` until ``ended``; ``close`` in any case."""

    def __init__(self, forwarder: "Forwarder", leg: Leg, stream: LiveStream) -> None:
        self.provenance = stream.provenance
        self._forwarder = forwarder
        self._leg = leg
        self._stream = stream
        self._carried = 0

    @property
    def tokens(self) -> int:
        """Tokens so far."""
        return self._carried + self._stream.tokens

    @property
    def ended(self) -> bool:
        """Nothing more will come."""
        return self._stream.ended

    @property
    def usage(self) -> bytes:
        """JSON of the whole answer's usage, once it came."""
        return self._stream.usage

    async def pull(self) -> tuple[bytes, int]:
        """Bytes for the client and the tokens in them. Raises StreamBroken when nobody can go on."""
        try:
            return await self._stream.pull()
        except RefusedByEngine as error:
            raise StreamBroken(f"The engine failed after {self.tokens} tokens: {error}.") from error
        except Unsuitable as error:
            broken = self._stream
            if broken.translator.transcript.whole:  # the answer is whole; at most its usage is missing
                broken.ended = True
                return b"", 0
            broken.close()
            onward = await self._forwarder.go_on(self._leg, broken, error, self._carried)
            self._leg, self._stream, self._carried = onward.leg, onward.stream, onward.carried
            return onward.head, onward.stream.tokens

    def close(self) -> None:
        """Give the worker up."""
        self._stream.close()


class Forwarder:
    """Sends legs to the fleet's workers."""

    def __init__(
        self,
        fleet: Fleet,
        flow: FlowControl,
        session: aiohttp.ClientSession,
        metrics: GatewayMetrics,
        limits: Limits,
        clock: Callable[[], float],
    ) -> None:
        self._fleet = fleet
        self._flow = flow
        self._session = session
        self._metrics = metrics
        self._limits = limits
        self._clock = clock
        connect = limits.connect_timeout_seconds
        self._stream_timeout = aiohttp.ClientTimeout(
            total=None, sock_connect=connect, sock_read=limits.inactivity_timeout_seconds
        )
        self._answer_timeout = aiohttp.ClientTimeout(total=limits.answer_timeout_seconds, sock_connect=connect)

    async def answer(self, leg: Leg, held: Callable[[float], None]) -> Answer:
        """The whole answer. ``held`` is told how long it was held, s. Raises NoWorkerAvailable, Overloaded,
        WorkersFailed or RefusedByEngine.
        """
        return await self._retrying(leg, lambda pick: self._answer_once(leg, pick), held=held, streamed=False)

    async def open(
        self,
        leg: Leg,
        translator: Callable[[], Translator],
        held: Callable[[float], None],
        *,
        hold_usage: bool = False,
    ) -> tuple["AnswerStream", bytes]:
        """A stream that has its first token, with the bytes so far. ``held`` and what is raised as in ``answer``."""
        stream, head = await self._retrying(
            leg, lambda pick: self._open_once(leg, pick, translator(), hold_usage), held=held
        )
        return AnswerStream(self, leg, stream), head

    async def go_on(self, leg: Leg, broken: LiveStream, why: Unsuitable, carried: int) -> "Continued":
        """Another worker's stream that goes on where ``broken``, the answer to ``leg``, ended.

        ``carried`` tokens of the answer are in ``leg``'s prompt already. Raises StreamBroken.
        """
        if why.suspect:
            self._fleet.suspect(broken.worker_key)
        died = f"The answer broke off after {carried + broken.tokens} tokens: {why} (worker {broken.provenance.worker})"
        translator = broken.translator
        try:
            if leg.resumption is Resumption.REPEAT:
                onward = repeated(leg, translator.transcript, broken.tokens)
                carried += broken.tokens
            elif leg.resumption is Resumption.PROMPT and isinstance(translator, TokenTranslator):
                sampled = broken.sampled[: broken.settled]
                if translator.shows_each_token and len(sampled) < len(broken.sampled):
                    raise ValueError("in the middle of a character")
                onward = continued(leg, sampled)
                carried += len(sampled)
                translator.go_on(carried)
            else:
                raise StreamBroken(f"{died}.") from why
        except ValueError as error:
            raise StreamBroken(f"{died}: {error}.") from why
        self._metrics.retried(f"{why.reason}-mid-stream")
        log.warning(
            "stream goes on at another worker",
            extra={
                "request_id": leg.request_id,
                "worker": broken.provenance.worker,
                "reason": why.reason,
                "tokens": carried,
            },
        )
        try:
            stream, head = await self._retrying(
                onward,
                lambda pick: self._open_once(onward, pick, translator, broken.hold_usage),
                avoid={broken.worker_key},
            )
        except (NoWorkerAvailable, WorkersFailed, RefusedByEngine) as error:
            raise StreamBroken(f"{died}, and nobody went on: {error}") from error
        return Continued(onward, stream, head, carried)

    async def _retrying(
        self,
        leg: Leg,
        attempt: Callable[[Pick], Awaitable[T]],
        *,
        held: Callable[[float], None] | None = None,
        streamed: bool = True,
        avoid: Iterable[WorkerKey] = (),
    ) -> T:
        """``held``: flow control is asked first, once; None: the request was admitted before."""
        deadline_s = self._clock() + self._limits.patience_seconds
        backoff_s = BACKOFF_FIRST_SECONDS
        avoid = set(avoid)
        failures: list[str] = []

        def choose() -> Pick | None:
            return self._fleet.pick(
                prompt_tokens=leg.prompt_tokens, chain=leg.chain, digest=leg.digest, avoid=avoid, streamed=streamed
            )

        while True:
            if held is None:
                pick = choose()
            else:
                asked_s = self._clock()
                pick = await self._flow.admit(choose, held)
                deadline_s += self._clock() - asked_s  # patience is for workers that are missing
            if pick is None:
                left_s = deadline_s - self._clock()
                if left_s <= 0:
                    raise self._gave_up(leg, failures)
                # Everybody there was tried, or there is nobody: what refused a moment ago may be ready after a change.
                await self._fleet.wait_change(min(backoff_s, left_s))
                backoff_s = min(2 * backoff_s, BACKOFF_MOST_SECONDS)
                avoid.clear()
                continue
            held = None
            _log_choice(leg, pick)
            try:
                result = await attempt(pick)
            except Unsuitable as error:
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
                raise Unsuitable("inactive", "no answer in time", suspect=True) from error
            except (aiohttp.ClientError, OSError) as error:
                raise Unsuitable("worker-died", f"{type(error).__name__}: {error}", suspect=True) from error
        try:
            body = msgspec.json.decode(data)
            aborted = any(choice.get("finish_reason") == "abort" for choice in body["choices"])
        except (msgspec.DecodeError, KeyError, TypeError, AttributeError) as error:
            raise Unsuitable("malformed", f"{error}: {data[:200]!r}") from error
        if aborted:
            raise Unsuitable("engine-aborted")
        pick.entry.end()
        return Answer(body, provenance_of(pick, response))

    async def _open_once(
        self, leg: Leg, pick: Pick, translator: Translator, hold_usage: bool
    ) -> tuple[LiveStream, bytes]:
        response = await self._post(leg, pick, self._stream_timeout)
        stream = LiveStream(pick, response, translator, hold_usage=hold_usage)
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
        """A response with status 200. Raises Unsuitable or RefusedByEngine."""
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
            raise Unsuitable("inactive", "no answer began in time", suspect=True) from error
        except (aiohttp.ClientError, OSError) as error:
            reason = "unreachable" if isinstance(error, aiohttp.ClientConnectorError) else "worker-died"
            raise Unsuitable(reason, f"{type(error).__name__}: {error}", suspect=True) from error
        if response.status == 200:
            if leg.repeats and response.headers.get(headers.RESUMED) is None:
                response.close()
                raise Unsuitable("cannot-resume", "the worker does not resume streams of others")
            return response
        async with response:
            try:
                data = await response.read()
            except (aiohttp.ClientError, OSError, TimeoutError) as error:
                raise Unsuitable("worker-died", f"{type(error).__name__}: {error}", suspect=True) from error
        refusal = response.headers.get(headers.RETRY)
        if refusal is not None:
            raise Unsuitable(refusal if refusal in _RETRY_REASONS else "refused", f"503 {refusal}")
        if response.status >= 500 or response.status in (408, 429):
            raise Unsuitable(f"http-{response.status}", data[:200].decode("utf-8", "replace"))
        raise RefusedByEngine(response.status, data)


_RETRY_REASONS = frozenset(RetryReason)


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
