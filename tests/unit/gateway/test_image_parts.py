"""Images of a chat are found however they are written, and other media are refused by name."""

from typing import Any

import pytest

from pointsman.gateway.core.image_parts import image_parts
from pointsman.gateway.errors import RequestInvalid

URL = "https://images.example.com/cat.png"


def messages(*parts: Any) -> list[dict[str, Any]]:
    return [{"role": "system", "content": "text"}, {"role": "user", "content": list(parts)}]


@pytest.mark.parametrize(
    "part",
    [
        {"type": "image_url", "image_url": {"url": URL, "detail": "low"}, "uuid": "of-a-client"},
        {"type": "image_url", "image_url": URL},
        {"image_url": {"url": URL}},
        {"image_url": URL},
        {"type": "input_image", "image_url": URL},
        {"type": "input_image", "input_image": URL},
        {"type": None, "image_url": URL},
    ],
)
def test_every_way_to_write_an_image_is_known(part: dict[str, Any]) -> None:
    (found,) = image_parts(messages({"type": "text", "text": "What is this?"}, part))
    assert (found.url, found.param) == (URL, "messages[1].content[1].image_url")


@pytest.mark.parametrize(
    ("part", "named"),
    [
        ({"type": "video_url", "video_url": {"url": URL}}, "video_url"),
        ({"type": "audio_url", "audio_url": {"url": URL}}, "audio_url"),
        ({"type": "input_audio", "input_audio": {"data": "", "format": "wav"}}, "input_audio"),
        ({"video_url": URL}, "video_url"),
        ({"type": "text", "text": "a", "audio_url": URL}, "audio_url"),
        ({"type": "image_url", "image_url": URL, "video_url": URL}, "video_url"),
        ({"type": "image_embeds", "image_embeds": "AAAA"}, "image_embeds"),
        ({"type": "image_pil", "image_pil": {}}, "image_pil"),
        ({"type": "prompt_embeds", "prompt_embeds": "AAAA"}, "prompt_embeds"),
        ({"type": "file", "file": {"file_id": "f"}}, "file"),
    ],
)
def test_other_media_are_refused_by_name(part: dict[str, Any], named: str) -> None:
    with pytest.raises(RequestInvalid, match=named) as refused:
        image_parts(messages("text", part))
    assert refused.value.param == "messages[1].content[1]"


@pytest.mark.parametrize(
    "part",
    [
        {"type": "image_url"},
        {"type": "image_url", "image_url": None, "uuid": "cached-by-another-client"},
        {"type": "image_url", "image_url": {}},
        {"type": "image_url", "image_url": {"url": ""}},
        {"type": "image_url", "image_url": {"url": 5}},
        {"type": "image_url", "image_url": [URL]},
        {"type": "text", "text": "a", "image_url": URL},
        {"type": "text", "text": "a", "image_url": None, "uuid": "cached-by-another-client"},
        {"type": "text", "text": "a", "image_embeds": None, "uuid": "cached-by-another-client"},
        {"uuid": "cached-by-another-client", "image_url": None},
    ],
)
def test_an_image_without_a_url_or_with_another_type_is_the_clients_mistake(part: dict[str, Any]) -> None:
    with pytest.raises(RequestInvalid):
        image_parts(messages(part))


def test_texts_are_no_images() -> None:
    assert image_parts(messages("a", {"type": "text", "text": URL}, {"type": "refusal", "refusal": "no"})) == ()
    assert (
        image_parts(messages({"type": "text", "text": "a", "image_url": None, "video_url": None, "uuid": None})) == ()
    )
    assert image_parts([{"role": "user", "content": "image_url"}, {"role": "assistant", "content": None}]) == ()
