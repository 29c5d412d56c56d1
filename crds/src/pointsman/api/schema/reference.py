"""The API reference (``docs/reference/api.md``), generated from the same schemas the API server gets."""

from collections.abc import Iterable, Mapping
from typing import Any

from pointsman.api.protocol.names import API_VERSION
from pointsman.api.schema.manifest import crd
from pointsman.api.schema.rules import VALIDATIONS
from pointsman.api.schema.structural import INT_OR_STRING, walk
from pointsman.api.v1alpha1.conditions import ConditionType, Reason
from pointsman.api.v1alpha1.removed import IGNORED
from pointsman.api.v1alpha1.resource import Resource

_HEADER = f"""# API reference: {API_VERSION}

*Generated from the models by `make crds`. Do not edit.*

Fields without a default are unset unless you write them; *required* fields must be written. `kubectl explain` shows the
same text. The API server checks the validation rules at `kubectl apply`; a refusal names the field, its value and a
correct value.
"""


def reference(kinds: Iterable[type[Resource]]) -> str:
    """Markdown for ``kinds``, and the conditions with their reasons."""
    sections = [_kind(kind) for kind in kinds]
    return "\n".join([_HEADER, *sections, _conditions()])


def _kind(kind: type[Resource]) -> str:
    resource = kind.resource
    names = ", ".join(f"`{name}`" for name in resource.short_names)
    root = crd(kind)["spec"]["versions"][0]["schema"]["openAPIV3Schema"]
    lines = [f"## {resource.kind}", "", f"{root['description']} Short name: {names}.", ""]
    if resource.scale:
        lines += ["Has `/scale`: `kubectl scale`, HPA and KEDA work on it.", ""]
    for part in ("spec", "status"):
        lines += [f"### {resource.kind} {part}", "", "| field | type | default | |", "|---|---|---|---|"]
        lines += [_row(path, schema, root) for path, schema in _fields(root["properties"][part], part)]
        lines.append("")
    if rules := _rules(root):
        lines += [f"### Validation rules of {resource.kind}", "", *rules, ""]
    return "\n".join(lines)


def _fields(schema: Mapping[str, Any], path: str) -> Iterable[tuple[str, Mapping[str, Any]]]:
    return [
        (where, below)
        for where, below in walk(schema, path)
        if where != path and not where.endswith("]") and not below.get("description", "").startswith(IGNORED)
    ]


def _row(path: str, schema: Mapping[str, Any], root: Mapping[str, Any]) -> str:
    default = schema.get("default")
    if default is None:
        default = "*required*" if _required(path, root) else ""
    elif default in ({}, [], ""):
        default = ""
    else:
        default = f"`{str(default).lower() if isinstance(default, bool) else default}`"
    text = schema.get("description", "").replace("|", "\\|").replace("<", "&lt;").replace("\n", " ")
    return f"| `{path}` | {_type(schema)} | {default} | {text} |"


def _required(path: str, root: Mapping[str, Any]) -> bool:
    parent, _, name = path.rpartition(".")
    return any(where == parent and name in schema.get("required", ()) for where, schema in walk(root))


def _type(schema: Mapping[str, Any]) -> str:
    if "enum" in schema:
        return " \\| ".join(f"`{value}`" for value in schema["enum"])
    if schema.get(INT_OR_STRING):
        return "integer or string"
    kind = str(schema.get("type", "any"))
    if kind == "array":
        return f"list of {schema['items'].get('type', 'any')}"
    if "additionalProperties" in schema:
        return f"map of {schema['additionalProperties'].get('type', 'any')}"
    low, high = schema.get("minimum"), schema.get("maximum")
    if kind in ("integer", "number") and low is not None and high is not None:
        above = ">" if schema.get("exclusiveMinimum") else ""
        below = "<" if schema.get("exclusiveMaximum") else ""
        return f"{kind} {above}{low} … {below}{high}"
    return kind


def _rules(root: Mapping[str, Any]) -> list[str]:
    """What the rules say, computed parts as ``…``; equal sentences of several fields once."""
    fields: dict[str, list[str]] = {}
    for path, schema in walk(root):
        for rule in schema.get(VALIDATIONS, ()):
            where = f"{path}{rule.get('fieldPath', '')}".lstrip(".") or "metadata.name"
            fields.setdefault(rule.get("message") or _readable(rule["messageExpression"]), []).append(where)
    return [
        f"* {', '.join(f'`{where}`' for where in places)}: {text.replace('<', '&lt;')}"
        for text, places in fields.items()
    ]


def _readable(expression: str) -> str:
    """The text of a message expression as ``rules.message_entry`` writes it, placeholders as ``…``."""
    text = expression[1 : expression.rindex("'.format([")]
    return text.replace("\\'", "'").replace("%s", "…").replace("%%", "%")


def _conditions() -> str:
    types = ", ".join(f"`{name}`" for name in ConditionType)
    reasons = ", ".join(f"`{name}`" for name in Reason)
    return f"""## Conditions

Types: {types}. A WorkerPool has `Ready` and `Progressing`.

Reasons (stable; match on them): {reasons}.
"""
