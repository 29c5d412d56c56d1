"""A client of the shared control plane, and a proxy that breaks the way to it."""

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from fixtures.fault_proxy import FaultProxy
from pointsman.kube.client import Kube
from pointsman.local.control_plane import ControlPlane


@pytest.fixture
async def kube(control_plane: ControlPlane) -> AsyncIterator[Kube]:
    """Straight to the API server, over TLS, as its administrator."""
    async with await Kube.connect(control_plane.kubeconfig) as client:
        yield client


@pytest.fixture
async def proxy(control_plane: ControlPlane, tmp_path: Path) -> AsyncIterator[FaultProxy]:
    """Healthy until the test gives it a plan."""
    async with FaultProxy(control_plane.kubeconfig, tmp_path) as running:
        yield running
