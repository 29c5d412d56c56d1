"""``python -m pointsman.local.node``: the process node as a process."""

import asyncio
import signal
import sys

from pointsman.local.node.node import Node
from pointsman.local.node.settings import NodeSettings
from pointsman.process.logs import configure_logs


def main() -> int:
    """Run until SIGTERM; the pods' processes go on, and the next node finds them."""
    configure_logs("info", "text", {})
    settings = NodeSettings(_cli_parse_args=sys.argv[1:])
    asyncio.run(_run(settings))
    return 0


async def _run(settings: NodeSettings) -> None:
    task = asyncio.create_task(Node(settings).run())
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, task.cancel)
    try:
        await task
    except asyncio.CancelledError:
        return


if __name__ == "__main__":
    sys.exit(main())
