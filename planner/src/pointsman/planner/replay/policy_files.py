"""A policy from a file: the document that is applied to a cluster, with or without ``kind`` and ``metadata``."""

import copy
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import yaml

from pointsman.api.v1alpha1.plannerpolicy import PlannerPolicySpec
from pointsman.api.v1alpha1.strict import StrictError
from pointsman.planner.errors import PolicyFileError

_NO_YAML: Final = (yaml.YAMLError, ValueError, RecursionError)  # ValueError: a date or a number that cannot be


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
            place[last] = yaml.safe_load(value)
        except _NO_YAML as error:
            raise PolicyFileError(f"{self.path}: {key}: '{value}' is no YAML: {' '.join(str(error).split())}") from None
        return PolicyFile(self.path, self.name, document, _parse(self.path, document))


def load_policy(path: Path) -> PolicyFile:
    """Read a file of one policy; other kinds of object beside it are passed over.

    Raises PolicyFileError with every mistake: path of the field, what is written, what would be right.
    """
    try:
        text = path.read_text(encoding="utf-8")
        documents = [made for made in yaml.load_all(text, _UniqueKeys) if made is not None]
    except (OSError, UnicodeDecodeError) as error:
        raise PolicyFileError(f"{path}: it cannot be read: {getattr(error, 'strerror', None) or error}") from None
    except _NO_YAML as error:
        raise PolicyFileError(f"{path}: it is no YAML: {' '.join(str(error).split())}") from None
    policies = [made for made in documents if _may_be_a_policy(made)]
    if len(policies) != 1:
        found = f"{len(policies)} policies" if policies else "no PlannerPolicy"
        raise PolicyFileError(f"{path}: it holds {found}; one is needed")
    document = policies[0]
    named = document.get("metadata") if isinstance(document.get("metadata"), dict) else None
    name = str(named.get("name")) if named and named.get("name") else path.stem
    return PolicyFile(path, name, document, _parse(path, document))


def _may_be_a_policy(document: Any) -> bool:
    return isinstance(document, dict) and document.get("kind", "PlannerPolicy") == "PlannerPolicy"


def _parse(path: Path, document: Mapping[str, Any]) -> PlannerPolicySpec:
    try:
        return PlannerPolicySpec.from_document(document)
    except StrictError as error:
        raise PolicyFileError("\n".join(f"{path}: {problem}" for problem in error.problems)) from None


class _UniqueKeys(yaml.SafeLoader):
    """A key that is written twice is a mistake, as it is for ``kubectl apply --validate=strict``."""

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Any, Any]:
        seen: set[Any] = set()
        for key_node, _ in node.value:
            key = self.construct_object(key_node, deep=True)
            if key in seen:
                problem = f"'{key}' is written twice"
                raise yaml.MarkedYAMLError(None, None, problem, key_node.start_mark)
            seen.add(key)
        return super().construct_mapping(node, deep)
