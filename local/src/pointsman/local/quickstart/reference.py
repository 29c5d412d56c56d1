"""What the answers of a quick start are compared with: one plain vLLM server, without anything of Pointsman."""

from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path

from pointsman.local.cluster import LocalCluster
from pointsman.local.engine.plain_server import plain_server
from pointsman.local.traffic import Comparison, Endpoint, Record, closed_loop, compare


@asynccontextmanager
async def plain_endpoint(cluster: LocalCluster, model: Path, dtype: str) -> AsyncIterator[Endpoint]:
    """A plain server with the model in ``dtype``, while the block runs."""
    log = cluster.directory / "logs" / f"plain-{dtype}.log"
    async with (
        plain_server(
            cluster.environment, cluster.fork_socket, model, served_name="plain", dtype=dtype, log=log
        ) as server,
        Endpoint(server.base_url, "plain") as endpoint,
    ):
        yield endpoint


async def beside_plain_server(cluster: LocalCluster, model: Path, records: Sequence[Record]) -> Comparison:
    """The answers in ``records`` beside those of a plain server in float32 to the same prompts."""
    async with plain_endpoint(cluster, model, "float32") as endpoint:
        reference = await closed_loop(endpoint, [record.prompt for record in records], clients=2)
    return compare(reference, records)
