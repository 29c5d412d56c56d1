"""Writes the configuration of the chart's NATS server: an init container of its pod. No secret is on a command line."""

import os

from pointsman.operator.core.nats_config import server_configuration
from pointsman.operator.nats_settings import NatsConfigSettings
from pointsman.process.entry import run_process

MONITOR_PORT = 8222


async def run(settings: NatsConfigSettings) -> int:
    """Write the file, readable by its owner alone."""
    text = server_configuration(
        settings.logins(),
        name=settings.nats_server_name,
        host=settings.bind_host,
        port=settings.nats_port,
        monitor_port=MONITOR_PORT,
        store=str(settings.store),
        memory=settings.nats_max_memory,
        file=settings.nats_max_file,
    )
    os.umask(0o077)
    settings.configuration.write_text(text)
    return 0


def main() -> None:
    """Entry of ``python -m pointsman.operator.nats_config``."""
    run_process(NatsConfigSettings, run, OSError)


if __name__ == "__main__":
    main()
