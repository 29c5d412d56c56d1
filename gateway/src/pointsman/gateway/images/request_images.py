"""The images of one request: what they are in its body, and where their embeddings come from."""

import asyncio
import time
from collections import Counter
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from pointsman.gateway.core.encode_body import ImageSlots, merged
from pointsman.gateway.core.image_limits import ImageInvalid, ImageLimits
from pointsman.gateway.core.image_parts import ImagePart
from pointsman.gateway.core.in_flight import Place
from pointsman.gateway.core.moves import RequestMoves
from pointsman.gateway.core.requests import MEDIA_OPTIONS, ValidatedRequest
from pointsman.gateway.fleet import Fleet
from pointsman.gateway.images.encoding import Encoded, EncodeDispatcher
from pointsman.gateway.images.fetching import ImageFetcher
from pointsman.gateway.images.loading import Image, load
from pointsman.gateway.metrics import GatewayMetrics, ImagePath
from pointsman.gateway.off_loop import OffLoop
from pointsman.gateway.request_body import no_room
from pointsman.serving.image_tokens import encodes_remotely


@dataclass(slots=True)
class RequestImages:
    """See the module. ``parts``: where they are, without their URLs, which may be megabytes; ``paths``: what became of
    them.
    """

    parts: tuple[ImagePart, ...]
    images: Sequence[Image]
    encode: Callable[["RequestImages", RequestMoves], Awaitable[bytes]]
    count_left_to_worker: Callable[["RequestImages"], None]
    load_s: float
    encode_s: float | None = None
    paths: Counter[str] = field(default_factory=Counter)
    _params: bytes | None = None
    _is_counted: bool = False

    @property
    def tokens(self) -> int:
        """Estimated tokens of all, the same image as often as it occurs."""
        return sum(image.tokens for image in self.images)

    @property
    def distinct(self) -> dict[str, Image]:
        """The images by id, in order."""
        return {image.id: image for image in self.images}

    def slots(self, body: dict[str, Any]) -> ImageSlots:
        """Put marks into the messages of ``body`` where the images go."""
        slots = ImageSlots(len(self.images))
        for number, (part, image) in enumerate(zip(self.parts, self.images, strict=True)):
            body["messages"][part.message]["content"][part.part] = slots.part(number, image.id)
        return slots

    def filled(self, slots: ImageSlots, body: bytes) -> bytes:
        """``body`` with the images at their marks."""
        return slots.filled(body, [image.data_url for image in self.images])

    async def params(self, moves: RequestMoves) -> bytes:
        """JSON of the request's ``ec_transfer_params``; empty: the worker that prefills encodes all its images.

        The same for every attempt: an embedding that is gone meanwhile is computed by the worker that misses it.
        """
        if self._params is None:
            self._params = await self.encode(self, moves)
            self.images = [replace(image, data_url=b"") for image in self.images]  # the body has them
        return self._params

    def leave_to_worker(self) -> None:
        """The worker that gets the request ignores embeddings, so it encodes the images itself. Counted once."""
        if not self._is_counted:
            self._is_counted = True
            self.count_left_to_worker(self)


class ImageService:
    """Loads the images of requests and has them encoded. One per process, made for the first image."""

    def __init__(
        self,
        *,
        fleet: Fleet,
        fetcher: ImageFetcher,
        dispatcher: EncodeDispatcher,
        off_loop: OffLoop,
        metrics: GatewayMetrics,
        limits: ImageLimits,
        bypass_below_tokens: int,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._fleet = fleet
        self._fetcher = fetcher
        self._dispatcher = dispatcher
        self._off_loop = off_loop
        self._metrics = metrics
        self._limits = limits
        self._bypass_below_tokens = bypass_below_tokens
        self._clock = clock

    async def close(self) -> None:
        """End all fetches."""
        await self._fetcher.close()

    async def load(self, request: ValidatedRequest, place: Place, *, request_id: str, model: str) -> RequestImages:
        """The images of ``request``. ``model``: the served name. Raises ImageInvalid or Overloaded."""

        def charge(size_bytes: int) -> None:
            if not place.take_more(size_bytes):
                raise no_room()

        began_s = self._clock()
        try:
            images = await load(
                request.images,
                body_bytes=request.body_bytes,
                limits=self._limits,
                fetcher=self._fetcher,
                off_loop=self._off_loop,
                charge=charge,
                fetched=self._metrics.image_fetch_seconds.observe,
            )
        except ImageInvalid as error:
            self._metrics.image_refused(error.refusal)
            raise
        for image in images:
            self._metrics.image_bytes.inc(image.size_bytes)
        options = {name: request.body.get(name) for name in MEDIA_OPTIONS}

        async def encode(of: RequestImages, moves: RequestMoves) -> bytes:
            return await self._encode(of, moves, request_id, model, options)

        parts = tuple(replace(part, url="") for part in request.images)
        return RequestImages(parts, images, encode, self._count_left_to_worker, self._clock() - began_s)

    async def _encode(
        self, of: RequestImages, moves: RequestMoves, request_id: str, model: str, options: Mapping[str, Any]
    ) -> bytes:
        began_s = self._clock()
        done = await self._embeddings(list(of.distinct.values()), moves, request_id, model, options)
        of.encode_s = self._clock() - began_s
        self._count(of, done)
        return await self._off_loop.run(
            sum(len(encoded.params) for encoded in done),
            lambda: merged([encoded.params for encoded in done if encoded.params]),
        )

    def _count(self, of: RequestImages, done: Sequence[Encoded]) -> None:
        for encoded in done:
            self._metrics.image_went(encoded.path, encoded.reason)
            of.paths[encoded.path] += 1

    def _count_left_to_worker(self, of: RequestImages) -> None:
        images = list(of.distinct.values())
        self._count(
            of, self._without_encode_worker(images) or [Encoded(ImagePath.LOCAL, "outdated-worker")] * len(images)
        )

    def _without_encode_worker(self, images: Sequence[Image]) -> list[Encoded] | None:
        """What becomes of ``images``, all of them different, where no encode worker gets them. None: one may."""
        if not self._fleet.has_encoders:
            return [Encoded(ImagePath.LOCAL, "no-encode-worker")] * len(images)
        if not encodes_remotely(sum(image.tokens for image in images), self._bypass_below_tokens):
            return [Encoded(ImagePath.BYPASS, "small")] * len(images)
        return None

    async def _embeddings(
        self, images: Sequence[Image], moves: RequestMoves, request_id: str, model: str, options: Mapping[str, Any]
    ) -> list[Encoded]:
        """What becomes of each of ``images``, all of them different."""
        if (local := self._without_encode_worker(images)) is not None:
            return local
        known = [self._dispatcher.remembered(image, options) for image in images]
        new = [image for image, found in zip(images, known, strict=True) if found is None]
        if new:
            self._metrics.to_encode(len(new))
        async with asyncio.TaskGroup() as group:
            tasks = [
                group.create_task(self._dispatcher.encode(image, moves, request_id, model, options)) for image in new
            ]
        encoded = iter([task.result() for task in tasks])
        return [found or next(encoded) for found in known]
