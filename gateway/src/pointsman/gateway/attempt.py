"""One attempt at an answer: the open stream of one worker, and why an attempt failed."""

import asyncio
from collections.abc import Callable, Collection
from dataclasses import dataclass
from typing import Final

import aiohttp
import msgspec

from pointsman.api.protocol import headers
from pointsman.api.v1alpha1.limits import gateway_limit
from pointsman.gateway.core.moves import AttemptEnd
from pointsman.gateway.core.sse import EngineError, EventSplitter, MalformedEvent, Step, Translator
from pointsman.gateway.departures import Departures
from pointsman.gateway.errors import RefusedByEngine, TimedOut
from pointsman.gateway.fleet import Pick
from pointsman.gateway.off_loop import INLINE_BYTES, OffLoop
from pointsman.serving.engine_death import reports_engine_death

END_S: Final = 1.0
ENGINE_ERROR: Final = "engine-error"  # the engine reported in its answer that it failed
"""How long the end of a stream's HTTP answer is awaited after its [DONE], so that the connection can be used again."""


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


class Unsuitable(Exception):
    """This attempt failed: try another worker.

    ``reason`` is a metric label. ``detail`` is shown to clients, so it holds nothing that a worker sent. ``end`` says
    how far the attempt came, ``unreachable`` that the worker's connections fail, and ``failing`` that the worker
    failed where another one might not. ``prefill_workers`` are names of those that died with the prompt.
    """

    def __init__(
        self,
        reason: str,
        detail: str = "",
        *,
        end: AttemptEnd = AttemptEnd.FAILED,
        unreachable: bool = False,
        failing: bool = False,
        prefill_workers: Collection[str] = (),
    ) -> None:
        super().__init__(f"{reason}, {detail}" if detail else reason)
        self.reason = reason
        self.end = end
        self.unreachable = unreachable
        self.failing = failing or unreachable
        self.prefill_workers = prefill_workers


def connection_failed(error: Exception, end: AttemptEnd = AttemptEnd.DIED) -> Unsuitable:
    """The connection broke while the worker had the request. Names the kind of error only: it may hold addresses."""
    return Unsuitable("worker-died", type(error).__name__, end=end, unreachable=True)


NO_DATA: Final = (
    f"the worker sent no data in time; the limit is {gateway_limit('inactivity_timeout_seconds')} of the service"
)


def worker_gone() -> Unsuitable:
    """The worker left the routable set and takes no connections."""
    return Unsuitable("worker-gone", "its node or pod no longer exists", unreachable=True)


class LiveStream:
    """An open stream of one worker. ``pull`` until ``ended``; ``close`` in any case.

    ``hold_usage``: the event that only brings usage is kept in ``usage`` and not passed on. ``sampled`` are the token
    ids so far, of which the first ``settled`` are in the text that was handed out. ``answered`` is called at the end of
    a whole stream.
    """

    def __init__(
        self,
        pick: Pick,
        response: aiohttp.ClientResponse,
        translator: Translator,
        *,
        hold_usage: bool,
        departures: Departures,
        off_loop: OffLoop,
        inactivity_seconds: float,
        answered: Callable[[], None],
    ) -> None:
        self.provenance = provenance_of(pick, response)
        self.worker = pick.worker
        self.tokens = 0
        self.sampled: list[int] = []
        self.settled = 0
        self.begun = False  # the first token (or the end) was read
        self.ended = False  # [DONE] was read
        self.usage = b""  # JSON of the engine's usage, once it came
        self._pick = pick
        self._response = response
        self._content = response.content
        self.translator = translator
        self.hold_usage = hold_usage
        self._splitter = EventSplitter()
        self._failure: Exception | None = None
        self._departures = departures
        self._off_loop = off_loop
        self._inactivity_seconds = inactivity_seconds
        self._answered = answered
        self._gone = False
        self._end: asyncio.Task[None] | None = None
        departures.enter(pick.worker, self._worker_is_gone)

    async def pull(self) -> tuple[bytes, int]:
        """Bytes for the client from one read of the network, and the tokens in them.

        Raises RefusedByEngine or Unsuitable; what came before a failure in the same read is returned first.
        """
        if self._failure is not None:
            raise self._failure
        try:
            received = await self._content.readany()
        except (aiohttp.ClientError, OSError) as error:
            raise self._why_broken(error) from error
        if not received:
            raise self._why_cut()
        out = bytearray()
        tokens = 0
        for event in self._splitter.feed(received):
            try:
                step = await self._read(event)
                self._check(step)
            except (MalformedEvent, Unsuitable, RefusedByEngine) as error:
                failure = _malformed() if isinstance(error, MalformedEvent) else error
                if not out:
                    raise failure from error
                self._failure = failure
                break
            if step.usage:
                self.usage = step.usage
            if not (step.usage and self.hold_usage):
                out += step.out
            tokens += step.tokens
            self.sampled += step.token_ids
            if step.settled:
                self.settled = len(self.sampled)
            if not self.begun and (step.tokens or step.finish_reason is not None or step.done):
                self._begin()
            if step.done:
                self.ended = True
                self._answered()
                break
        if tokens:
            self.tokens += tokens
            self._pick.entry.produced(tokens)
        return bytes(out), tokens

    def _why_broken(self, error: Exception) -> Unsuitable | TimedOut:
        if isinstance(error, TimeoutError):
            return Unsuitable("inactive", NO_DATA, unreachable=True) if self.begun else no_first_token()
        return worker_gone() if self._gone else connection_failed(error)

    def _why_cut(self) -> Unsuitable:
        if self._gone:
            return worker_gone()
        return Unsuitable("worker-died", "the stream ended without [DONE]", end=AttemptEnd.DIED, unreachable=True)

    async def _read(self, event: bytes) -> Step:
        """One event in the answer to a prompt's echo has the log-probabilities of all its tokens: megabytes."""
        if len(event) <= INLINE_BYTES:
            return self.translator.read(event)
        return await self._off_loop.run(len(event), lambda: self.translator.read(event))

    def close(self) -> None:
        """Give the worker up: a connection with an unread rest is closed, so the engine aborts the request."""
        self._pick.entry.end()
        self._departures.leave(self.worker, self._worker_is_gone)
        if not self.ended:
            self._response.close()
        elif self._content.at_eof():
            self._response.release()
        elif self._end is None:
            self._end = asyncio.create_task(self._read_end(), name="end of a stream")

    async def _read_end(self) -> None:
        """What comes after [DONE] is the end of the HTTP answer. Released before it, a connection would be closed."""
        try:
            async with asyncio.timeout(END_S):
                while not self._content.at_eof():
                    await self._content.readany()
        except (TimeoutError, aiohttp.ClientError, OSError):
            self._response.close()
        else:
            self._response.release()

    def _begin(self) -> None:
        """The first token is here: from now on a silent stream has died."""
        self.begun = True
        limit_silence(self._response, self._inactivity_seconds)

    def _worker_is_gone(self) -> None:
        self._gone = True
        self._response.close()

    def _check(self, step: Step) -> None:
        if step.error is not None:
            raise engine_failed(step.error)
        if step.finish_reason == "abort":
            raise Unsuitable("engine-aborted")


def limit_silence(response: aiohttp.ClientResponse, seconds: float) -> None:
    """From now on, reads of ``response`` raise TimeoutError after so long without data."""
    connection = response.connection
    if connection is not None and connection.protocol is not None and not response.content.is_eof():
        connection.protocol.read_timeout = seconds
        connection.protocol.start_timeout()


def engine_failed(error: EngineError) -> Exception:
    """RefusedByEngine where another worker would refuse too, else Unsuitable."""
    if error.is_clients and isinstance(error.code, int):
        return RefusedByEngine(error.code, msgspec.json.encode({"error": error}))
    return Unsuitable(ENGINE_ERROR, end=end_of_engine_error(f"{error.type} {error.message}"), failing=True)


def end_of_engine_error(text: str) -> AttemptEnd:
    """Whether the engine died or failed, by the ``text`` of its error."""
    return AttemptEnd.DIED if reports_engine_death(text) else AttemptEnd.FAILED


def no_first_token() -> TimedOut:
    """The worker has the request, and its first token did not come in time. It is not sent again: see Settings."""
    return TimedOut(
        f"The first token did not come in time; the limit is {gateway_limit('first_token_timeout_seconds')} of the "
        "service. The workers are busy, or the prompt takes longer than that; try again later."
    )


def _malformed() -> Unsuitable:
    return Unsuitable("malformed", "an event is not a chunk of a stream", failing=True)


def provenance_of(pick: Pick, response: aiohttp.ClientResponse) -> Provenance:
    """Who answers ``response``, which ``pick`` chose."""
    found = response.headers
    return Provenance(
        worker=found.get(headers.WORKER, pick.worker.name),
        prefill=found.get(headers.PREFILL),
        prefill_reason=found.get(headers.PREFILL_REASON),
        prefill_worker=found.get(headers.PREFILL_WORKER),
    )
