"""What tests of the custom resources share."""

import pytest

from pointsman.local.control_plane import ControlPlane


@pytest.fixture(scope="session", autouse=True)
def crds(installed_crds: ControlPlane) -> ControlPlane:
    """The control plane with our CRDs: every test here needs them."""
    return installed_crds
