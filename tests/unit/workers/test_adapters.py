"""A worker tells which LoRA adapters its engine serves, as the engine lists them."""

import json
from typing import Any

import pytest
from prometheus_client import CollectorRegistry

from pointsman.workers.engine import AsgiEngine, Message, Receive, Scope, Send

BASE = {"id": "chat", "object": "model", "root": "/models/chat", "parent": None}


def engine(status: int, body: Any) -> AsgiEngine:
    """An engine whose /v1/models answers so."""

    async def app(scope: Scope, _receive: Receive, send: Send) -> None:
        assert (scope["method"], scope["path"]) == ("GET", "/v1/models")
        start: Message = {"type": "http.response.start", "status": status, "headers": []}
        await send(start)
        await send({"type": "http.response.body", "body": json.dumps(body).encode()})

    return AsgiEngine(app, registry=CollectorRegistry())


@pytest.mark.parametrize(
    ("status", "body", "adapters"),
    [
        (200, {"data": [BASE]}, ()),
        (
            200,
            {"data": [BASE, {"id": "sql", "parent": "chat"}, {"id": "cooking", "parent": "chat"}]},
            ("cooking", "sql"),
        ),
        (200, {"data": None}, ()),
        (200, {"data": ["chat", {"parent": "chat"}]}, ()),
        (404, {"error": {"message": "no such path"}}, ()),
    ],
)
async def test_adapters_are_the_listed_models_that_have_a_parent(
    status: int, body: Any, adapters: tuple[str, ...]
) -> None:
    assert await engine(status, body).adapters() == adapters
