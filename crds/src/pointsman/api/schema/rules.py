"""What is written beside a model for the API server: CEL rules, and fields that are refused by name until they work."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

VALIDATIONS: Final = "x-kubernetes-validations"
PRESERVE_UNKNOWN: Final = "x-kubernetes-preserve-unknown-fields"
_RESERVED: Final = "x-pointsman-reserved"  # read and removed by the structural pass


@dataclass(frozen=True, slots=True)
class Rule:
    """One CEL rule. Exactly one of ``message`` and ``message_expression`` (CEL that gives a string) is written.

    A message names what was written and what would be right; the API server puts the field's path in front of it.
    ``field_path`` narrows that path, e.g. ``.minReplicas``.
    """

    rule: str
    message: str | None = None
    message_expression: str | None = None
    field_path: str | None = None
    reason: str | None = None

    def __post_init__(self) -> None:
        if (self.message is None) == (self.message_expression is None):
            raise ValueError(f"rule {self.rule!r} needs exactly one of message and message_expression")

    def manifest(self) -> dict[str, str]:
        """As an entry of ``x-kubernetes-validations``."""
        entry = {
            "rule": self.rule,
            "message": self.message,
            "messageExpression": self.message_expression,
            "fieldPath": self.field_path,
            "reason": self.reason,
        }
        return {key: value for key, value in entry.items() if value is not None}


def extra(
    *rules: Rule, reserved: Mapping[str, str] | None = None, schema: Mapping[str, Any] | None = None
) -> dict[str, Any]:
    """For ``json_schema_extra`` of a model or a field.

    ``reserved`` maps fields that are designed but not built to what to do instead. They are in the schema only so that
    the API server refuses them by name, instead of dropping them in silence; the models do not have them.
    ``schema`` is taken over as it is, e.g. ``x-kubernetes-list-type``.
    """
    result: dict[str, Any] = dict(schema or {})
    if rules:
        result[VALIDATIONS] = [rule.manifest() for rule in rules]
    if reserved:
        result[_RESERVED] = dict(reserved)
    return result


def reserved_fields(schema: dict[str, Any]) -> dict[str, Any]:
    """Take the reserved fields out of ``schema``; returns the properties that refuse them."""
    reserved: dict[str, str] = schema.pop(_RESERVED, {})
    return {
        name: {
            "description": f"Not built yet, and refused: {instead}.",
            "type": "object",
            PRESERVE_UNKNOWN: True,
            VALIDATIONS: [{"rule": "false", "message": f"{name} is not built yet: {instead}"}],
        }
        for name, instead in reserved.items()
    }


def cel_string(text: str) -> str:
    """``text`` as a CEL string literal."""
    return "'" + text.replace("\\", "\\\\").replace("'", "\\'") + "'"


def cel_list(values: tuple[str, ...]) -> str:
    """``values`` as a CEL list of strings."""
    return "[" + ", ".join(cel_string(value) for value in values) + "]"
