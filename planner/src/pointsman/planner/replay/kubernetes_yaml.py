"""YAML and JSON files of Kubernetes objects, read as ``kubectl apply`` reads them.

One file may hold several documents and lists of objects. Scalars are what kubectl makes of them: ``1e3`` is a number, a
date is text, ``8.0`` is 8. A field that is null counts as not written, as the API server prunes it before it applies
defaults. A key that is written twice is an error, although kubectl takes the last: a person cannot have meant both.
"""

import json
import math
import re
from collections.abc import Iterator, Mapping
from typing import Any, Final

import yaml

MAX_NODES: Final = 100_000  # of one file, aliases counted as often as they are used: etcd takes objects of 1.5 MB
LARGEST_EXACT_INTEGER: Final = 2**53
_TEMPLATE: Final = re.compile(r"\{\{[-\s]*[.$\w(\"/*]")  # {{ .Values.x }}, {{- if …, {{ include "x" . }}
_MARKS: Final = ((b"\xef\xbb\xbf", "utf-8-sig"), (b"\xff\xfe", "utf-16"), (b"\xfe\xff", "utf-16"))
# PyYAML raises these beside its own: for a number of 5 000 digits, and for a tag such as !!bool that does not fit.
_MALFORMED: Final = (yaml.YAMLError, ValueError, OverflowError, LookupError, AttributeError, TypeError)


class Unreadable(ValueError):
    """The file holds no Kubernetes objects; the message is one sentence that says where and why."""


def read_objects(content: bytes) -> list[dict[str, Any]]:
    """Every object of a file, the items of lists one by one. Raises Unreadable."""
    text = _decoded(content)
    try:
        documents = _json_documents(text) if text.lstrip().startswith("{") else None
        if documents is None:
            documents = list(yaml.load_all(text, _KubernetesLoader))
        budget = [MAX_NODES]
        objects = [_normalised(made, budget) for made in documents if made is not None]
    except RecursionError:
        raise Unreadable("it is nested too deeply") from None
    except _MALFORMED as error:
        raise Unreadable(f"it is no YAML: {_sentence(error)}{template_hint(text)}") from None
    return [item for made in objects for item in _items(made)]


def read_value(text: str) -> Any:
    """One value as it would stand in a file. Raises Unreadable."""
    try:
        return _normalised(yaml.load(text, _KubernetesLoader), [MAX_NODES])
    except RecursionError:
        raise Unreadable("it is nested too deeply") from None
    except _MALFORMED as error:
        raise Unreadable(f"it is no YAML: {_sentence(error)}") from None


def template_hint(text: str) -> str:
    """What to do about a file with template actions in it; empty where there are none."""
    if _TEMPLATE.search(text) is None:
        return ""
    return "; the file is a Helm template: render it first, with 'helm template'"


def decoded_or_empty(content: bytes) -> str:
    """The file as text, for :func:`template_hint`; empty where it is none."""
    try:
        return _decoded(content)
    except Unreadable:
        return ""


def _decoded(content: bytes) -> str:
    encoding = next((name for mark, name in _MARKS if content.startswith(mark)), "utf-8")
    try:
        return content.decode(encoding)
    except UnicodeDecodeError as error:
        line = content.count(b"\n", 0, error.start) + 1
        name = {"utf-8-sig": "UTF-8"}.get(encoding, encoding.upper())
        raise Unreadable(
            f"it is no {name} text: byte {error.start + 1} (line {line}) is not; save it as UTF-8"
        ) from None


def _json_documents(text: str) -> list[Any] | None:
    """The JSON documents that stand one after the other; None if it is no JSON, but perhaps YAML in braces."""
    decoder = json.JSONDecoder(object_pairs_hook=_unique)
    documents: list[Any] = []
    at = len(text) - len(text.lstrip())
    while at < len(text):
        try:
            made, at = decoder.raw_decode(text, at)
        except json.JSONDecodeError:
            return None
        documents.append(made)
        at += len(text[at:]) - len(text[at:].lstrip())
    return documents


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    made: dict[str, Any] = {}
    for key, value in pairs:
        if key in made:
            raise ValueError(f"'{key}' is written twice")
        made[key] = value
    return made


def _items(made: Any) -> Iterator[dict[str, Any]]:
    if not isinstance(made, dict):
        raise Unreadable(f"a document in it is {_kind(made)}, not an object{_array_hint(made)}")
    kind, items = made.get("kind"), made.get("items")
    if isinstance(kind, str) and kind.endswith("List") and isinstance(items, list):
        for item in items:
            yield from _items(item)
    else:
        yield made


def _array_hint(made: Any) -> str:
    return "; kubectl takes several as 'kind: List' or between lines of '---'" if isinstance(made, list) else ""


def _kind(made: Any) -> str:
    if isinstance(made, str):
        return "the text " + repr(made if len(made) <= 40 else made[:40] + "…")
    return {list: "a list", bool: "true or false"}.get(type(made), "a number")


def _normalised(value: Any, budget: list[int]) -> Any:
    budget[0] -= 1
    if budget[0] < 0:
        raise ValueError(f"it has more than {MAX_NODES} values, aliases counted as often as they are used")
    if isinstance(value, Mapping):
        return {_key(key): _normalised(item, budget) for key, item in value.items() if item is not None}
    if isinstance(value, list):
        return [_normalised(item, budget) for item in value]
    if isinstance(value, float):
        if not math.isfinite(value):
            raise ValueError(f"{value} is no number that JSON has")
        return int(value) if value.is_integer() and abs(value) < LARGEST_EXACT_INTEGER else value
    if value is None or isinstance(value, str | int):
        return value
    raise ValueError(f"a value of type {type(value).__name__} is none that JSON has")


def _key(key: Any) -> str:
    if isinstance(key, str):
        return key
    return str(key).lower() if isinstance(key, bool) else str(key)


def _sentence(error: Exception) -> str:
    if isinstance(error, yaml.MarkedYAMLError) and error.problem:
        mark = error.problem_mark
        where = f"line {mark.line + 1}, column {mark.column + 1}: " if mark is not None else ""
        return where + " ".join(error.problem.split())
    return " ".join(str(error).split())


class _KubernetesLoader(yaml.SafeLoader):
    """YAML's scalars as kubectl's parser resolves them, and no key twice."""

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Any, Any]:
        if not isinstance(node, yaml.MappingNode):
            return super().construct_mapping(node, deep)  # which refuses it
        seen: set[Any] = set()
        for key_node, _ in node.value:
            if key_node.tag == "tag:yaml.org,2002:merge":
                continue
            if not isinstance(key_node, yaml.ScalarNode):
                raise yaml.MarkedYAMLError(
                    None, None, "a key is not a word but a list or an object", key_node.start_mark
                )
            key = self.construct_object(key_node, deep=True)
            if key in seen:
                raise yaml.MarkedYAMLError(None, None, f"'{key}' is written twice", key_node.start_mark)
            seen.add(key)
        return super().construct_mapping(node, deep)


_KubernetesLoader.yaml_implicit_resolvers = {}  # none of PyYAML's
for _tag, _pattern, _first in (
    ("bool", r"true|True|TRUE|false|False|FALSE|yes|Yes|YES|no|No|NO|on|On|ON|off|Off|OFF", "tTfFyYnNoO"),
    ("int", r"[-+]?(?:0b[01_]+|0x[0-9a-fA-F_]+|0o?[0-7_]+|0|[1-9][0-9_]*)", "-+0123456789"),
    (
        "float",
        r"[-+]?(?:\.[0-9]+|[0-9]+(?:\.[0-9]*)?)(?:[eE][-+]?[0-9]+)?|[-+]?\.(?:inf|Inf|INF)|\.(?:nan|NaN|NAN)",
        "-+.0123456789",
    ),
    ("merge", "<<", "<"),
    ("null", r"~|null|Null|NULL|", "~nN"),
):
    _KubernetesLoader.add_implicit_resolver(
        f"tag:yaml.org,2002:{_tag}", re.compile(f"^(?:{_pattern})$"), [*_first, *([""] if _tag == "null" else [])]
    )


def _integer(loader: yaml.SafeLoader, node: yaml.ScalarNode) -> int:
    text = loader.construct_scalar(node).replace("_", "")
    sign = -1 if text.startswith("-") else 1
    digits = text.lstrip("+-")
    if re.fullmatch("0[0-7]+", digits):
        digits = f"0o{digits[1:]}"
    return sign * int(digits, 0)


_KubernetesLoader.add_constructor("tag:yaml.org,2002:int", _integer)
