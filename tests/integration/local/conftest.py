"""Pods of one namespace on the shared process node."""

import pytest

from integration.local.pods import Pods
from pointsman.local.control_plane import ControlPlane
from pointsman.local.process_node import ProcessNode


@pytest.fixture
def pods(control_plane: ControlPlane, process_node: ProcessNode, namespace: str) -> Pods:
    """Runs and looks at pods in a namespace of this test's own."""
    return Pods(control_plane, namespace)
