"""One attempt at an answer: the open stream of one worker, and why an attempt failed."""

from dataclasses import dataclass

import aiohttp
import msgspec

from pointsman.api.protocol import headers
from pointsman.gateway.core.sse import EngineError, EventSplitter, MalformedEvent, Step, Translator
from pointsman.gateway.errors import RefusedByEngine
from pointsman.gateway.fleet import Pick


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
    """This attempt failed: try another worker. ``reason`` is a metric label; ``suspect``: avoid the worker a while."""

    def __init__(self, reason: str, detail: str = "", *, suspect: bool = False) -> None:
        super().__init__(detail or reason)
        self.reason = reason
        self.suspect = suspect


class LiveStream:
    """An open stream of one worker. ``pull`` until ``ended``; ``close`` in any case.

    ``hold_usage``: the event that only brings usage is kept in ``usage`` and not passed on. ``sampled`` are the token
    ids so far, of which the first ``settled`` are in the text that was handed out.
    """

    def __init__(
        self, pick: Pick, response: aiohttp.ClientResponse, translator: Translator, *, hold_usage: bool
    ) -> None:
        self.provenance = provenance_of(pick, response)
        self.worker_key = pick.worker.key
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

    async def pull(self) -> tuple[bytes, int]:
        """Bytes for the client from one read of the network, and the tokens in them.

        Raises RefusedByEngine or Unsuitable; what came before a failure in the same read is returned first.
        """
        if self._failure is not None:
            raise self._failure
        try:
            received = await self._content.readany()
        except TimeoutError as error:
            raise Unsuitable("inactive", "nothing arrived for too long", suspect=True) from error
        except (aiohttp.ClientError, OSError) as error:
            raise Unsuitable("worker-died", f"{type(error).__name__}: {error}", suspect=True) from error
        if not received:
            raise Unsuitable("worker-died", "the stream ended without [DONE]", suspect=True)
        out = bytearray()
        tokens = 0
        for event in self._splitter.feed(received):
            try:
                step = self.translator.read(event)
                self._check(step)
            except (MalformedEvent, Unsuitable, RefusedByEngine) as error:
                failure = Unsuitable("malformed", str(error)) if isinstance(error, MalformedEvent) else error
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
            raise engine_failed(step.error)
        if step.finish_reason == "abort":
            raise Unsuitable("engine-aborted")


def engine_failed(error: EngineError) -> Exception:
    """RefusedByEngine where another worker would refuse too, else Unsuitable."""
    if error.is_clients and isinstance(error.code, int):
        return RefusedByEngine(error.code, msgspec.json.encode({"error": error}))
    return Unsuitable("engine-error", error.message)


def provenance_of(pick: Pick, response: aiohttp.ClientResponse) -> Provenance:
    """Who answers ``response``, which ``pick`` chose."""
    found = response.headers
    return Provenance(
        worker=found.get(headers.WORKER, pick.worker.name),
        prefill=found.get(headers.PREFILL),
        prefill_reason=found.get(headers.PREFILL_REASON),
        prefill_worker=found.get(headers.PREFILL_WORKER),
    )
