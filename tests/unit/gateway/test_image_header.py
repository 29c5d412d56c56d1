"""Formats and sizes of images are read from headers, without decoding anything."""

from contextlib import suppress

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fixtures.images import gif, jpeg, png, png_header, webp
from pointsman.gateway.core.image_header import MAX_BLOCKS, ImageHeader, NotAnImage, read_header

SIZES = st.integers(1, 16_383)


@given(SIZES, SIZES)
def test_every_format_has_its_size(width: int, height: int) -> None:
    assert read_header(png_header(width, height)) == ImageHeader("image/png", width, height)
    assert read_header(jpeg(width, height)) == ImageHeader("image/jpeg", width, height)
    assert read_header(gif(width, height)) == ImageHeader("image/gif", width, height)
    for kind in ("VP8X", "VP8 ", "VP8L"):
        assert read_header(webp(width, height, kind)) == ImageHeader("image/webp", width, height), kind


def test_the_largest_size_that_a_decoder_could_allocate_counts() -> None:
    assert read_header(jpeg(9000, 9000, frames=3)).pixels == 81_000_000
    assert read_header(gif(1, 1, frame=(10, 20, 5000, 6000))) == ImageHeader("image/gif", 5010, 6020)
    assert read_header(png_header(2**31 - 1, 2**31 - 1)).pixels > 2**61


@pytest.mark.parametrize("data", [png(), jpeg(9, 9), gif(9, 9), webp(9, 9), webp(9, 9, "VP8 "), webp(9, 9, "VP8L")])
def test_a_file_that_ends_within_its_header_is_no_image(data: bytes) -> None:
    for end in range(len(data)):
        try:
            read_header(data[:end])
        except NotAnImage:
            continue
        break
    assert end > 20, "the header ends here"


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"<svg xmlns='http://www.w3.org/2000/svg'/>",
        b"BM" + bytes(60),
        b"II*\0" + bytes(60),
        png_header(0, 5),
        jpeg(0, 0),
        b"\xff\xd8\xff\xe0\0\0",
        b"GIF89a" + bytes(7) + b"\x3b",
        b"RIFF\0\0\0\0WEBPVP8 " + bytes(30),
    ],
)
def test_what_is_no_image_or_has_no_pixels_is_refused(data: bytes) -> None:
    with pytest.raises(NotAnImage):
        read_header(data)


@given(st.binary(max_size=200), st.sampled_from([png(), jpeg(9, 9), gif(9, 9), webp(9, 9)]), st.integers(0, 40))
def test_any_bytes_are_an_image_or_none(noise: bytes, image: bytes, cut: int) -> None:
    for data in (noise, image[:cut] + noise):
        with suppress(NotAnImage):
            assert read_header(data).pixels > 0


def test_files_of_endless_small_blocks_are_given_up_soon() -> None:
    head = b"GIF89a" + bytes(7)
    for data in (b"\xff\xd8" + b"\xff\xe0\0\2" * (2 * MAX_BLOCKS), head + b"\x21\xfe" + b"\1x" * (2 * MAX_BLOCKS)):
        with pytest.raises(NotAnImage, match="more than"):
            read_header(data)
