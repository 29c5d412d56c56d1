"""Pods of one namespace on the shared process node, and a control plane whose parts may be killed."""

from collections.abc import Iterator

import pytest

from integration.local.pods import Pods
from pointsman.local.control_plane import ControlPlane, ControlPlaneOptions
from pointsman.local.process_node import ProcessNode


@pytest.fixture
def pods(control_plane: ControlPlane, process_node: ProcessNode, namespace: str) -> Pods:
    """Runs and looks at pods in a namespace of this test's own."""
    return Pods(control_plane, namespace)


@pytest.fixture(scope="session")
def mortal_control_plane() -> Iterator[ControlPlane]:
    """One whose parts tests kill."""
    with ControlPlane.temporary(options=ControlPlaneOptions(audit=True)) as running:
        yield running
