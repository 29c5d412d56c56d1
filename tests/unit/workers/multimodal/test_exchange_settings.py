"""The exchange of embeddings as the environment sets it."""

import pytest

from pointsman.workers.multimodal.exchange.settings import ExchangeSettings

TOKEN = "the-token-of-the-service"


def test_embeddings_go_over_the_port_that_needs_the_token_unless_another_way_is_named(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("POINTSMAN_CONTROL_TOKEN", TOKEN)
    monkeypatch.delenv("POINTSMAN_EMBEDDING_TRANSFER_TRANSPORTS", raising=False)
    assert ExchangeSettings.read().transports == ("tcp",)
    monkeypatch.setenv("POINTSMAN_EMBEDDING_TRANSFER_TRANSPORTS", "nixl,tcp")
    assert ExchangeSettings.read().transports == ("nixl", "tcp")
