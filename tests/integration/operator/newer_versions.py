"""Objects that a newer version wrote."""

import json
from collections.abc import Iterator
from typing import Any, Final

import pytest

from pointsman.api.protocol import names
from pointsman.kube.errors import Invalid
from pointsman.kube.resources import Resource
from pointsman.local.control_plane import ControlPlane
from waiting import eventually

from .conftest import CRDS, Cluster

# By CRD: where its schema has an enum, and the word of a newer version.
NEWER: Final = {
    "roleswitches": (("status", "way"), "Restart"),
    "plans": (("status", "phase"), "Paused"),
    "plannerpolicies": (("spec", "mode"), "Canary"),
}


@pytest.fixture
def newer_crds(control_plane: ControlPlane, operator_kubeconfig: object) -> Iterator[None]:
    """The CRDs of a newer version, with which its objects are stored; in the end the present ones."""
    for plural, (path, word) in NEWER.items():
        crd = json.loads(control_plane.kubectl("get", "crd", f"{plural}.{names.GROUP}", "-o", "json"))
        field: dict[str, Any] = crd["spec"]["versions"][0]["schema"]["openAPIV3Schema"]
        for part in path:
            field = field["properties"][part]
        field["enum"].append(word)
        control_plane.kubectl("replace", "-f", "-", stdin=json.dumps(crd))
    yield
    control_plane.kubectl("apply", "--server-side", "--force-conflicts", "-f", str(CRDS))


async def store(cluster: Cluster, resource: Resource, name: str, body: dict[str, Any]) -> None:
    """Write an object as a newer version would; the API server takes it as soon as it knows the newer CRD."""

    refused = ""

    async def written() -> bool:
        nonlocal refused
        try:
            await cluster.kube.apply(resource, {"metadata": {"name": name}, "spec": body["spec"]}, cluster.namespace)
            if "status" in body:
                status = {"status": body["status"]}
                await cluster.kube.patch(resource, name, cluster.namespace, status, subresource="status")
        except Invalid as error:
            refused = str(error)
            return False
        return True

    try:
        await eventually(written, f"{resource.kind} {name} of a newer version is stored")
    except AssertionError as error:
        raise AssertionError(f"{error}: {refused}") from None
