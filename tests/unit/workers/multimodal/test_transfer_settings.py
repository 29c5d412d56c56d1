"""The embedding buffer as the environment sets it."""

import pytest

from pointsman.process.errors import BadSettings
from pointsman.workers.multimodal.transfer.settings import EmbeddingTransferSettings


def buffer(settings: EmbeddingTransferSettings) -> tuple[int, int, int]:
    """Its size in requests, and the sizes of a block and of a default reservation."""
    return settings.embedding_cache_buffer_size, settings.multimodal_block_size, settings.default_multimodal_blocks


def test_the_defaults_are_those_of_the_seed(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("MULTIMODAL_BLOCK_SIZE", "DEFAULT_MULTIMODAL_BLOCKS", "EMBEDDING_CACHE_BUFFER_SIZE"):
        monkeypatch.delenv(f"POINTSMAN_{name}", raising=False)
    assert buffer(EmbeddingTransferSettings.read()) == (64, 128, 8)


def test_the_environment_sets_each(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("POINTSMAN_MULTIMODAL_BLOCK_SIZE", "16")
    monkeypatch.setenv("POINTSMAN_DEFAULT_MULTIMODAL_BLOCKS", "3")
    monkeypatch.setenv("POINTSMAN_EMBEDDING_CACHE_BUFFER_SIZE", "2")
    monkeypatch.setenv("POINTSMAN_EMBEDDING_TRANSFER_TIMEOUT_SECONDS", "1.5")
    settings = EmbeddingTransferSettings.read()
    assert buffer(settings) == (2, 16, 3)
    assert settings.embedding_transfer_timeout_seconds == 1.5
    assert settings.transports == ("shared_memory", "nixl", "tcp")
    monkeypatch.setenv("POINTSMAN_EMBEDDING_TRANSFER_TRANSPORTS", "tcp")
    assert EmbeddingTransferSettings.read().transports == ("tcp",)


@pytest.mark.parametrize(
    ("name", "value", "words"),
    [
        ("MULTIMODAL_BLOCK_SIZE", "0", r"greater than or equal to 1 \(got '0'\)"),
        ("DEFAULT_MULTIMODAL_BLOCKS", "eight", r"a valid integer.*\(got 'eight'\)"),
        ("EMBEDDING_CACHE_BUFFER_SIZE", "-1", r"greater than or equal to 1 \(got '-1'\)"),
        ("EMBEDDING_TRANSFER_TIMEOUT_SECONDS", "0", r"greater than 0 \(got '0'\)"),
        ("EMBEDDING_TRANSFER_TRANSPORTS", "tcp,rdma", r"names of shared_memory, nixl, tcp.*\(got 'tcp,rdma'\)"),
    ],
)
def test_a_wrong_value_is_refused_with_its_name_and_what_is_right(
    monkeypatch: pytest.MonkeyPatch, name: str, value: str, words: str
) -> None:
    monkeypatch.setenv(f"POINTSMAN_{name}", value)
    with pytest.raises(BadSettings, match=f"POINTSMAN_{name}: .*{words}"):
        EmbeddingTransferSettings.read()
