"""Has encode workers compute the embeddings of images, and uses what they answered again.

An image that no encode worker encodes in time is encoded by the worker that prefills. Encode workers that die of a
request count among the workers that it killed, and it is not sent to another one after the last.
"""

import asyncio
import logging
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Final

import aiohttp

from pointsman.api.protocol import headers
from pointsman.gateway.core.embedding_book import EmbeddingBook
from pointsman.gateway.core.encode_body import (
    MAX_ENCODED_BYTES,
    EncodedMalformed,
    embedding_key,
    encode_body,
    read_encoded,
)
from pointsman.gateway.core.moves import RequestMoves
from pointsman.gateway.departures import Departures
from pointsman.gateway.first_token_deadline import DEADLINE
from pointsman.gateway.fleet import EncoderPick, Fleet
from pointsman.gateway.images.loading import Image
from pointsman.gateway.large_body import in_pieces
from pointsman.gateway.metrics import GatewayMetrics, ImagePath
from pointsman.gateway.off_loop import OffLoop
from pointsman.gateway.tracing import to_worker
from pointsman.gateway.types import WorkerKey
from pointsman.serving.engine_death import reports_engine_death

log = logging.getLogger(__name__)

CHAT_PATH: Final = "/v1/chat/completions"
MAX_TRIES: Final = 3
"""Encode workers that are tried for one image."""

MAX_ATTEMPT_S: Final = 30.0
"""Longest wait for one encode worker, its queue included."""

DEADLINE_SHARE: Final = 0.5
"""Of the time until the first token; the rest is for encoding and prefilling without an encode worker."""


class EncodeFailed(Exception):
    """One attempt failed. ``reason`` is a metric label; ``final``: another worker would answer the same.

    ``died``: the worker, or its engine, died while it had the image.
    """

    def __init__(
        self,
        reason: str,
        *,
        failing: bool = False,
        unreachable: bool = False,
        final: bool = False,
        died: bool = False,
    ) -> None:
        super().__init__(reason)
        self.reason = reason
        self.failing = failing or unreachable
        self.unreachable = unreachable
        self.final = final
        self.died = died


@dataclass(frozen=True, slots=True)
class Encoded:
    """What became of one image: its ``ec_transfer_params`` (JSON), empty where the prefilling worker encodes it.

    ``reason`` says why, a metric label.
    """

    path: ImagePath
    reason: str
    params: bytes = b""


class EncodeDispatcher:
    """One per process."""

    def __init__(
        self,
        fleet: Fleet,
        session: aiohttp.ClientSession,
        departures: Departures,
        off_loop: OffLoop,
        metrics: GatewayMetrics,
        clock: Callable[[], float],
        book: EmbeddingBook,
        *,
        connect_timeout_seconds: float,
    ) -> None:
        self._fleet = fleet
        self._session = session
        self._departures = departures
        self._off_loop = off_loop
        self._metrics = metrics
        self._clock = clock
        self._book = book
        self._timeout = aiohttp.ClientTimeout(total=None, sock_connect=connect_timeout_seconds)

    def remembered(self, image: Image, request_body: Mapping[str, Any]) -> Encoded | None:
        """An earlier answer for ``image`` that may be used again; None: it has to be encoded."""
        found = self._book.find(embedding_key(image.id, request_body), self._fleet.has_encoder)
        if found is None or not found.is_fresh(self._clock()):
            return None
        return Encoded(ImagePath.CACHE, "remembered", found.params)

    async def encode(
        self, image: Image, moves: RequestMoves, request_id: str, model: str, request_body: Mapping[str, Any]
    ) -> Encoded:
        """Have ``image`` encoded. ``model``: the served name; ``request_body``: fields of the client's body.

        ``moves``: of the request. Encode workers that die are added.
        """
        with self._metrics.encode_in_flight.track_inprogress():
            return await self._encode(image, moves, request_id, model, request_body)

    async def _encode(
        self, image: Image, moves: RequestMoves, request_id: str, model: str, request_body: Mapping[str, Any]
    ) -> Encoded:
        deadline = DEADLINE.get()
        left_s = MAX_TRIES * MAX_ATTEMPT_S if deadline is None else deadline.left_ms / 1000 * DEADLINE_SHARE
        due_s = self._clock() + left_s
        avoid: set[WorkerKey] = set()
        reason = "no-encode-worker"
        key = embedding_key(image.id, request_body)
        body: bytes | None = None
        while len(avoid) < MAX_TRIES and not moves.killed:
            left_s = min(due_s - self._clock(), MAX_ATTEMPT_S)
            if left_s <= 0:
                return Encoded(ImagePath.LOCAL, "timed-out")
            known = self._book.find(key, self._fleet.has_encoder)
            holder = known.worker if known is not None else None
            pick = self._fleet.pick_encoder(image.id, image.tokens, holder=holder, avoid=avoid)
            if pick is None:
                break
            try:
                if body is None:
                    body = await self._off_loop.run(
                        len(image.data_url), lambda: encode_body(model, image.id, image.data_url, request_body)
                    )
                params = await self._attempt(pick, body, request_id, left_s)
            except EncodeFailed as error:
                reason = error.reason
                self._failed(pick, image, request_id, error)
                avoid.add(pick.worker.key)
                if error.died:
                    moves.died[pick.worker.key] = pick.worker.name
                if error.final:
                    break
            else:
                self._fleet.answered(pick.worker.key)
                self._book.add(key, pick.worker.key, params, image.tokens, self._clock())
                return Encoded(ImagePath.ENCODE, "encoded", params)
            finally:
                pick.entry.end()
        return Encoded(ImagePath.LOCAL, reason)

    def _failed(self, pick: EncoderPick, image: Image, request_id: str, error: EncodeFailed) -> None:
        self._metrics.encode_failed(error.reason)
        if error.unreachable:
            self._book.forget_worker(pick.worker.key)
        if error.failing and self._fleet.failed(pick.worker.key, unreachable=error.unreachable):
            self._metrics.ejected("unreachable" if error.unreachable else "failing")
        log.warning(
            "encoding failed",
            extra={
                "request_id": request_id,
                "image": image.id[:16],
                "worker": pick.worker.name,
                "reason": error.reason,
            },
        )

    async def _attempt(self, pick: EncoderPick, body: bytes, request_id: str, timeout_s: float) -> bytes:
        """The ``ec_transfer_params`` of one encode worker's answer. Raises EncodeFailed."""
        gone = False

        def leave() -> None:
            nonlocal gone
            gone = True
            scope.reschedule(asyncio.get_running_loop().time())

        began_s = self._clock()
        try:
            async with asyncio.timeout(timeout_s) as scope:
                with self._departures.watched(pick.worker, leave):
                    status, refusal, answer = await self._post(pick, body, request_id, timeout_s)
        except TimeoutError as error:
            reason = "worker-gone" if gone else "timed-out"
            raise EncodeFailed(reason, failing=not gone, unreachable=gone) from error
        except (aiohttp.ClientConnectorError, aiohttp.ConnectionTimeoutError) as error:
            raise EncodeFailed("unreachable", unreachable=True) from error
        except (aiohttp.ClientError, OSError) as error:
            raise EncodeFailed("worker-died", unreachable=True, died=True) from error
        if refusal is not None:
            raise EncodeFailed("refused")  # it drains, or has no role yet
        if status != 200:
            # What is wrong with the client's image, the engine that prefills reports to the client.
            raise EncodeFailed(
                f"http-{status}",
                failing=status >= 500,
                final=400 <= status < 500 and status != 429,
                died=status >= 500 and reports_engine_death(answer[:2000].decode("utf-8", "replace")),
            )
        try:
            params = await self._off_loop.run(len(answer), lambda: read_encoded(answer))
        except EncodedMalformed as error:
            raise EncodeFailed("malformed", failing=True) from error
        self._metrics.encode_seconds.observe(self._clock() - began_s)
        return params

    async def _post(
        self, pick: EncoderPick, body: bytes, request_id: str, timeout_s: float
    ) -> tuple[int, str | None, bytes]:
        sent = {"Content-Type": "application/json", headers.REQUEST_ID: request_id, **to_worker()}
        sent[headers.DEADLINE_MS] = str(int(timeout_s * 1000))
        data = in_pieces(body, sent)
        url = pick.worker.url + CHAT_PATH
        async with self._session.post(
            url, data=data, headers=sent, timeout=self._timeout, allow_redirects=False
        ) as response:
            answer = bytearray()
            async for piece in response.content.iter_any():
                answer += piece
                if len(answer) > MAX_ENCODED_BYTES:
                    raise EncodeFailed("malformed", failing=True)
            return response.status, response.headers.get(headers.RETRY), bytes(answer)
