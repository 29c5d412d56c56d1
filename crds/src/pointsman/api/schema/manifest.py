"""A kind as a CustomResourceDefinition."""

from typing import Any

import yaml
from pydantic import BaseModel

from pointsman.api.protocol.names import GROUP, VERSION
from pointsman.api.schema.rules import VALIDATIONS
from pointsman.api.schema.structural import structural_schema
from pointsman.api.v1alpha1.resource import CATEGORY, Column, Resource

_HEADER = "# Generated from the models in crds/src/pointsman/api/v1alpha1 by 'make crds'. Do not edit.\n"


def crd(kind: type[Resource]) -> dict[str, Any]:
    """The CustomResourceDefinition of ``kind``. Raises NotStructuralError."""
    resource = kind.resource
    # The API server owns the envelope: these three are as it says.
    properties: dict[str, Any] = {
        "apiVersion": {"type": "string"},
        "kind": {"type": "string"},
        "metadata": {"type": "object", "properties": {"name": {"type": "string", "maxLength": 253}}},
    }
    for part in ("spec", "status"):
        model = kind.model_fields[part].annotation
        assert isinstance(model, type) and issubclass(model, BaseModel), f"{resource.kind}.{part} is no model"
        properties[part] = structural_schema(model, part)
    root: dict[str, Any] = {
        "description": (kind.__doc__ or "").strip(),
        "type": "object",
        "required": ["spec"],
        "properties": properties,
    }
    if resource.rules:
        root[VALIDATIONS] = [rule.manifest() for rule in resource.rules]
    subresources: dict[str, Any] = {"status": {}}
    if resource.scale is not None:
        subresources["scale"] = {
            "specReplicasPath": resource.scale.spec_replicas,
            "statusReplicasPath": resource.scale.status_replicas,
            "labelSelectorPath": resource.scale.label_selector,
        }
    return {
        "apiVersion": "apiextensions.k8s.io/v1",
        "kind": "CustomResourceDefinition",
        "metadata": {"name": f"{resource.plural}.{GROUP}"},
        "spec": {
            "group": GROUP,
            "scope": "Namespaced",
            "names": {
                "kind": resource.kind,
                "listKind": f"{resource.kind}List",
                "plural": resource.plural,
                "singular": resource.kind.lower(),
                "shortNames": list(resource.short_names),
                "categories": [CATEGORY],
            },
            "versions": [
                {
                    "name": VERSION,
                    "served": True,
                    "storage": True,
                    "schema": {"openAPIV3Schema": root},
                    "subresources": subresources,
                    "additionalPrinterColumns": [_column(column) for column in resource.columns],
                }
            ],
        },
    }


def crd_yaml(kind: type[Resource]) -> str:
    """The CustomResourceDefinition as committed text."""
    return _HEADER + yaml.dump(crd(kind), Dumper=_Dumper, sort_keys=False, width=120, allow_unicode=True)


def _column(column: Column) -> dict[str, Any]:
    manifest: dict[str, Any] = {"name": column.name, "type": column.type, "jsonPath": column.json_path}
    if column.wide:
        manifest["priority"] = 1
    if column.description:
        manifest["description"] = column.description
    return manifest


class _Dumper(yaml.SafeDumper):
    def ignore_aliases(self, data: Any) -> bool:
        """Equal parts are written out: an anchor would be unreadable."""
        return True
