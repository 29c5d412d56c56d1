"""Pods of one namespace on the shared process node, and a control plane whose parts may be killed."""

import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from fixtures.cpu_limits import cpu_limits
from integration.local.pods import Pods
from pointsman.local.control_plane import ControlPlane, ControlPlaneOptions
from pointsman.local.node.images import Image
from pointsman.local.process_node import ProcessNode

__all__ = ["cpu_limits"]


@pytest.fixture(scope="module")
def process_node(control_plane: ControlPlane) -> Iterator[ProcessNode]:
    """A process node that joined the shared control plane. Image ``host`` runs the programs of this computer, image
    ``python`` has this environment's ``python`` on its PATH; ``add_image`` brings more.

    It leaves before the next module: other tests' pods must not be put on it.
    """
    images = {"host": Image(), "python": Image(path=(Path(sys.executable).parent,))}
    with ProcessNode(control_plane, images=images, restart_seconds=0.5) as node:
        yield node
    control_plane.kubectl("delete", "node", node.name)


@pytest.fixture
def pods(control_plane: ControlPlane, process_node: ProcessNode, namespace: str) -> Pods:
    """Runs and looks at pods in a namespace of this test's own."""
    return Pods(control_plane, namespace)


@pytest.fixture(scope="session")
def mortal_control_plane() -> Iterator[ControlPlane]:
    """One whose parts tests kill."""
    with ControlPlane.temporary(options=ControlPlaneOptions(audit=True)) as running:
        yield running
