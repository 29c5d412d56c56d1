"""The gateway's last moments, when it cannot follow the other gateways of its service."""

import asyncio
from collections.abc import Callable

import pytest

from fakes.clock import FakeClock
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
    clock, settings = FakeClock(), Settings(service="chat", linger_seconds=5, shutdown_seconds=20)
    lasting = asyncio.create_task(lingering.linger(settings, clock))
    await clock.advance(9.8)
    assert not lasting.done(), "the API server may still answer"
    await clock.advance(0.4)
    assert 14.8 <= await lasting <= 15.1, "open streams have what is left of 25 s"
    (found,) = (each for each in caplog.records if each.message == "other gateways unknown")
    assert found.__dict__["why"] == "no API server is there"
