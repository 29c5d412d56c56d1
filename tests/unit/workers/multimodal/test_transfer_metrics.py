"""What one side of embedding transfers shows."""

import msgspec
from prometheus_client import CollectorRegistry

from pointsman.workers.multimodal.transfer.metrics import EmbeddingTransferMetrics, TransferStatistics


def test_statistics_of_another_process_become_metrics() -> None:
    registry = CollectorRegistry()
    metrics = EmbeddingTransferMetrics("language", registry)

    def value(name: str, **labels: str) -> float | None:
        return registry.get_sample_value(f"pointsman_embedding_transfer_{name}", {"side": "language"} | labels)

    assert value("transfers_total", result="timed_out") == 0, "rates begin at 0"
    assert value("bytes_total", transport="nixl") == 0
    statistics = TransferStatistics(
        used_blocks=3,
        total_blocks=12,
        fragmentation=0.25,
        ended={"succeeded": 2, "timed_out": 1},
        resumes=4,
        sent_bytes={"nixl": 1000, "shared_memory": 5},
        seconds=(0.002, 0.2),
    )
    for _ in range(2):  # as it travels between processes
        metrics.observe(msgspec.convert(msgspec.to_builtins(statistics), TransferStatistics))
    assert value("used_blocks") == 3
    assert value("blocks") == 12
    assert value("fragmentation_ratio") == 0.25
    assert value("transfers_total", result="succeeded") == 4
    assert value("transfers_total", result="failed") == 0
    assert value("transfers_total", result="timed_out") == 2
    assert value("resumes_total") == 8
    assert value("bytes_total", transport="nixl") == 2000
    assert value("bytes_total", transport="shared_memory") == 10
    assert value("seconds_count") == 4
    assert value("seconds_bucket", le="0.0025") == 2
