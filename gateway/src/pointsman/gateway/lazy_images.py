"""Makes the service for images with the first image: a service of texts imports and holds nothing of it."""

import asyncio
import time
from collections.abc import Callable
from importlib import import_module
from typing import TYPE_CHECKING

import aiohttp

from pointsman.gateway.departures import Departures
from pointsman.gateway.fleet import Fleet
from pointsman.gateway.metrics import GatewayMetrics
from pointsman.gateway.off_loop import OffLoop
from pointsman.gateway.settings import Settings

if TYPE_CHECKING:
    from pointsman.gateway.images.request_images import ImageService

IsAllowed = Callable[[str], bool]


class LazyImages:
    """``service`` makes it or gives it; ``close`` in the end."""

    def __init__(
        self,
        fleet: Fleet,
        session: aiohttp.ClientSession,
        departures: Departures,
        off_loop: OffLoop,
        metrics: GatewayMetrics,
        settings: Settings,
        is_allowed: IsAllowed | None,
    ) -> None:
        self._fleet = fleet
        self._session = session
        self._departures = departures
        self._off_loop = off_loop
        self._metrics = metrics
        self._settings = settings
        self._is_allowed = is_allowed
        self._making = asyncio.Lock()
        self._service: ImageService | None = None

    async def service(self) -> "ImageService":
        """The process's service for images. Its import takes 15 ms, so it is not done on the loop."""
        async with self._making:
            if self._service is None:
                await asyncio.to_thread(import_module, "pointsman.gateway.images.request_images")
                self._service = self._make()
        return self._service

    async def close(self) -> None:
        """End all fetches."""
        if self._service is not None:
            await self._service.close()

    def _make(self) -> "ImageService":
        from pointsman.gateway.core.embedding_book import EmbeddingBook
        from pointsman.gateway.core.image_limits import ImageLimits
        from pointsman.gateway.core.public_addresses import is_public
        from pointsman.gateway.images.encoding import EncodeDispatcher
        from pointsman.gateway.images.fetching import ImageFetcher
        from pointsman.gateway.images.request_images import ImageService

        settings = self._settings
        limits = ImageLimits(
            max_images=settings.max_images,
            max_bytes=settings.max_image_mib * 2**20,
            max_pixels=settings.max_image_megapixels * 10**6,
            domains=settings.image_allowed_domains,
            fetch_timeout_seconds=settings.image_fetch_timeout_seconds,
            max_redirects=settings.image_max_redirects,
            max_body_bytes=settings.max_body_mib * 2**20,
        )
        dispatcher = EncodeDispatcher(
            self._fleet,
            self._session,
            self._departures,
            self._off_loop,
            self._metrics,
            time.monotonic,
            EmbeddingBook(settings.encode_cache_mib * 2**20),
            connect_timeout_seconds=settings.connect_timeout_seconds,
        )
        return ImageService(
            fleet=self._fleet,
            fetcher=ImageFetcher(limits, self._off_loop, is_allowed=self._is_allowed or is_public),
            dispatcher=dispatcher,
            off_loop=self._off_loop,
            metrics=self._metrics,
            limits=limits,
            bypass_below_tokens=settings.encode_bypass_below_tokens,
        )
