"""What integration tests share: one control plane for the whole run, a namespace of its own for each test."""

import asyncio
import secrets
from collections.abc import Awaitable, Callable, Iterator
from contextlib import suppress
from pathlib import Path

import pytest

from fixtures.chart_accounts import RELEASES, user_of
from fixtures.crds import until_established
from fixtures.findings import findings
from pointsman.kube.client import Kube
from pointsman.kube.errors import NotFound
from pointsman.kube.resources import NAMESPACES
from pointsman.local.binaries import ensure
from pointsman.local.control_plane import APISERVER, CONTROLLER_MANAGER, ControlPlane, ControlPlaneOptions

__all__ = ["findings"]


@pytest.fixture(scope="session")
def binary() -> Callable[[str], Path]:
    """``binary("helm")``: path of a program of the embedded cluster, built now if this computer has none."""
    return ensure


@pytest.fixture(scope="session")
def control_plane() -> Iterator[ControlPlane]:
    """A real control plane without nodes. Shared: a test that kills parts of one makes its own.

    Autoscalers look each second; by default a test would wait a quarter of a minute for one. Owner references are
    guarded as on OpenShift. What operator and planner do with the chart's accounts is in the audit log.
    """
    arguments = {
        CONTROLLER_MANAGER: ("--horizontal-pod-autoscaler-sync-period=1s",),
        APISERVER: ("--enable-admission-plugins=NodeRestriction,OwnerReferencesPermissionEnforcement",),
    }
    audited = tuple(user_of(room, watches) for room in ("operator", "planner") for watches in RELEASES)
    options = ControlPlaneOptions(arguments=arguments, audit=True, audit_users=audited)
    with ControlPlane.temporary(options=options) as running:
        yield running


@pytest.fixture(scope="session")
def installed_crds(control_plane: ControlPlane) -> ControlPlane:
    """The shared control plane with our CRDs, established."""
    folder = Path(__file__).parents[2] / "crds"
    control_plane.kubectl("apply", "--server-side", *(f"--filename={path}" for path in sorted(folder.glob("*.yaml"))))
    until_established(control_plane)
    return control_plane


@pytest.fixture
def namespace(control_plane: ControlPlane) -> Iterator[str]:
    """A namespace of this test's own; deleted afterwards, without waiting. Most tests want one: no kubectl for it."""
    name = f"test-{secrets.token_hex(4)}"
    asyncio.run(_ask(control_plane, lambda kube: kube.create(NAMESPACES, {"metadata": {"name": name}})))
    yield name
    with suppress(NotFound):
        asyncio.run(_ask(control_plane, lambda kube: kube.delete(NAMESPACES, name)))


async def _ask(control_plane: ControlPlane, ask: Callable[[Kube], Awaitable[object]]) -> None:
    async with await Kube.connect(control_plane.kubeconfig, field_manager="test") as kube:
        await ask(kube)
