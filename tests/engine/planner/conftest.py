"""What the planner's tests on real engines share."""

from collections.abc import Iterator

import pytest

from fixtures.cpu_limits import cpu_limits
from fixtures.engine_service import Service, running_service
from fixtures.engines import Engines
from pointsman.api.protocol.names import Role

__all__ = ["cpu_limits"]


@pytest.fixture(scope="package")
def service(engines: Engines) -> Iterator[Service]:
    """One prefill and one decode worker behind a gateway; only to be asked."""
    with running_service(engines, {"prefill-0": Role.PREFILL, "decode-0": Role.DECODE}) as running:
        yield running
