"""Bodies with images: data URLs are put in without encoding them as JSON, and answers of encode workers are read."""

import json
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from pointsman.gateway.core.encode_body import (
    EncodedMalformed,
    ImageSlots,
    embedding_key,
    encode_body,
    merged,
    read_encoded,
    with_embeddings,
)

URLS = [b"data:image/png;base64,AAAA", b"data:image/jpeg;base64,BBBB", b"data:image/png;base64,AAAA"]


@given(st.text(), st.text())
def test_images_are_put_where_they_belong(before: str, between: str) -> None:
    slots = ImageSlots(3)
    parts: list[Any] = [before, slots.part(0, "a"), between, slots.part(1, "b"), slots.part(2, "a")]
    filled = json.loads(slots.filled(msgspec.json.encode({"text": before, "parts": parts}), URLS))
    images = [part for part in filled["parts"] if isinstance(part, dict)]
    assert [part["image_url"]["url"].encode() for part in images] == URLS
    assert [part["uuid"] for part in images] == ["a", "b", "a"]
    assert (filled["text"], filled["parts"][0], filled["parts"][2]) == (before, before, between)


def test_an_encode_worker_gets_one_image_and_the_options_that_change_it() -> None:
    asked = {"mm_processor_kwargs": {"max_pixels": 9}, "temperature": 1, "media_io_kwargs": None}
    body = json.loads(encode_body("m", "a" * 64, URLS[0], asked))
    (message,) = body.pop("messages")
    part = {"type": "image_url", "image_url": {"url": URLS[0].decode()}, "uuid": "a" * 64}
    assert message == {"role": "user", "content": [part]}
    assert body == {"model": "m", "max_tokens": 1, "stream": False, "mm_processor_kwargs": {"max_pixels": 9}}


def test_options_make_another_embedding() -> None:
    plain = embedding_key("a", {"mm_processor_kwargs": None})
    assert plain == embedding_key("a", {}) == "a"
    assert embedding_key("a", {"mm_processor_kwargs": {"x": 1, "y": 2}}) == embedding_key(
        "a", {"mm_processor_kwargs": {"y": 2, "x": 1}}
    )
    assert embedding_key("a", {"mm_processor_kwargs": {"x": 2}}) != plain


def test_the_embeddings_of_all_images_go_into_the_clients_body() -> None:
    one = read_encoded(b'{"choices": [], "ec_transfer_params": {"a": {"address": "h:1", "key": "k"}}}')
    two = read_encoded(b'{"ec_transfer_params": {"b": {"address": "h:2", "key": "l"}}}')
    body = json.loads(with_embeddings(b'{"model":"m","messages":[{}]}', merged([one, two])))
    assert body["ec_transfer_params"] == {"a": {"address": "h:1", "key": "k"}, "b": {"address": "h:2", "key": "l"}}
    assert (body["model"], merged([])) == ("m", b"")


@pytest.mark.parametrize(
    "answer",
    [b"", b"[]", b"{}", b'{"ec_transfer_params": null}', b'{"ec_transfer_params": {}}',
     b'{"ec_transfer_params": {"a": 1}}', b"\xff", b"[" * 5000],
)  # fmt: skip
def test_an_answer_without_embeddings_is_malformed(answer: bytes) -> None:
    with pytest.raises(EncodedMalformed):
        read_encoded(answer)
