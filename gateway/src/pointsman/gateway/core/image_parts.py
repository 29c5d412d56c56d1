"""The media parts of a chat's messages: where its images are, and which other media are refused.

Every way in which vLLM takes an image from a message is recognised, because an image that is overlooked here would be
fetched by the engine, without the gateway's limits.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final

from pointsman.gateway.errors import RequestInvalid

_IMAGE_KINDS: Final = ("image_url", "input_image")
_REFUSED_KINDS: Final[dict[str, str]] = {
    "video_url": "a video",
    "input_video": "a video",
    "video": "a video",
    "video_embeds": "a video embedding",
    "audio_url": "audio",
    "input_audio": "audio",
    "audio": "audio",
    "audio_embeds": "an audio embedding",
    "image_pil": "an image object",
    "image_embeds": "an image embedding",
    "prompt_embeds": "a prompt embedding",
    "file": "a file",
    "input_file": "a file",
}


@dataclass(frozen=True, slots=True)
class ImagePart:
    """An image: ``messages[message].content[part]``, and its ``url`` as the client wrote it."""

    message: int
    part: int
    url: str

    @property
    def param(self) -> str:
        """The field, for an error."""
        return f"messages[{self.message}].content[{self.part}].image_url"


def image_parts(messages: Sequence[dict[str, Any]]) -> tuple[ImagePart, ...]:
    """The images of checked ``messages``, in order. Raises RequestInvalid for other media, by name."""
    found = []
    for number, message in enumerate(messages):
        content = message.get("content")
        if isinstance(content, list):
            for place, part in enumerate(content):
                if isinstance(part, dict) and (image := _image(part, number, place)) is not None:
                    found.append(image)
    return tuple(found)


def _image(part: dict[str, Any], message: int, place: int) -> ImagePart | None:
    at = f"messages[{message}].content[{place}]"
    kind = part.get("type")
    for name in (kind if isinstance(kind, str) else "", *part):
        if name in _REFUSED_KINDS and (name == kind or part[name] is not None):
            raise RequestInvalid(
                f"'{at}' is {_REFUSED_KINDS[name]} ({name}); the service accepts text and images ('image_url') only.",
                param=at,
            )
    value = next((part[name] for name in _IMAGE_KINDS if part.get(name) is not None), None)
    if kind not in _IMAGE_KINDS and value is None:
        if part.get("uuid") is not None:  # an engine would take what another client sent under this name
            raise RequestInvalid(f"'{at}.uuid' is not accepted: the service names images itself.", param=f"{at}.uuid")
        return None
    if isinstance(kind, str) and kind not in _IMAGE_KINDS:
        raise RequestInvalid(
            f"'{at}' has an image and the type {kind!r}; the type of an image is 'image_url'.", param=f"{at}.type"
        )
    url = value.get("url") if isinstance(value, dict) else value
    if not isinstance(url, str) or not url:
        raise RequestInvalid(
            f"'{at}.image_url' has no 'url'; give an https, http or data URL of an image.", param=f"{at}.image_url"
        )
    return ImagePart(message, place, url)
