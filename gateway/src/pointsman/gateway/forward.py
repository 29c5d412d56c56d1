"""Sends one choice of an answer to a worker, to another one when that fails, and hands back what comes.

Before the first token a request moves as it is: the connection failed, the worker said 503 (`RETRY` header or not), the
engine aborted (``finish_reason: "abort"`` is vLLM's answer while it shuts down, with HTTP 200) or died. Afterwards the
client has tokens: another worker gets them as part of the prompt and sends the rest. Only what cannot be continued
(`core.resume`) or finds no worker in time is reported as an error in the stream. How often a request may move is
`core.moves`. A first token or a whole answer that does not come in time ends the request: a worker that is busy is no
dead one, and a second one would have to do all of the work again.

Cancelling the task that waits here closes the connection to the worker, which makes vLLM abort the request.
"""

import asyncio
import logging
import math
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace
from typing import Any, Protocol, TypeVar

import aiohttp
import msgspec

from pointsman.api.protocol import headers
from pointsman.api.protocol.control import RetryReason
from pointsman.api.v1alpha1.limits import gateway_limit
from pointsman.gateway.attempt import (
    LiveStream,
    Provenance,
    Unsuitable,
    connection_failed,
    end_of_engine_error,
    no_first_token,
    provenance_of,
    worker_gone,
)
from pointsman.gateway.core.answers import read_answer
from pointsman.gateway.core.moves import AnswerMoves, AttemptEnd, RequestMoves
from pointsman.gateway.core.resume import Resumption, Transcript, continued_body, repeated_body
from pointsman.gateway.core.sse import TokenTranslator, Translator
from pointsman.gateway.departures import Departures
from pointsman.gateway.errors import (
    NoWorkerAvailable,
    RefusedByEngine,
    StreamBroken,
    TimedOut,
    WorkersDied,
    WorkersFailed,
)
from pointsman.gateway.first_token_deadline import DEADLINE
from pointsman.gateway.fleet import Fleet, Pick
from pointsman.gateway.flow_control import FlowControl
from pointsman.gateway.large_body import ArrivingBody, in_pieces
from pointsman.gateway.metrics import GatewayMetrics
from pointsman.gateway.off_loop import OffLoop
from pointsman.gateway.relayed_stream import RelayedStream
from pointsman.gateway.tracing import to_worker
from pointsman.gateway.types import Worker, WorkerKey

log = logging.getLogger(__name__)

T = TypeVar("T")

BYTES_PER_TOKEN_ID = 8  # in JSON, about
CANNOT_RESUME = "cannot-resume"  # reason of an attempt, a metric label
BACKOFF_FIRST_S = 0.05
BACKOFF_MOST_S = 1.0


class Embeddings(Protocol):
    """The embeddings of a request's images."""

    async def params(self, moves: RequestMoves) -> bytes:
        """JSON of the ``ec_transfer_params``, the same in every call; empty: the worker encodes the images itself.

        ``moves``: the request's, for the encode workers that die of it.
        """

    def leave_to_worker(self) -> None:
        """The worker that gets the request ignores embeddings, so it encodes the images itself."""


@dataclass(frozen=True, slots=True)
class WorkerRequest:
    """What the answers to one prompt (or a verbatim body) need from a worker.

    ``prompt_tokens`` is exact when the gateway tokenised (``digest`` set), else an estimate; ``chain`` are the prompt's
    block hashes for the index, empty when unknown; ``image_chain`` those of a prompt with images, which only this
    gateway knows. ``resumption``: how a broken stream goes on at another worker, None:
    not at all, because of ``not_resumable``; of the model ``resume_digest`` where ``digest`` is None. ``repeats``: the
    worker must repeat and resume.
    ``adapter``: the LoRA adapter that the worker must have; None: none. ``embeddings``: of the body's images, computed
    when a worker takes the request; None: it has no images.
    """

    request_id: str
    path: str
    body: bytes
    prompt_tokens: int
    chain: Sequence[int] = ()
    image_chain: Sequence[int] = ()
    digest: str | None = None
    resumption: Resumption | None = None
    resume_digest: str | None = None
    not_resumable: str | None = None
    repeats: bool = False
    adapter: str | None = None
    embeddings: Embeddings | None = None


@dataclass(frozen=True, slots=True)
class Limits:
    """Patience of the forwarder, seconds; see Settings."""

    patience_seconds: float
    connect_timeout_seconds: float
    first_token_timeout_seconds: float
    inactivity_timeout_seconds: float
    answer_timeout_seconds: float


@dataclass(frozen=True, slots=True)
class Answer:
    """A whole answer that was not streamed. ``timing`` None: its worker does not report it."""

    body: dict[str, Any]
    provenance: Provenance
    size_bytes: int
    timing: "Timing | None" = None


@dataclass(frozen=True, slots=True)
class Timing:
    """When a whole answer got its first and its last token, on the gateway's clock, in seconds."""

    first_token_s: float
    last_token_s: float


@dataclass(frozen=True, slots=True)
class RelayedBody:
    """A whole answer that is passed on as it came. ``timing`` as of an Answer."""

    body: bytes
    provenance: Provenance
    timing: Timing | None = None


@dataclass(frozen=True, slots=True)
class Continued:
    """A stream that goes on for a broken one, and the request it answers; ``carried`` tokens came from others."""

    request: WorkerRequest
    stream: LiveStream
    head: bytes
    carried: int


def continued(request: WorkerRequest, sampled: Sequence[int]) -> WorkerRequest:
    """The request that brings the rest after ``sampled``. Raises ValueError when nothing is left to bring."""
    return replace(
        request,
        request_id=f"{request.request_id}+{len(sampled)}",  # an engine may still hold the old one
        body=continued_body(request.body, sampled),
        prompt_tokens=request.prompt_tokens + len(sampled),
    )


def repeated(request: WorkerRequest, transcript: Transcript, tokens: int) -> WorkerRequest:
    """The request whose worker repeats ``transcript``, of ``tokens`` new ones, and goes on. Raises ValueError."""
    return replace(
        request,
        request_id=f"{request.request_id}+{tokens}",
        body=repeated_body(request.body, transcript),
        prompt_tokens=request.prompt_tokens + tokens,
        digest=request.digest or request.resume_digest,
        repeats=True,
    )


class AnswerStream:
    """One choice of a streamed answer, whichever workers send it. ``pull`` until ``ended``; ``close`` in any case."""

    def __init__(self, forwarder: "Forwarder", request: WorkerRequest, stream: LiveStream, moves: AnswerMoves) -> None:
        self.provenance = stream.provenance
        self._forwarder = forwarder
        self._request = request
        self._moves = moves
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
            onward = await self._forwarder.go_on(self._request, broken, error, self._carried, self._moves)
            self._request, self._stream, self._carried = onward.request, onward.stream, onward.carried
            return onward.head, onward.stream.tokens

    def close(self) -> None:
        """Give the worker up."""
        self._stream.close()


class Forwarder:
    """Sends requests to the fleet's workers."""

    def __init__(
        self,
        fleet: Fleet,
        flow: FlowControl,
        session: aiohttp.ClientSession,
        metrics: GatewayMetrics,
        limits: Limits,
        clock: Callable[[], float],
        departures: Departures,
        off_loop: OffLoop,
    ) -> None:
        self._fleet = fleet
        self._flow = flow
        self._session = session
        self._metrics = metrics
        self._limits = limits
        self._clock = clock
        self._departures = departures
        self._off_loop = off_loop
        connect = limits.connect_timeout_seconds
        self._stream_timeout = aiohttp.ClientTimeout(
            total=None, sock_connect=connect, sock_read=limits.first_token_timeout_seconds
        )
        self._answer_timeout = aiohttp.ClientTimeout(total=limits.answer_timeout_seconds, sock_connect=connect)

    async def answer(
        self, request: WorkerRequest, report_queued: Callable[[float], None], moves: RequestMoves
    ) -> Answer:
        """The whole answer. ``report_queued`` gets how long it was queued, s; ``moves`` is the request's.

        Raises NoWorkerAvailable, Overloaded, WorkersFailed, TimedOut or RefusedByEngine.
        """
        of_answer = moves.for_answer()
        return await self._retrying(
            request,
            lambda pick: self._answer_once(request, pick, of_answer),
            of_answer,
            report_queued=report_queued,
            streamed=False,
        )

    async def open(
        self,
        request: WorkerRequest,
        translator: Callable[[], Translator],
        report_queued: Callable[[float], None],
        moves: RequestMoves,
        *,
        hold_usage: bool = False,
    ) -> tuple["AnswerStream", bytes]:
        """A stream that has its first token, with the bytes so far. Arguments and errors as in ``answer``."""
        of_answer = moves.for_answer()
        stream, head = await self._retrying(
            request,
            lambda pick: self._open_once(request, pick, translator(), hold_usage, of_answer),
            of_answer,
            report_queued=report_queued,
        )
        return AnswerStream(self, request, stream, of_answer), head

    async def relay_whole(
        self, request: WorkerRequest, report_queued: Callable[[float], None] | None, moves: RequestMoves
    ) -> RelayedBody:
        """The whole answer, not read. ``report_queued`` None: flow control is not asked. Errors as in ``answer``."""
        of_answer = moves.for_answer()

        async def attempt(pick: Pick) -> RelayedBody:
            async with (
                self._while_there(pick.worker),
                await self._post(request, pick, self._answer_timeout, of_answer) as response,
            ):
                timing = self._timing(response)
                data = await self._whole(response)
            pick.entry.end()
            return RelayedBody(data, provenance_of(pick, response), timing)

        return await self._retrying(request, attempt, of_answer, report_queued=report_queued, streamed=False)

    async def relay_stream(
        self, request: WorkerRequest, report_queued: Callable[[float], None] | None, moves: RequestMoves
    ) -> RelayedStream:
        """A stream that is passed on as it comes; its head is here. Arguments and errors as in ``relay_whole``."""
        of_answer = moves.for_answer()

        async def attempt(pick: Pick) -> RelayedStream:
            async with self._while_there(pick.worker):
                response = await self._post(request, pick, self._stream_timeout, of_answer)
            return RelayedStream(
                pick,
                response,
                self._departures,
                self._limits.inactivity_timeout_seconds,
                answered=lambda: self._fleet.answered(pick.worker.key),
                failed=lambda why: self._worker_failed(pick.worker, why),
            )

        return await self._retrying(request, attempt, of_answer, report_queued=report_queued)

    async def go_on(
        self, request: WorkerRequest, broken: LiveStream, why: Unsuitable, carried: int, moves: AnswerMoves
    ) -> "Continued":
        """Another worker's stream that goes on where ``broken``, the answer to ``request``, ended.

        ``carried`` tokens of the answer are in ``request``'s prompt already. Raises StreamBroken.
        """
        self._worker_failed(broken.worker, why)
        died = f"The answer broke off after {carried + broken.tokens} tokens: {why} (worker {broken.provenance.worker})"
        over = moves.failed(broken.worker.key, broken.worker.name, why.end)
        if over is not None:
            raise StreamBroken(f"{died}; {over}.") from why
        translator = broken.translator
        size_bytes = len(request.body) + BYTES_PER_TOKEN_ID * broken.tokens
        try:
            if request.resumption is Resumption.REPEAT:
                transcript, shown = translator.transcript, broken.tokens
                onward = await self._off_loop.run(size_bytes, lambda: repeated(request, transcript, shown))
                carried += broken.tokens
            elif request.resumption is Resumption.PROMPT and isinstance(translator, TokenTranslator):
                sampled = broken.sampled[: broken.settled]
                if translator.shows_each_token and len(sampled) < len(broken.sampled):
                    raise ValueError("the last character is incomplete")
                onward = await self._off_loop.run(size_bytes, lambda: continued(request, sampled))
                carried += len(sampled)
                translator.go_on(carried)
            else:
                reason = (
                    "" if request.not_resumable is None else f"; a stream with {request.not_resumable} is not resumed"
                )
                raise StreamBroken(f"{died}{reason}.") from why
        except (ValueError, TypeError) as error:  # also of a number that the client sent as text
            raise StreamBroken(f"{died}: {error}.") from why
        self._metrics.retried(f"{why.reason}-mid-stream")
        log.warning(
            "resuming the stream on another worker",
            extra={
                "request_id": request.request_id,
                "worker": broken.provenance.worker,
                "reason": why.reason,
                "tokens": carried,
            },
        )

        if (deadline := DEADLINE.get()) is not None:
            # The first token came long ago. A worker that has no time left would prefill prompt and tokens itself.
            DEADLINE.set(deadline.renewed())

        async def attempt(pick: Pick) -> tuple[LiveStream, bytes]:
            if onward.repeats:
                translator.transcript.repeat()  # from its beginning, also where the worker before failed amid it
            return await self._open_once(onward, pick, translator, broken.hold_usage, moves)

        try:
            stream, head = await self._retrying(onward, attempt, moves, avoid={broken.worker.key})
        except (NoWorkerAvailable, WorkersFailed, TimedOut, RefusedByEngine) as error:
            raise StreamBroken(f"{died}, and no other worker continued it: {error}") from error
        return Continued(onward, stream, head, carried)

    async def _retrying(
        self,
        request: WorkerRequest,
        attempt: Callable[[Pick], Awaitable[T]],
        moves: AnswerMoves,
        *,
        report_queued: Callable[[float], None] | None = None,
        streamed: bool = True,
        avoid: Iterable[WorkerKey] = (),
    ) -> T:
        """``report_queued``: flow control is asked first, once; None: the request was admitted before."""
        deadline_s = self._clock() + self._limits.patience_seconds
        backoff_s = BACKOFF_FIRST_S
        avoid = set(avoid)
        unable: set[WorkerKey] = set()  # what cannot resume a stream now cannot do so in a moment either
        failures: list[str] = []

        def choose() -> Pick | None:
            return self._fleet.pick(
                prompt_tokens=request.prompt_tokens,
                chain=request.chain,
                image_chain=request.image_chain,
                digest=request.digest,
                adapter=request.adapter,
                avoid=avoid,
                streamed=streamed,
            )

        while True:
            if report_queued is None:
                pick = choose()
            else:
                asked_s = self._clock()
                pick = await self._flow.admit(choose, report_queued)
                deadline_s += self._clock() - asked_s  # patience is for workers that are missing
            if pick is None:
                left_s = deadline_s - self._clock()
                if unable and len(unable) == len(failures):
                    raise WorkersFailed(f"{len(failures)} attempts failed; the last: {failures[-1]}. Try again.")
                if left_s <= 0:
                    raise self._gave_up(failures)
                # Everybody there was tried, or there is nobody: what refused a moment ago may be ready after a change.
                await self._fleet.wait_change(min(backoff_s, left_s))
                backoff_s = min(2 * backoff_s, BACKOFF_MOST_S)
                avoid.clear()
                avoid.update(unable)
                continue
            report_queued = None
            _log_choice(request, pick)
            began_s = self._clock()
            try:
                result = await attempt(pick)
            except Unsuitable as error:
                pick.entry.end()
                deadline_s += self._clock() - began_s  # a worker was there
                avoid.add(pick.worker.key)
                if error.reason == CANNOT_RESUME:
                    unable.add(pick.worker.key)
                failures.append(f"{pick.worker.name}: {error}")
                self._attempt_failed(request, pick, error, moves, failures)
            except RefusedByEngine:
                pick.entry.end()
                self._fleet.answered(pick.worker.key)  # an answer, though the client's request is at fault
                raise
            except BaseException:
                pick.entry.end()
                raise
            else:
                if not streamed:  # a stream has only begun, and can still fail
                    self._fleet.answered(pick.worker.key)
                return result

    def _attempt_failed(
        self, request: WorkerRequest, pick: Pick, error: Unsuitable, moves: AnswerMoves, failures: list[str]
    ) -> None:
        """Raises WorkersDied or WorkersFailed if no other worker may be tried. ``failures``: so far, with this one."""
        worker = pick.worker
        self._worker_failed(worker, error)
        log.warning(
            "attempt failed",
            extra={
                "request_id": request.request_id,
                "worker": worker.name,
                "reason": error.reason,
                "detail": str(error),
            },
        )
        # One that was known to be down lost nothing by this request.
        end = AttemptEnd.NOT_BEGUN if pick.known_down and error.end is AttemptEnd.LOST else error.end
        over = moves.failed(worker.key, worker.name, end, error.prefill_workers)
        if over is not None:
            if moves.killed:
                raise WorkersDied(f"{over}.") from error
            raise WorkersFailed(f"{over}; the last: {failures[-1]}. Try again.") from error
        self._metrics.retried(error.reason)

    def _gave_up(self, failures: list[str]) -> NoWorkerAvailable | WorkersFailed:
        if failures:
            return WorkersFailed(
                f"{len(failures)} attempts failed, and no worker took the request within "
                f"{self._limits.patience_seconds:g} s; the limit is {gateway_limit('patience_seconds')} of the "
                f"service. The last: {failures[-1]}. Try again."
            )
        return NoWorkerAvailable(
            f"No decode worker was routable within {self._limits.patience_seconds:g} s; the limit is "
            f"{gateway_limit('patience_seconds')} of the service. Try again."
        )

    def _no_answer(self) -> TimedOut:
        return TimedOut(
            f"The whole answer did not come within {self._limits.answer_timeout_seconds:g} s; the limit is "
            f"{gateway_limit('answer_timeout_seconds')} of the service. Request fewer tokens, or stream the answer."
        )

    def _worker_failed(self, worker: Worker, why: Unsuitable) -> None:
        if why.failing and self._fleet.failed(worker.key, unreachable=why.unreachable):
            self._metrics.ejected("unreachable" if why.unreachable else "failing")

    async def _answer_once(self, request: WorkerRequest, pick: Pick, moves: AnswerMoves) -> Answer:
        async with (
            self._while_there(pick.worker),
            await self._post(request, pick, self._answer_timeout, moves) as response,
        ):
            timing = self._timing(response)
            data = await self._whole(response)
        try:
            body, aborted = await self._off_loop.run(len(data), lambda: read_answer(data))
        except msgspec.MsgspecError as error:
            raise Unsuitable("malformed", "the answer is not a completion", failing=True) from error
        if aborted:
            raise Unsuitable("engine-aborted")
        pick.entry.end()
        return Answer(body, provenance_of(pick, response), len(data), timing)

    def _timing(self, response: aiohttp.ClientResponse) -> Timing | None:
        """Of a whole answer whose head came now: the engine had its last token a moment ago."""
        told = response.headers.get(headers.DECODE_MS, "")
        try:
            decode_s = float(told) / 1000
        except ValueError:
            return None
        now_s = self._clock()
        return Timing(now_s - decode_s, now_s) if 0 <= decode_s < math.inf else None

    async def _whole(self, response: aiohttp.ClientResponse) -> bytes:
        """The body of an answer. Raises Unsuitable or TimedOut."""
        body = ArrivingBody()
        try:
            async for piece in response.content.iter_any():
                body.add(piece)
        except TimeoutError as error:
            raise self._no_answer() from error
        except (aiohttp.ClientError, OSError) as error:
            raise connection_failed(error) from error
        return await body.whole(self._off_loop)

    async def _open_once(
        self, request: WorkerRequest, pick: Pick, translator: Translator, hold_usage: bool, moves: AnswerMoves
    ) -> tuple[LiveStream, bytes]:
        async with self._while_there(pick.worker):
            response = await self._post(request, pick, self._stream_timeout, moves)
        stream = LiveStream(
            pick,
            response,
            translator,
            hold_usage=hold_usage,
            departures=self._departures,
            off_loop=self._off_loop,
            inactivity_seconds=self._limits.inactivity_timeout_seconds,
            answered=lambda: self._fleet.answered(pick.worker.key),
        )
        try:
            head = b""
            while not stream.begun:
                out, _tokens = await stream.pull()
                head += out
        except BaseException:
            stream.close()
            raise
        return stream, head

    @asynccontextmanager
    async def _while_there(self, worker: Worker) -> AsyncIterator[None]:
        """Ends what waits inside when ``worker`` is gone: raises Unsuitable then."""
        try:
            async with asyncio.timeout(None) as scope:
                now = asyncio.get_running_loop().time
                with self._departures.watched(worker, lambda: scope.reschedule(now())):
                    yield
        except TimeoutError as error:
            raise worker_gone() from error

    async def _post(
        self, request: WorkerRequest, pick: Pick, timeout: aiohttp.ClientTimeout, moves: AnswerMoves
    ) -> aiohttp.ClientResponse:
        """A response with status 200. Raises Unsuitable, TimedOut or RefusedByEngine."""
        body = request.body
        if request.embeddings is not None and pick.worker.ignores_embeddings:
            request.embeddings.leave_to_worker()
        elif request.embeddings is not None:
            body = await self._with_embeddings(body, request.embeddings, moves)
        sent = _headers_to_worker(request, pick, moves)
        data = in_pieces(body, sent)
        try:
            response = await self._session.post(
                pick.worker.url + request.path, data=data, headers=sent, timeout=timeout, allow_redirects=False
            )
        except (aiohttp.ClientConnectorError, aiohttp.ConnectionTimeoutError) as error:
            raise Unsuitable("unreachable", type(error).__name__, end=AttemptEnd.NOT_BEGUN, unreachable=True) from error
        except TimeoutError as error:
            raise (no_first_token() if timeout is self._stream_timeout else self._no_answer()) from error
        except (aiohttp.ClientError, OSError) as error:
            raise connection_failed(error, AttemptEnd.LOST) from error
        if response.status == 200:
            if request.repeats and response.headers.get(headers.RESUMED) is None:
                response.close()
                raise Unsuitable(
                    CANNOT_RESUME, "the worker does not resume the streams of other workers", end=AttemptEnd.NOT_BEGUN
                )
            return response
        raise await _refusal(response)

    async def _with_embeddings(self, body: bytes, embeddings: Embeddings, moves: AnswerMoves) -> bytes:
        """``body`` with where the embeddings of its images are, which may have to be computed first.

        Raises WorkersDied where encode workers died of it.
        """
        from pointsman.gateway.core.encode_body import with_embeddings

        params = await embeddings.params(moves.request)
        if moves.killed:
            raise WorkersDied(f"{moves.why_killed}.")
        if not params:
            return body
        return await self._off_loop.run(len(body), lambda: with_embeddings(body, params))


USES_LOGGED = 16


_RETRY_REASONS = frozenset(RetryReason)
_END_OF_REFUSED: dict[str, AttemptEnd] = {
    RetryReason.ENGINE_ABORTED: AttemptEnd.FAILED,
    RetryReason.PREFILL_DIED: AttemptEnd.DIED,
}


def _log_choice(request: WorkerRequest, pick: Pick) -> None:
    if log.isEnabledFor(logging.DEBUG):
        log.debug(
            "worker chosen",
            extra={
                "request_id": request.request_id,
                "worker": pick.worker.name,
                "prompt_tokens": request.prompt_tokens,
                "overlap_tokens": pick.choice.chosen.overlap_tokens,
                "uses": list(pick.uses[:USES_LOGGED]),
                "costs": {
                    candidate.key: round(cost, 3)
                    for candidate, cost in zip(pick.choice.candidates, pick.choice.costs, strict=True)
                },
            },
        )


def _headers_to_worker(request: WorkerRequest, pick: Pick, moves: AnswerMoves) -> dict[str, str]:
    sent = {"Content-Type": "application/json", headers.REQUEST_ID: request.request_id, **to_worker()}
    sent[headers.DEATHS] = str(moves.deaths)
    if pick.rule is not None:
        sent[headers.MAX_LOCAL_PREFILL_TOKENS] = str(pick.rule.max_local_prefill_tokens)
        sent[headers.MAX_PREFILL_QUEUE_SIZE] = str(pick.rule.max_prefill_queue_size)
    if (deadline := DEADLINE.get()) is not None:
        sent[headers.DEADLINE_MS] = str(deadline.left_ms)
    if request.chain and not request.image_chain:  # what only this gateway believes is no hint
        sent[headers.EXPECTED_CACHED_TOKENS] = str(pick.choice.chosen.overlap_tokens)
    return sent


async def _refusal(response: aiohttp.ClientResponse) -> Unsuitable | RefusedByEngine:
    """What an answer with another status than 200 means. Raises Unsuitable where its body cannot be read."""
    async with response:
        try:
            data = await response.read()
        except TimeoutError as error:
            raise Unsuitable(f"http-{response.status}", failing=True) from error
        except (aiohttp.ClientError, OSError) as error:
            raise connection_failed(error) from error
    refusal = response.headers.get(headers.RETRY)
    if refusal is not None:
        died = response.headers.get(headers.DIED, "").split(",") if refusal == RetryReason.PREFILL_DIED else ()
        return Unsuitable(
            refusal if refusal in _RETRY_REASONS else "refused",
            end=_END_OF_REFUSED.get(refusal, AttemptEnd.NOT_BEGUN),
            prefill_workers=[name for name in died if name],
        )
    if response.status >= 500:
        text = data[:2000].decode("utf-8", "replace")
        return Unsuitable(f"http-{response.status}", end=end_of_engine_error(text), failing=True)
    if response.status in (408, 429):
        return Unsuitable(f"http-{response.status}")
    return RefusedByEngine(response.status, data)
