"""The gateway's last moments, when it cannot follow the other gateways of its service."""

from collections.abc import Callable

import pytest

from pointsman.gateway import lingering
from pointsman.gateway.core.linger import OtherGateways
from pointsman.gateway.settings import Settings
from pointsman.kube.errors import Unreachable


async def test_why_the_other_gateways_are_unknown_is_logged(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    async def fail(_namespace: str, _service: str, _own: str, _found: Callable[[OtherGateways], None]) -> None:
        raise Unreachable("no API server is there")

    monkeypatch.setattr(lingering, "follow_other_gateways", fail)
    await lingering.linger(Settings(service="chat", linger_seconds=0.01, shutdown_seconds=0.1))
    (found,) = (each for each in caplog.records if each.message == "other gateways unknown")
    assert found.__dict__["why"] == "no API server is there"
