"""Reads the body of a client's request, bounded in size, time and structure."""

import asyncio

from aiohttp import web
from aiohttp.http_exceptions import HttpProcessingError

from pointsman.api.v1alpha1.limits import gateway_limit
from pointsman.gateway.core.in_flight import Place
from pointsman.gateway.core.json_body import Structure
from pointsman.gateway.errors import BodyTooLarge, BodyTooSlow, BodyUnreadable, Overloaded
from pointsman.gateway.large_body import ArrivingBody
from pointsman.gateway.off_loop import OffLoop

_PIECE_BYTES = 2**17  # counting the structure of so much takes 5 ms at most, of nothing but quotes


async def read_body(
    request: web.Request, place: Place, off_loop: OffLoop, *, max_bytes: int, timeout_seconds: float
) -> bytes:
    """The whole body, decompressed. ``place`` is charged for what has arrived: a length is announced for nothing.

    Raises BodyTooLarge, BodyTooSlow, Overloaded when the bodies of all requests take too much, and RequestInvalid.
    """
    announced = request.content_length or 0
    if announced > max_bytes:
        raise BodyTooLarge(max_bytes)
    if not place.has_room_for(announced):
        raise no_room()
    body, structure = ArrivingBody(), Structure(max_bytes)
    try:
        async with asyncio.timeout(timeout_seconds):
            while piece := await request.content.readany():
                if body.size_bytes + len(piece) > max_bytes:
                    raise BodyTooLarge(max_bytes)
                body.add(piece)
                for start in range(0, len(piece), _PIECE_BYTES):
                    structure.feed(piece[start : start + _PIECE_BYTES])
                if not place.take(body.size_bytes + structure.decoded_bytes):
                    raise no_room()
    except TimeoutError as error:
        raise BodyTooSlow(
            f"The request body did not arrive within {timeout_seconds:g} s; "
            f"the limit is {gateway_limit('body_timeout_seconds')} of the service."
        ) from error
    except (web.RequestPayloadError, HttpProcessingError) as error:
        raise BodyUnreadable(
            "The request body is incomplete, or does not match its headers Content-Length, Transfer-Encoding and "
            "Content-Encoding."
        ) from error
    return await body.whole(off_loop)


def no_room() -> Overloaded:
    """The bodies and images of all requests take too much."""
    return Overloaded(
        "The requests in this gateway use all the memory that is allowed for their bodies and images; "
        f"the limit is {gateway_limit('max_in_flight_mib')} of the service. Try again later.",
        reason="overloaded",
        retry_after_seconds=1,
    )
