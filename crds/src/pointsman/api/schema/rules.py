"""What is written beside a model for the API server: CEL rules, and fields that are refused by name until they work."""

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

VALIDATIONS: Final = "x-kubernetes-validations"
PRESERVE_UNKNOWN: Final = "x-kubernetes-preserve-unknown-fields"
_RESERVED: Final = "x-pointsman-reserved"  # read and removed by the structural pass
_PLACEHOLDER: Final = re.compile(r"{([^{}]+)}")


@dataclass(frozen=True, slots=True)
class Rule:
    """One CEL rule and what the API server says when it does not hold.

    ``message`` names what was written and what would be right; the API server puts the field's path in front of it.
    ``{…}`` in it is CEL: ``"replicas is {self.replicas}"``. ``field_path`` narrows the path.
    """

    rule: str
    message: str
    field_path: str | None = None

    def manifest(self) -> dict[str, str]:
        """As an entry of ``x-kubernetes-validations``."""
        entry = {"rule": self.rule}
        entry |= message_entry(self.message)
        if self.field_path is not None:
            entry["fieldPath"] = self.field_path
        return entry


def message_entry(message: str) -> dict[str, str]:
    """``message`` where it is constant; a ``messageExpression`` where it has placeholders.

    With ``format``, not ``+``: the API server's cost estimator knows no bound for ``string(number)`` or for the joined
    list of a ``filter``, and refuses a concatenation with either.
    """
    parts = _PLACEHOLDER.split(message)  # text, CEL, text, CEL, …, text
    if len(parts) == 1:
        return {"message": message}
    text = "%s".join(part.replace("%", "%%") for part in parts[::2])
    return {"messageExpression": f"{cel_string(text)}.format([{', '.join(parts[1::2])}])"}


def extra(
    *rules: Rule, reserved: Mapping[str, str] | None = None, schema: Mapping[str, Any] | None = None
) -> dict[str, Any]:
    """For ``json_schema_extra`` of a model or a field.

    ``reserved`` maps fields that are designed but not built to what to do instead. They are in the schema only so that
    the API server refuses them by name, instead of dropping them in silence; the models do not have them.
    ``schema`` is taken over as it is. There, ``"enum": None`` takes an enumeration away: the API server's own message
    for one cannot say what is planned, a rule can.
    """
    result: dict[str, Any] = dict(schema or {})
    if rules:
        result[VALIDATIONS] = [rule.manifest() for rule in rules]
    if reserved:
        result[_RESERVED] = dict(reserved)
    return result


LIST_BY_NAME: Final = {"x-kubernetes-list-type": "map", "x-kubernetes-list-map-keys": ["name"]}
LIST_BY_TYPE: Final = {"x-kubernetes-list-type": "map", "x-kubernetes-list-map-keys": ["type"]}


def reserved_fields(schema: dict[str, Any]) -> dict[str, Any]:
    """Take the reserved fields out of ``schema``; returns the properties that refuse them."""
    reserved: dict[str, str] = schema.pop(_RESERVED, {})
    return {
        name: {
            "description": f"Not built yet, and refused: {instead}.",
            "type": "object",
            PRESERVE_UNKNOWN: True,
            VALIDATIONS: [Rule("false", _not_built(name, instead)).manifest()],
        }
        for name, instead in reserved.items()
    }


def reserved_messages(schema_extra: object) -> dict[str, str]:
    """Why each reserved field is refused; ``schema_extra`` is the ``json_schema_extra`` of a model."""
    reserved = schema_extra.get(_RESERVED, {}) if isinstance(schema_extra, Mapping) else {}
    return {name: _not_built(name, instead) for name, instead in reserved.items()}


def _not_built(name: str, instead: str) -> str:
    return f"{name} is not built yet: {instead}"


def cel_string(text: str) -> str:
    """``text`` as a CEL string literal."""
    return "'" + text.replace("\\", "\\\\").replace("'", "\\'") + "'"


def cel_list(values: tuple[str, ...]) -> str:
    """``values`` as a CEL list of strings."""
    return "[" + ", ".join(cel_string(value) for value in values) + "]"
