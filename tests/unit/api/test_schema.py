"""The schema generator: what it writes, and what it refuses to write."""

from pathlib import Path
from typing import Annotated, Any, Literal

import kubernetes_validate
import pytest
from pydantic import BaseModel, ConfigDict, Field

from pointsman.api.schema.__main__ import generated
from pointsman.api.schema.manifest import crd
from pointsman.api.schema.rules import VALIDATIONS, Rule, extra
from pointsman.api.schema.structural import INT_OR_STRING, NotStructuralError, structural_schema, walk
from pointsman.api.v1alpha1 import INSTALLED, PlannerPolicy, Resource
from pointsman.api.v1alpha1.plan import Plan
from pointsman.api.v1alpha1.roleswitch import RoleSwitch

ROOT = Path(__file__).parents[3]
PASSED_THROUGH = (
    "spec.worker.template.",
    "spec.encode.template.",
    "spec.gateway.template.",
    "spec.instance.template.",
)  # fields of Kubernetes' own PodSpec
ALL_KINDS = (*INSTALLED, PlannerPolicy, RoleSwitch) if RoleSwitch not in INSTALLED else (*INSTALLED, PlannerPolicy)


def test_the_committed_files_are_what_the_models_say() -> None:
    stale = [
        str(path.relative_to(ROOT))
        for path, text in generated(ROOT).items()
        if not path.exists() or path.read_text() != text
    ]
    assert not stale, "run 'make crds'"


@pytest.mark.parametrize("kind", ALL_KINDS, ids=lambda kind: kind.__name__)
def test_every_kind_is_a_valid_crd(kind: type[Resource]) -> None:
    kubernetes_validate.validate(crd(kind), "1.36", strict=True)


@pytest.mark.parametrize("kind", ALL_KINDS, ids=lambda kind: kind.__name__)
def test_everything_a_person_writes_is_bounded_and_typed(kind: type[Resource]) -> None:
    schema = crd(kind)["spec"]["versions"][0]["schema"]["openAPIV3Schema"]["properties"]["spec"]
    for path, part in walk(schema, "spec"):
        if INT_OR_STRING in part and path.startswith(PASSED_THROUGH):
            continue  # an amount, as Kubernetes has it
        assert "type" in part, path
        if part["type"] == "array":
            assert "maxItems" in part, path
        if part["type"] == "string":
            assert part.keys() & {"maxLength", "enum", "format"}, path
        # The planner writes the numbers of a Plan; those of a pod template are Kubernetes' own.
        if part["type"] in ("integer", "number") and kind is not Plan and not path.startswith(PASSED_THROUGH):
            assert {"minimum", "maximum"} <= part.keys(), path


@pytest.mark.parametrize("kind", ALL_KINDS, ids=lambda kind: kind.__name__)
def test_every_field_with_a_number_or_a_text_is_described(kind: type[Resource]) -> None:
    schema = crd(kind)["spec"]["versions"][0]["schema"]["openAPIV3Schema"]["properties"]["spec"]
    silent = [
        path
        for path, part in walk(schema, "spec")
        if "description" not in part and not path.startswith(PASSED_THROUGH) and not path.endswith("]")
    ]
    assert silent == []


@pytest.mark.parametrize("kind", ALL_KINDS, ids=lambda kind: kind.__name__)
def test_every_status_has_conditions_and_every_kind_a_short_name_columns_and_the_category(
    kind: type[Resource],
) -> None:
    manifest = crd(kind)["spec"]
    version = manifest["versions"][0]
    assert manifest["names"]["shortNames"]
    assert manifest["names"]["categories"] == ["pointsman"]
    assert version["additionalPrinterColumns"]
    status = version["schema"]["openAPIV3Schema"]["properties"]["status"]["properties"]
    assert status["conditions"]["x-kubernetes-list-map-keys"] == ["type"]


def test_kubectl_get_pplan_lists_what_changes_and_why_before_all_else() -> None:
    """The columns of a terminal, in order, as kubectl prints them; the wide ones are after them."""
    columns = crd(Plan)["spec"]["versions"][0]["additionalPrinterColumns"]
    shown = [column["name"].upper() for column in columns if not column.get("priority")]
    assert shown == ["CHANGE", "GPUS", "REASON", "PHASE", "ATTAINMENT", "AGE"]
    paths = [column["jsonPath"] for column in columns if not column.get("priority")]
    assert paths == [
        ".spec.change", ".spec.gpus", ".spec.reason", ".status.phase", ".spec.attainment", ".metadata.creationTimestamp"
    ]  # fmt: skip
    assert [column["name"] for column in columns[len(shown) :]] == ["Service", "Mode", "Why"]


def schema_of(**fields: Any) -> dict[str, Any]:
    """The structural schema of a model with these fields, each ``(annotation, FieldInfo)``."""
    model = type(
        "Model",
        (BaseModel,),
        {"__annotations__": {n: a for n, (a, _) in fields.items()}}
        | {name: info for name, (_, info) in fields.items()},
    )
    return structural_schema(model)


def test_an_optional_field_is_the_inner_type_without_a_default() -> None:
    schema = schema_of(size=(int | None, Field(default=None, ge=1)))
    assert schema["properties"]["size"] == {"type": "integer", "minimum": 1}
    assert "required" not in schema


def test_exclusive_bounds_are_written_as_openapi_wants_them() -> None:
    schema = schema_of(share=(float, Field(gt=0, lt=1)))
    share = schema["properties"]["share"]
    assert (share["minimum"], share["exclusiveMinimum"]) == (0, True)
    assert (share["maximum"], share["exclusiveMaximum"]) == (1, True)


def test_a_single_literal_is_an_enumeration() -> None:
    assert schema_of(kind=(Literal["A"], Field()))["properties"]["kind"] == {"type": "string", "enum": ["A"]}


def test_forbidden_extra_fields_are_left_to_the_api_server_and_allowed_ones_are_kept() -> None:
    class Closed(BaseModel):
        model_config = ConfigDict(extra="forbid")
        a: int

    class Open(BaseModel):
        model_config = ConfigDict(extra="allow")
        a: int

    assert "additionalProperties" not in structural_schema(Closed)
    assert structural_schema(Open)["x-kubernetes-preserve-unknown-fields"] is True


def test_a_models_default_is_written_whole_because_rules_are_evaluated_on_it() -> None:
    class Inner(BaseModel):
        low: int = 1
        high: int = 9

    assert schema_of(inner=(Inner, Field(default=Inner(high=5))))["properties"]["inner"]["default"] == {
        "low": 1,
        "high": 5,
    }


def test_rules_of_a_model_and_of_the_field_that_holds_it_are_both_kept() -> None:
    class Inner(BaseModel):
        model_config = ConfigDict(json_schema_extra=extra(Rule("self.a > 0", "a")))
        a: int

    schema = schema_of(inner=(Inner, Field(json_schema_extra=extra(Rule("self == oldSelf", "fixed")))))
    assert [rule["rule"] for rule in schema["properties"]["inner"][VALIDATIONS]] == ["self.a > 0", "self == oldSelf"]


def test_a_message_with_placeholders_becomes_an_expression_with_format() -> None:
    assert Rule("true", "50 % of {self.a} isn't {self.b}").manifest()["messageExpression"] == (
        r"'50 %% of %s isn\'t %s'.format([self.a, self.b])"
    )


def test_a_reserved_field_is_refused_with_what_to_do_instead() -> None:
    class Model(BaseModel):
        model_config = ConfigDict(json_schema_extra=extra(reserved={"later": "wait"}))
        a: int

    later = structural_schema(Model)["properties"]["later"]
    assert later[VALIDATIONS] == [{"rule": "false", "message": "later is not built yet: wait"}]


class Node(BaseModel):
    """Contains itself."""

    children: Annotated[list["Node"], Field(max_length=3)]


@pytest.mark.parametrize(
    ("annotation", "field", "problem"),
    [
        (int | str, Field(), "anyOf is not structural"),
        (str, Field(), "a string without max_length"),
        (list[int], Field(), "a list without max_length"),
        (list[str], Field(max_length=3), r"field\[\]: a string without max_length"),
        (dict[str, int], Field(), "a map without max_length"),
        (tuple[int, int], Field(), "prefixItems is not structural"),
        (Any, Field(), "no type"),
        (Node, Field(), "Node contains itself"),
    ],
)
def test_what_kubernetes_could_not_hold_is_refused_with_its_path(annotation: Any, field: Any, problem: str) -> None:
    with pytest.raises(NotStructuralError, match=problem) as refusal:
        schema_of(field=(annotation, field))
    assert "field" in str(refusal.value)
