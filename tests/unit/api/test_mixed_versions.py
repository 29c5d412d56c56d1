"""Workers and gateways of an earlier version and of this one understand each other during an upgrade or a rollback.

``unit.api.earlier`` is the protocol of the earlier version. A change that fails here would break running services:
make the new field optional, give the new value of an enumeration a place of its own, and keep the old names.
"""

import inspect
import json
from collections.abc import Callable, Iterator, Mapping
from enum import Enum
from types import ModuleType, NoneType
from typing import Any, Final, get_args

import pytest
from pydantic import BaseModel

from pointsman.api.protocol import control, headers, kv, names, prefill
from unit.api.earlier import control as earlier_control
from unit.api.earlier import headers as earlier_headers
from unit.api.earlier import kv as earlier_kv
from unit.api.earlier import names as earlier_names
from unit.api.earlier import prefill as earlier_prefill

PAIRS: Final = (
    (earlier_control, control),
    (earlier_headers, headers),
    (earlier_kv, kv),
    (earlier_names, names),
    (earlier_prefill, prefill),
)
PLAIN: Final[Mapping[type, tuple[Any, ...]]] = {bool: (True, False), int: (1, 7), float: (0.5, 2.0), str: ("a",)}


def values(annotation: Any) -> Iterator[Any]:
    """Values of a field of a message: each of an enumeration, each member of a union, and messages in messages."""
    if annotation is names.Role:
        yield from names.LANGUAGE_ROLES  # Encode is said in services with spec.encode only: no earlier version has them
    elif isinstance(annotation, type) and issubclass(annotation, Enum):
        yield from annotation
    elif isinstance(annotation, type) and issubclass(annotation, BaseModel):
        yield from messages(annotation)
    elif annotation in PLAIN:
        yield from PLAIN[annotation]
    elif annotation is NoneType:
        yield None
    elif annotation is Any:
        yield "anything"
    elif getattr(annotation, "__origin__", None) is dict:
        yield {"key": next(values(get_args(annotation)[1]))}
    elif getattr(annotation, "__origin__", None) is tuple:
        yield tuple(values(get_args(annotation)[0]))
    elif get_args(annotation):
        for member in get_args(annotation):
            yield from values(member)
    else:
        raise AssertionError(f"no values for {annotation}")


def messages(model: type[BaseModel]) -> Iterator[Any]:
    """Messages of a model: with its required fields only, with all fields, and each value of each field."""
    required = {name: next(values(f.annotation)) for name, f in model.model_fields.items() if f.is_required()}
    yield model(**required)
    whole = {name: next(values(field.annotation)) for name, field in model.model_fields.items()}
    yield model(**whole)
    for name, field in model.model_fields.items():
        for value in values(field.annotation):
            if value is not None or not field.is_required():  # None is left out, so a required field never is
                yield model(**whole | {name: value})


def models() -> Iterator[tuple[type[BaseModel], type[BaseModel]]]:
    """Each message of the earlier version beside the present one."""
    for earlier, present in PAIRS:
        for name, model in vars(earlier).items():
            ours = inspect.isclass(model) and model.__module__ == earlier.__name__
            if ours and issubclass(model, earlier_control.Wire) and not name.startswith("_") and name != "Wire":
                yield model, getattr(present, name)


MODELS: Final = tuple(models())


def wire(message: Any) -> bytes:
    """A message as its sender writes it."""
    frame: bytes = message.encode() if hasattr(message, "encode") else message.wire().encode()
    return frame


def read(model: Any, frame: bytes) -> Any:
    """What a receiver makes of it."""
    return model.decode(frame) if hasattr(model, "decode") else model.model_validate_json(frame)


def shared(message: BaseModel, other: type[BaseModel]) -> dict[str, Any]:
    """The fields that both versions have, as JSON: a nested message only as far as both know it."""
    found = message.model_dump(mode="json", by_alias=True, exclude_none=True)
    again = other.model_validate(found).model_dump(mode="json", by_alias=True, exclude_none=True)
    return {key: again[key] for key in found if key in again}


@pytest.mark.parametrize(("earlier", "present"), MODELS, ids=lambda model: model.__name__)
def test_what_an_earlier_version_writes_is_read_by_this_one(earlier: type[BaseModel], present: type[BaseModel]) -> None:
    for message in messages(earlier):
        found = read(present, wire(message))
        assert shared(found, earlier) | json.loads(message.model_dump_json(by_alias=True, exclude_none=True)) == shared(
            found, earlier
        )


@pytest.mark.parametrize(("earlier", "present"), MODELS, ids=lambda model: model.__name__)
def test_what_this_version_writes_is_read_by_an_earlier_one(earlier: type[BaseModel], present: type[BaseModel]) -> None:
    for message in messages(present):
        found = read(earlier, wire(message))
        assert found.model_dump(mode="json", by_alias=True, exclude_none=True) == shared(message, earlier)


def texts(module: ModuleType) -> dict[str, Any]:
    """Paths, headers, labels, ports and names of environment variables: what two versions must spell alike."""
    kinds = (str, int) if module.__name__.endswith("names") else (str,)
    return {name: value for name, value in vars(module).items() if name.isupper() and isinstance(value, kinds)}


@pytest.mark.parametrize(("earlier", "present"), PAIRS, ids=lambda module: module.__name__)
def test_every_name_of_the_wire_is_what_it_was(earlier: ModuleType, present: ModuleType) -> None:
    found = vars(present)
    assert {name: found.get(name) for name in texts(earlier)} == texts(earlier)


SUBJECTS: Final[Mapping[str, tuple[str, ...]]] = {
    "prefill_stream": ("team", "uid-1"),
    "prefill_subjects": ("team", "uid-1"),
    "prefill_subject": ("team", "uid-1", "c0ffee"),
    "prefill_consumer": ("c0ffee",),
    "reply_inbox_prefix": ("team", "uid-1", "chat-1"),
    "prefill_signal_subject": ("team", "uid-1", "c0ffee"),
    "prefill_presence_subject": ("team", "uid-1", "c0ffee"),
    "kv_metrics_subject": ("team", "uid-1", "chat-1"),
}


@pytest.mark.parametrize("subject", SUBJECTS)
def test_streams_and_subjects_are_where_they_were(subject: str) -> None:
    earlier: Callable[..., str] = getattr(earlier_names, subject)
    present: Callable[..., str] = getattr(names, subject)
    assert present(*SUBJECTS[subject]) == earlier(*SUBJECTS[subject])


def test_all_subjects_and_messages_are_compared() -> None:
    made = {name for name, item in vars(earlier_names).items() if inspect.isfunction(item) and not name.startswith("_")}
    assert made - {"address_url"} == set(SUBJECTS)
    assert {"WorkerState", "ModelInfo", "PrefillRequest", "PrefillReply", "KvMetrics", "EndpointsReport"} <= {
        earlier.__name__ for earlier, _present in MODELS
    }
