"""Reading what people write by hand: unknown fields are errors, named with path and nearest valid name."""

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from difflib import get_close_matches
from types import UnionType
from typing import Annotated, Any, Final, TypeVar, Union, get_args, get_origin

from pydantic import BaseModel, ValidationError
from pydantic_core import ErrorDetails

from pointsman.api.credentials import mask_credentials
from pointsman.api.schema.rules import reserved_messages
from pointsman.api.v1alpha1.removed import IGNORED

Model = TypeVar("Model", bound=BaseModel)


_MAX_NAME_LENGTH: Final = 253
_NAME: Final = re.compile(r"[a-z0-9]([-a-z0-9]*[a-z0-9])?(\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*")
"""A DNS subdomain, as the API server requires of names. No CEL rule has it, because the API server has it for all."""


class StrictError(ValueError):
    """A document has mistakes. ``problems``: one sentence each, the field's path in front."""

    def __init__(self, problems: Sequence[str]) -> None:
        super().__init__("\n".join(problems))
        self.problems = tuple(problems)


def parse_strictly(model: type[Model], document: Any) -> Model:
    """``document`` as ``model``, refusing fields the model does not have, and a value of another type as the API server
    does: text is no number. Raises StrictError with all mistakes."""
    problems = [*unknown_fields(model, document), *_wrong_name(model, document)]
    try:
        parsed = model.model_validate_json(json.dumps(document), strict=True)
    except ValidationError as error:
        raise StrictError([*problems, *(_sentence(detail) for detail in error.errors())]) from error
    if problems:
        raise StrictError(problems)
    return parsed


def _wrong_name(model: type[BaseModel], document: Any) -> Iterator[str]:
    """A sentence for a name that the API server refuses, if ``model`` is a kind."""
    metadata = document.get("metadata") if "metadata" in model.model_fields and isinstance(document, Mapping) else None
    name = metadata.get("name") if isinstance(metadata, Mapping) else None
    if isinstance(name, str) and not (len(name) <= _MAX_NAME_LENGTH and _NAME.fullmatch(name)):
        yield (
            f"metadata.name: {name!r} is written; write at most {_MAX_NAME_LENGTH} lower-case letters, digits, '-' "
            "and '.', with a letter or digit at both ends of each part between dots"
        )


def unknown_fields(model: type[BaseModel], document: Any) -> list[str]:
    """A sentence for each field of ``document`` that ``model`` does not have: its path, and the nearest there is."""
    return list(_unknown_fields(model, document, ""))


def _unknown_fields(annotation: Any, value: Any, path: str) -> Iterator[str]:
    model = _model_in(annotation)
    if model is not None and isinstance(value, Mapping):
        if model.model_config.get("extra") == "allow" or path == "metadata":
            return
        fields = {field.alias or name: field for name, field in model.model_fields.items()}
        used = [name for name, field in fields.items() if not (field.description or "").startswith(IGNORED)]
        reserved = reserved_messages(model.model_config.get("json_schema_extra"))
        for key, item in value.items():
            where = f"{path}.{key}" if path else str(key)
            if key in fields:
                yield from _unknown_fields(fields[key].annotation, item, where)
            elif key in reserved:
                yield f"{where}: {reserved[key]}"
            else:
                near = get_close_matches(str(key), used, n=1, cutoff=0.5)
                hint = f"did you mean {near[0]}?" if near else f"known here: {', '.join(sorted(used))}"
                yield f"{where}: there is no such field; {hint}"
    elif isinstance(value, list | tuple):
        for number, item in enumerate(value):
            for argument in get_args(annotation):
                yield from _unknown_fields(argument, item, f"{path}[{number}]")


def _model_in(annotation: Any) -> type[BaseModel] | None:
    """The model an annotation such as ``Model``, ``Model | None`` or ``Annotated[Model, …]`` stands for."""
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        return annotation
    if get_origin(annotation) in (Union, UnionType, Annotated):
        return next((model for argument in get_args(annotation) if (model := _model_in(argument))), None)
    return None


def _sentence(detail: ErrorDetails) -> str:
    path = "".join(f"[{part}]" if isinstance(part, int) else f".{part}" for part in detail["loc"]).lstrip(".")
    if detail["type"] == "missing":
        return f"{path}: this field is required"
    message = detail["msg"].removeprefix("Value error, ")
    message = message[0].lower() + message[1:] if message.startswith("Input") else message
    written = detail["input"]
    shown = "" if isinstance(written, Mapping | BaseModel | list) else f"{written!r} is written; "
    return mask_credentials(f"{path}: {shown}{message}")
