"""Images of chats that the traffic client sends."""

import struct
import zlib
from dataclasses import replace

import pytest

from pointsman.local.traffic import Api, Prompt, png_url, with_images
from pointsman.local.traffic.images import png

CHAT = Prompt(3, Api.CHAT, False, 4, text="what is it?")


@pytest.mark.parametrize(("width", "height"), [(1, 1), (14, 28), (113, 57)])
def test_a_picture_has_the_pixels_that_its_header_says(width: int, height: int) -> None:
    data = png(width, height, seed=1)
    assert data.startswith(b"\x89PNG\r\n\x1a\n")
    assert struct.unpack(">II", data[16:24]) == (width, height)
    length = struct.unpack(">I", data[33:37])[0]
    assert len(zlib.decompress(data[41 : 41 + length])) == height * (1 + 3 * width)


def test_pictures_depend_on_seed_and_size_alone() -> None:
    assert png(28, 28, seed=1) == png(28, 28, seed=1)
    assert len({png_url(side, side, seed=seed) for side in (28, 56) for seed in (1, 2)}) == 4


def test_a_chat_gets_images_of_its_own() -> None:
    asked = [with_images(replace(CHAT, index=index), (56, 56), seed=1) for index in (3, 4)]
    assert len({url for prompt in asked for url in prompt.images}) == 4
    assert all(url.startswith("data:image/png;base64,") for url in asked[0].images)


def test_only_a_chat_has_images() -> None:
    with pytest.raises(ValueError, match="only a chat has images"):
        Prompt(1, Api.COMPLETION, False, 4, text="a", images=("data:",))
