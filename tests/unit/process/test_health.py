"""/healthz, /readyz and /metrics over real HTTP."""

import aiohttp
import pytest
from prometheus_client import CollectorRegistry, Counter

from pointsman.process.errors import CannotListen
from pointsman.process.health import HealthServer


async def test_readiness_says_what_is_missing_and_metrics_what_was_counted() -> None:
    registry = CollectorRegistry()
    Counter("looks", "Looks.", registry=registry).inc(3)
    missing: list[str] = ["pods are not listed yet"]
    async with (
        HealthServer("127.0.0.1", 0, registry, lambda: missing[0] if missing else None) as server,
        aiohttp.ClientSession(f"http://127.0.0.1:{server.port}") as session,
    ):
        async with session.get("/healthz") as answer:
            assert answer.status == 200
        async with session.get("/readyz") as answer:
            assert (answer.status, await answer.text()) == (503, "pods are not listed yet\n")
        missing.clear()
        async with session.get("/readyz") as answer:
            assert answer.status == 200
        async with session.get("/metrics") as answer:
            assert "looks_total 3.0" in await answer.text()


async def test_a_taken_address_is_named() -> None:
    async with HealthServer("127.0.0.1", 0, CollectorRegistry(), lambda: None) as first:
        with pytest.raises(CannotListen, match=rf"127\.0\.0\.1:{first.port}: "):
            async with HealthServer("127.0.0.1", first.port, CollectorRegistry(), lambda: None):
                pass
