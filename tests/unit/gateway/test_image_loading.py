"""Data URLs become images: decoded in pieces, named by their content, within limits."""

import base64
import hashlib

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fixtures.images import data_url, png
from pointsman.gateway.core.image_limits import ImageInvalid, ImageLimits, ImageRefusal
from pointsman.gateway.core.image_parts import ImagePart
from pointsman.gateway.images.fetching import ImageFetcher
from pointsman.gateway.images.loading import PIECE_BYTES, Image, _decoded, load
from pointsman.gateway.off_loop import OffLoop

LIMITS = ImageLimits(
    max_images=3,
    max_bytes=2**20,
    max_pixels=10**6,
    domains=(),
    fetch_timeout_seconds=1,
    max_redirects=0,
    max_body_bytes=2**21,
)


async def loaded(*urls: str) -> list[Image]:
    off_loop = OffLoop()
    fetcher = ImageFetcher(LIMITS, off_loop)
    parts = [ImagePart(0, number, url) for number, url in enumerate(urls)]
    try:
        return await load(
            parts, body_bytes=0, limits=LIMITS, fetcher=fetcher, off_loop=off_loop, charge=lambda _bytes: None
        )
    finally:
        await fetcher.close()
        off_loop.close()


@pytest.mark.parametrize("more", [0, 1, 2, PIECE_BYTES - 100, PIECE_BYTES, PIECE_BYTES + 1, 4 * PIECE_BYTES + 2])
async def test_an_image_of_any_size_keeps_its_bytes(more: int) -> None:
    data = png() + bytes(more)
    (image,) = await loaded(data_url(data, "text/plain"))
    assert image.data_url.decode() == data_url(data)
    assert (image.id, image.size_bytes, image.tokens) == (hashlib.sha256(data).hexdigest(), len(data), 1)


@pytest.mark.parametrize(
    ("url", "refusal"),
    [
        ("data:image/png;base64,", ImageRefusal.NOT_AN_IMAGE),
        ("data:image/png;base64,AAA", ImageRefusal.BAD_URL),
        ("data:image/png;base64,AA AA", ImageRefusal.BAD_URL),
        ("data:image/png;base64,éé", ImageRefusal.BAD_URL),
        ("data:image/png;base64,\ud800", ImageRefusal.BAD_URL),
        ("data:image/png,AAAA", ImageRefusal.BAD_URL),
        ("data:" + "x" * 9999, ImageRefusal.BAD_URL),
        (data_url(bytes(2**20 + 1)), ImageRefusal.TOO_LARGE),
        (data_url(bytes(2**20)), ImageRefusal.NOT_AN_IMAGE),
        (data_url(png(1001, 1000)), ImageRefusal.TOO_MANY_PIXELS),
    ],
)
async def test_what_is_wrong_with_a_data_url_is_named(url: str, refusal: ImageRefusal) -> None:
    with pytest.raises(ImageInvalid) as refused:
        await loaded(data_url(png()), url)
    assert refused.value.refusal is refusal
    assert refused.value.param == "messages[0].content[1].image_url"


async def test_more_images_than_a_request_may_have_are_refused_before_anything_is_read() -> None:
    with pytest.raises(ImageInvalid, match=r"4 images; at most 3 .*spec\.multimodal\.maxImages"):
        await loaded(*["not even a URL"] * 4)


@given(st.text(alphabet=st.sampled_from("ABCDabcd+/=\n é"), max_size=40))
def test_base64_is_taken_exactly_where_python_takes_it(text: str) -> None:
    """Of texts without padding inside, which cut pieces would not see."""
    try:
        right: bytes | None = base64.b64decode(text, validate=True) if text.isascii() else None
    except ValueError:
        right = None
    try:
        found: bytes | None = _decoded(ImagePart(0, 0, "data:;base64," + text), LIMITS)
    except ImageInvalid:
        found = None
    assert found == right or (found is None and right is not None and "=" in text)


def test_a_stand_in_has_the_tokens_of_its_image() -> None:
    image = Image(hashlib.sha256(b"a").hexdigest(), b"", 0, 21)
    assert len(image.stand_in) == 21
    assert all(0 <= token < 2**32 for token in image.stand_in)
