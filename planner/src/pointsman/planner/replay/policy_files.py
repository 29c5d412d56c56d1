"""A policy from a file: the document that is applied to a cluster, with or without ``kind`` and ``metadata``."""

import copy
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from pointsman.api.protocol.names import API_VERSION
from pointsman.api.v1alpha1.plannerpolicy import PlannerPolicySpec
from pointsman.api.v1alpha1.removed import removed_fields
from pointsman.api.v1alpha1.strict import StrictError
from pointsman.planner.errors import PolicyFileError
from pointsman.planner.replay.kubernetes_yaml import (
    Unreadable,
    decoded_or_empty,
    read_objects,
    read_value,
    template_hint,
)

KIND: Final = "PlannerPolicy"


@dataclass(frozen=True, slots=True)
class PolicyFile:
    """A policy and the document it came from, for variants of it. ``name`` is metadata's, else the file's."""

    path: Path
    name: str
    document: Mapping[str, Any]
    spec: PlannerPolicySpec

    def variant(self, key: str, value: str) -> "PolicyFile":
        """The same with one field changed, ``key`` by its path in the spec (``budget.maxGpus``), ``value`` as YAML.

        Raises PolicyFileError as for a mistake in the file.
        """
        document = copy.deepcopy(dict(self.document))
        place: Any = document["spec"] if isinstance(document.get("spec"), dict) else document
        *above, last = key.removeprefix("spec.").split(".")
        for part in above:
            place = place.setdefault(part, {})
            if not isinstance(place, dict):
                raise PolicyFileError(f"{self.path}: {key}: {part} has no fields")
        try:
            place[last] = read_value(value)
        except Unreadable as error:
            raise PolicyFileError(f"{self.path}: {key}: '{value}': {error}") from None
        spec = _parse(self.path, document)
        if removed_fields(spec) != removed_fields(self.spec):
            raise PolicyFileError(f"{self.path}: {key}: this version ignores the field")
        return PolicyFile(self.path, self.name, document, spec)


def load_policy(path: Path) -> PolicyFile:
    """Read the one policy of a file that ``kubectl apply`` takes; other kinds of object in it are passed over.

    Raises PolicyFileError with every mistake: path of the field, what is written, what would be right.
    """
    try:
        content = path.read_bytes()
    except OSError as error:
        raise PolicyFileError(f"{path}: it cannot be read: {error.strerror or error}") from None
    try:
        objects = read_objects(content)
    except Unreadable as error:
        raise PolicyFileError(f"{path}: {error}") from None
    policies = [made for made in objects if _may_be_a_policy(made)]
    if not policies:
        raise PolicyFileError(f"{path}: it holds no PlannerPolicy{_kinds(objects)}; one is needed")
    if len(policies) > 1:
        raise PolicyFileError(f"{path}: it holds {len(policies)} policies; one is needed")
    (document,) = policies
    try:
        spec = _parse(path, document)
    except PolicyFileError as error:
        raise PolicyFileError(f"{error}{template_hint(decoded_or_empty(content))}") from None
    named = document.get("metadata") if isinstance(document.get("metadata"), dict) else None
    name = str(named.get("name")) if named and named.get("name") else path.stem
    return PolicyFile(path, name, document, spec)


def _may_be_a_policy(document: Mapping[str, Any]) -> bool:
    """Whether it is a policy, or a policy's spec alone, which names no kind."""
    group = str(document.get("apiVersion", API_VERSION)).partition("/")[0]
    return document.get("kind", KIND) == KIND and group == API_VERSION.partition("/")[0]


def _kinds(objects: list[dict[str, Any]]) -> str:
    found = sorted({f"{made.get('apiVersion', 'no apiVersion')} {made.get('kind', 'no kind')}" for made in objects})
    return f" (but {', '.join(found)})" if found else ""


def _parse(path: Path, document: Mapping[str, Any]) -> PlannerPolicySpec:
    version = document.get("apiVersion", API_VERSION)
    if version != API_VERSION:
        raise PolicyFileError(f"{path}: apiVersion: {version!r} is written; {API_VERSION} is right")
    try:
        return PlannerPolicySpec.from_document(document)
    except StrictError as error:
        raise PolicyFileError("\n".join(f"{path}: {problem}" for problem in error.problems)) from None
