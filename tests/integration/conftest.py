"""What integration tests share: one control plane for the whole run, a namespace of its own for each test."""

import json
import secrets
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from fixtures.findings import findings
from pointsman.local.binaries import ensure
from pointsman.local.control_plane import ControlPlane
from waiting import until

__all__ = ["findings"]


@pytest.fixture(scope="session")
def binary() -> Callable[[str], Path]:
    """``binary("helm")``: path of a program of the embedded cluster, built now if this computer has none."""
    return ensure


@pytest.fixture(scope="session")
def control_plane() -> Iterator[ControlPlane]:
    """A real control plane without nodes. Shared: a test that kills parts of one makes its own."""
    with ControlPlane.temporary() as running:
        yield running


@pytest.fixture(scope="session")
def installed_crds(control_plane: ControlPlane) -> ControlPlane:
    """The shared control plane with our CRDs, established."""
    folder = Path(__file__).parents[2] / "crds"
    control_plane.kubectl("apply", "--server-side", *(f"--filename={path}" for path in sorted(folder.glob("*.yaml"))))
    # Not `kubectl wait`: it fails on a CRD whose status is not written yet.
    until(lambda: _established(control_plane), "all CRDs are established")
    return control_plane


def _established(control_plane: ControlPlane) -> bool:
    crds = json.loads(control_plane.kubectl("get", "crd", "-o", "json"))["items"]
    return all(
        any(
            condition["type"] == "Established" and condition["status"] == "True"
            for condition in crd.get("status", {}).get("conditions") or ()
        )
        for crd in crds
    )


@pytest.fixture
def namespace(control_plane: ControlPlane) -> Iterator[str]:
    """A namespace of this test's own; deleted afterwards, without waiting."""
    name = f"test-{secrets.token_hex(4)}"
    control_plane.kubectl("create", "namespace", name)
    yield name
    control_plane.kubectl("delete", "namespace", name, "--wait=false", "--ignore-not-found")
