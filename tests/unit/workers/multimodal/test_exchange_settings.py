"""The exchange of embeddings as the environment sets it."""

import pytest
from pydantic import SecretStr

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


@pytest.mark.parametrize(
    ("max_item_tokens", "token_bytes", "cache_mib", "num_blocks"),
    [
        (8192, 7168, 512, 257),  # Qwen2.5-VL 7B: four images
        (16384, 16384, 512, 257),  # no more than the cache
        (16384, 16384, 128, 65),
        (100, 64, 512, 9),  # one block beside a default reservation
        (8192, 1 << 20, 1, 9),
    ],
)
def test_the_buffer_has_room_for_a_few_images_and_not_more_than_the_cache(
    max_item_tokens: int, token_bytes: int, cache_mib: int, num_blocks: int
) -> None:
    settings = ExchangeSettings(control_token=SecretStr(TOKEN), embedding_cache_mib=cache_mib)
    assert settings.allocator(max_item_tokens, token_bytes).num_blocks == num_blocks
