"""What media a body may have that the gateway passes on as it is.

The gateway neither fetches nor names the media of such a body. So there must be nothing in it that the engine fetches:
clients would reach whatever the engine reaches. Nor may a client name a medium: an engine caches media under their
``uuid`` for all clients.
"""

from collections.abc import Iterator
from typing import Any, Final, NamedTuple

from pointsman.gateway.errors import RequestInvalid

_MEDIA: Final = frozenset(
    {"image_url", "input_image", "video_url", "input_video", "audio_url", "input_audio", "file_url"}
    | {"image", "video", "audio", "file", "input_file", "document", "computer_screenshot"}
)
"""Types of media parts, and the fields in which media stand: OpenAI's, Anthropic's and vLLM's own."""

_AMBIGUOUS_FIELDS: Final = frozenset({"image", "video", "audio", "file", "document"})
"""Of these, words that are a field of other objects too; such an object is a medium by its type only."""

_FIELDS_WITHOUT_PARTS: Final = frozenset(
    {"tools", "tool_choice", "arguments", "metadata", "text", "response_format", "structured_outputs"}
    | {"output_config", "output_format", "chat_template_kwargs"}
)
"""Fields whose content is no part of a message: it is schemas, arguments and the like, with fields of any name."""

_URL_FIELDS: Final = ("url", "file_url", "image_url")
_MAX_PATH: Final = 200  # characters of a field's path in an error


class _Place(NamedTuple):
    """A list or an object, and where it is in its parent. Its path is only written for an error."""

    value: Any
    key: str | int
    parent: "_Place | None"

    @property
    def path(self) -> str:
        keys = []
        place: _Place | None = self
        while place is not None:
            keys.append(f"[{place.key}]" if isinstance(place.key, int) else f".{place.key[:_MAX_PATH]}")
            place = place.parent
        return "".join(reversed(keys))[1 : _MAX_PATH + 1]


def refuse_media(body: dict[str, Any]) -> None:
    """Raises RequestInvalid, which names the field, for media that only ``/v1/chat/completions`` may have.

    These are a client's own name of a medium, an embedding in place of one, and a URL that is no data URL.
    """
    for place in _objects(body):
        part = place.value
        kind = part.get("type") if isinstance(part.get("type"), str) else ""
        embeddings = [name for name in (kind, *part) if name.endswith("_embeds") or name == "image_pil"]
        for name in embeddings:
            if name == kind or part[name] is not None:
                at = place.path
                raise RequestInvalid(
                    f"'{at}' is {name[:40]!r}, which is not accepted: send the text or the medium itself.", param=at
                )
        if kind not in _MEDIA and not embeddings and (_MEDIA - _AMBIGUOUS_FIELDS).isdisjoint(part):
            continue
        if part.get("uuid") is not None:
            at = f"{place.path}.uuid"
            raise RequestInvalid(f"'{at}' is not accepted: the service names media itself.", param=at)
        for name, url in _urls(part):
            if not isinstance(url, str) or url[:5].lower() != "data:":
                at = f"{place.path}.{name}"
                raise RequestInvalid(
                    f"The URL in '{at}' is not a data URL, and media are not fetched for this endpoint. "
                    "Send a data URL, or send the image to /v1/chat/completions.",
                    param=at,
                )


def _objects(body: dict[str, Any]) -> Iterator[_Place]:
    """All objects in ``body`` that may be parts of a message, in order, whatever their depth."""
    places = _inside(_Place(body, "", None), top=True)
    while places:
        place = places.pop()
        if isinstance(place.value, dict):
            yield place
        places += _inside(place)


def _inside(place: _Place, *, top: bool = False) -> list[_Place]:
    """The lists and objects in that of ``place``, the last one first."""
    value, parent = place.value, None if top else place
    if isinstance(value, list):
        found = [_Place(each, number, parent) for number, each in enumerate(value) if type(each) in (list, dict)]
    else:
        # What a model calls a tool with has fields of any name.
        call = not top and value.get("type") in ("tool_use", "server_tool_use")
        found = [
            _Place(each, name, parent)
            for name, each in value.items()
            if type(each) in (list, dict) and name not in _FIELDS_WITHOUT_PARTS and not (call and name == "input")
        ]
    found.reverse()
    return found


def _urls(part: dict[str, Any]) -> Iterator[tuple[str, object]]:
    """What stands in the media part ``part`` where a URL may, with the name of its field."""
    for name, value in part.items():
        if isinstance(value, dict) and (name in _MEDIA or name == "source"):
            yield from ((f"{name}.{key}", url) for key in _URL_FIELDS if (url := value.get(key)) is not None)
        elif value is not None and (name in _MEDIA or name == "url"):
            yield name, value
