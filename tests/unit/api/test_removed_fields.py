"""Policies of the version before are accepted as they are; what this version ignores of them is named.

``policies_d8eedd12.json`` are specs as that version stored them, with its defaults.
"""

import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Final

import pytest

from pointsman.api.schema.manifest import crd
from pointsman.api.schema.structural import walk
from pointsman.api.v1alpha1 import PlannerPolicy
from pointsman.api.v1alpha1.plannerpolicy import PlannerPolicySpec
from pointsman.api.v1alpha1.removed import IGNORED, removed_fields

FOLDER: Final = Path(__file__).parent
STORED: Final[dict[str, dict[str, Any]]] = json.loads((FOLDER / "policies_d8eedd12.json").read_text())
EARLIER_CRDS: Final = FOLDER.parents[1] / "integration" / "operator" / "crds_ec6a7b8.json"
MOST_FIELDS: Final = 30
SET: Final = {
    "defaults": [],
    "edited": [
        "actions.remotePrefill.minThresholdTokens (512)",
        "actions.remotePrefill.maxThresholdTokens (1024)",
        "actions.roleSwitch.drainFirst (false)",
        "actions.roleSwitch.minDwellSeconds (5)",
        "actions.roleSwitch.oppositeAfterSeconds (7.5)",
        "actions.roleSwitch.maxPer10Minutes (10)",
        'performance.configMap.key ("llama.json")',
        "history.plans (10)",
    ],
    "another engine": ['performance.table.engine ("sglang")'],
}
"""What was not a default, and is ignored now."""


def leaves(definition: Mapping[str, Any]) -> Iterator[tuple[str, Mapping[str, Any]]]:
    """Path and schema of each field of a policy that has a value of its own."""
    spec = definition["spec"]["versions"][0]["schema"]["openAPIV3Schema"]["properties"]["spec"]
    return ((path, schema) for path, schema in walk(spec) if schema["type"] != "object")


def is_ignored(schema: Mapping[str, Any]) -> bool:
    return bool(schema["description"].startswith(IGNORED))


def test_a_policy_has_at_most_thirty_fields() -> None:
    live = [path for path, schema in leaves(crd(PlannerPolicy)) if not is_ignored(schema)]
    assert len(live) <= MOST_FIELDS, live


@pytest.mark.parametrize("name", STORED)
def test_only_removed_fields_that_somebody_set_are_named(name: str) -> None:
    stored = PlannerPolicySpec.model_validate(STORED[name])
    assert removed_fields(stored) == SET[name]
    assert PlannerPolicySpec.from_document(STORED[name]) == stored, "a file is read likewise"
    assert stored.manifest() == STORED[name], "and nothing is lost for a version that comes back"


def test_removed_fields_are_in_no_new_policy_and_stay_as_the_version_before_reads_them() -> None:
    earlier_kinds = json.loads(EARLIER_CRDS.read_text())["items"]
    earlier = dict(leaves(next(item for item in earlier_kinds if item["spec"]["names"]["kind"] == "PlannerPolicy")))
    removed = {path: schema for path, schema in leaves(crd(PlannerPolicy)) if is_ignored(schema)}
    assert len(removed) == 12
    for path, schema in removed.items():
        assert {**schema, "description": None, "default": earlier[path]["default"]} == {
            **earlier[path],
            "description": None,
        }
    bare = PlannerPolicySpec.model_validate({"objectives": STORED["defaults"]["objectives"], "budget": {"maxGpus": 8}})
    assert removed_fields(bare) == []
    assert not set(paths(bare.manifest())) & set(removed)
    assert set(paths(STORED["defaults"])) & set(removed), "unlike earlier ones"


def paths(document: Mapping[str, Any], above: str = "") -> Iterator[str]:
    for key, value in document.items():
        if isinstance(value, Mapping):
            yield from paths(value, f"{above}{key}.")
        else:
            yield f"{above}{key}"


@pytest.mark.parametrize("source", ["Direct", "Prometheus", None])
def test_an_address_of_a_prometheus_is_enough_whatever_source_is_stored(source: str | None) -> None:
    metrics = {"source": source, "prometheusUrl": "http://prometheus:9090"}
    policy = PlannerPolicySpec.model_validate({**STORED["defaults"], "metrics": metrics})
    assert policy.metrics.prometheus_url is not None
    assert removed_fields(policy) == []
