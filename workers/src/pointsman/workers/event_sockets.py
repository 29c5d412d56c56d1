"""Where an engine publishes its KV events: named by the settings, so that engine and worker find the same place."""

import hashlib
import tempfile
from pathlib import Path
from typing import Final

from pointsman.workers.settings import WorkerSettings

_MAX_PATH_BYTES: Final = 100  # the address of a Unix socket holds 107


def kv_event_endpoints(settings: WorkerSettings) -> tuple[str, str]:
    """ZMQ endpoints of the engine's KV events and of their replay.

    They are files of the pod, not ports: the events hold token ids, and no other pod may read them, also where pods
    share their host's network. vLLM binds an ``ipc`` endpoint.
    """
    owner = "/".join((settings.namespace, settings.worker, settings.pod_uid, settings.pod_ip))
    name = f"pointsman-kv-{hashlib.sha256(owner.encode()).hexdigest()[:16]}"
    folder = Path(tempfile.gettempdir())
    if len(bytes(folder / f"{name}.events")) > _MAX_PATH_BYTES:
        folder = Path("/tmp")
    return f"ipc://{folder / name}.events", f"ipc://{folder / name}.replay"
