"""A pydantic model as a structural OpenAPI v3 schema, as ``apiextensions.k8s.io/v1`` demands it.

What Kubernetes could not express is refused with its path, never emitted in the hope that the API server copes:
unions, recursion, unbounded strings, lists and maps (the CEL cost estimator needs bounds). Rules of structural schemas:
Kubernetes documentation, "Extend the Kubernetes API with CustomResourceDefinitions", section "Specifying a structural
schema".
"""

from collections.abc import Iterator, Mapping
from typing import Any, Final

from pydantic import BaseModel
from pydantic.json_schema import GenerateJsonSchema, JsonSchemaValue
from pydantic_core import core_schema

from pointsman.api.schema.rules import PRESERVE_UNKNOWN, VALIDATIONS, reserved_fields

INT_OR_STRING: Final = "x-kubernetes-int-or-string"

_DROPPED: Final = frozenset({"title", "examples", "discriminator", "deprecated"})
_REFUSED: Final = frozenset(
    {"anyOf", "oneOf", "allOf", "not", "prefixItems", "patternProperties", "propertyNames", "if", "then", "else"}
)
_KEPT: Final = frozenset(
    {
        "type",
        "format",
        "description",
        "default",
        "enum",
        "pattern",
        "minLength",
        "maxLength",
        "minimum",
        "maximum",
        "exclusiveMinimum",
        "exclusiveMaximum",
        "multipleOf",
        "minItems",
        "maxItems",
        "uniqueItems",
        "minProperties",
        "maxProperties",
        "required",
        "properties",
        "items",
        "additionalProperties",
    }
)


class NotStructuralError(TypeError):
    """A model cannot become a structural schema. The message names the field's path and what to write instead."""

    def __init__(self, path: str, problem: str) -> None:
        super().__init__(f"{path or 'the model'}: {problem}")


class _Generator(GenerateJsonSchema):
    """pydantic's generator with absent = None, and defaults written as short as server-side defaulting allows."""

    def nullable_schema(self, schema: core_schema.NullableSchema) -> JsonSchemaValue:
        return self.generate_inner(schema["schema"])

    def default_schema(self, schema: core_schema.WithDefaultSchema) -> JsonSchemaValue:
        result = super().default_schema(schema)
        if result.get("default", ...) is None:
            result.pop("default")
        return result

    def encode_default(self, dft: Any) -> Any:
        # Whole, not {}: the API server evaluates the rules on a default as it is written.
        if isinstance(dft, BaseModel):
            return dft.model_dump(mode="json", by_alias=True, exclude_none=True)
        return super().encode_default(dft)


def structural_schema(model: type[BaseModel], path: str = "") -> dict[str, Any]:
    """The structural schema of ``model``; ``path`` is where it stands. Raises NotStructuralError."""
    document = model.model_json_schema(by_alias=True, mode="validation", schema_generator=_Generator)
    definitions: dict[str, Any] = document.pop("$defs", {})
    return _convert(_inline(document, definitions, (), path), path)


def _inline(schema: Any, definitions: Mapping[str, Any], inside: tuple[str, ...], path: str) -> Any:
    """``schema`` with every ``$ref`` replaced by what it points at; rules of both places are kept."""
    if isinstance(schema, list):
        return [_inline(item, definitions, inside, path) for item in schema]
    if not isinstance(schema, dict):
        return schema
    if "$ref" not in schema:
        return {key: _inline(value, definitions, inside, f"{path}.{key}") for key, value in schema.items()}
    name = schema["$ref"].removeprefix("#/$defs/")
    if name in inside:
        raise NotStructuralError(path, f"{name} contains itself; a structural schema cannot recurse")
    target = _inline(definitions[name], definitions, (*inside, name), path)
    beside = {key: _inline(value, definitions, inside, path) for key, value in schema.items() if key != "$ref"}
    merged = {**target, **beside}
    if VALIDATIONS in target and VALIDATIONS in beside:
        merged[VALIDATIONS] = [*target[VALIDATIONS], *beside[VALIDATIONS]]
    return merged


def _convert(schema: dict[str, Any], path: str) -> dict[str, Any]:
    if refused := sorted(_REFUSED & schema.keys()):
        raise NotStructuralError(path, f"{', '.join(refused)} is not structural; use fields and a CEL rule instead")
    refusals = reserved_fields(schema)
    result: dict[str, Any] = {}
    for key, value in schema.items():
        if key in _DROPPED:
            continue
        if key == "const":
            result["enum"] = [value]
        elif key in ("exclusiveMinimum", "exclusiveMaximum"):
            result[key] = True
            result["minimum" if key == "exclusiveMinimum" else "maximum"] = value
        elif key in _KEPT or key.startswith("x-kubernetes-"):
            result[key] = value
        else:
            raise NotStructuralError(path, f"{key} is no key of a structural schema")
    if result.get("enum", ...) is None:  # taken away beside the model, where a CEL rule says more
        result.pop("enum")
    _convert_object(result, refusals, path)
    if "items" in result:
        result["items"] = _convert(result["items"], f"{path}[]")
    _check(result, path)
    return dict(sorted(result.items(), key=_by_habit))


def _convert_object(schema: dict[str, Any], refusals: Mapping[str, Any], path: str) -> None:
    properties = schema.get("properties")
    additional = schema.pop("additionalProperties", None)
    if properties is not None or refusals:
        schema["properties"] = {
            name: _convert(value, f"{path}.{name}".lstrip(".")) for name, value in (properties or {}).items()
        } | {name: _convert(value, f"{path}.{name}") for name, value in refusals.items()}
        # false (extra="forbid") is dropped, it may not stand beside properties; true is extra="allow"
        if additional is True:
            schema[PRESERVE_UNKNOWN] = True
        elif isinstance(additional, dict):
            raise NotStructuralError(path, "additionalProperties cannot be combined with properties")
    elif isinstance(additional, dict):
        schema["additionalProperties"] = _convert(additional, f"{path}[*]")
    elif additional is True:
        schema[PRESERVE_UNKNOWN] = True


def _check(schema: Mapping[str, Any], path: str) -> None:
    kind = schema.get("type")
    if kind is None and not schema.get(INT_OR_STRING) and not schema.get(PRESERVE_UNKNOWN):
        raise NotStructuralError(path, "no type; a structural schema needs one everywhere")
    if kind == "string" and not ({"maxLength", "enum", "format"} & schema.keys()):
        raise NotStructuralError(path, "a string without max_length; CEL needs a bound")
    if kind == "array" and "maxItems" not in schema:
        raise NotStructuralError(path, "a list without max_length; CEL needs a bound")
    if kind == "array" and "items" not in schema:
        raise NotStructuralError(path, "a list without the type of its items")
    if "additionalProperties" in schema and "maxProperties" not in schema:
        raise NotStructuralError(path, "a map without max_length; CEL needs a bound")
    if kind == "object" and not ({"properties", "additionalProperties", PRESERVE_UNKNOWN} & schema.keys()):
        raise NotStructuralError(path, "an object without fields")


def walk(schema: Mapping[str, Any], path: str = "") -> Iterator[tuple[str, Mapping[str, Any]]]:
    """Every schema in ``schema``, with its path: ``spec.pools``, ``spec.engine.args[]``."""
    yield path, schema
    for name, below in schema.get("properties", {}).items():
        yield from walk(below, f"{path}.{name}".lstrip("."))
    if "items" in schema:
        yield from walk(schema["items"], f"{path}[]")
    if "additionalProperties" in schema:
        yield from walk(schema["additionalProperties"], f"{path}[*]")


_HABIT: Final = ("description", "type", "format", "default", "enum", "required", "properties", "items")


def _by_habit(item: tuple[str, Any]) -> tuple[int, str]:
    """Order of keys as people read them; the rest by name, rules last."""
    key = item[0]
    if key in _HABIT:
        return _HABIT.index(key), key
    return len(_HABIT) + key.startswith("x-kubernetes"), key
