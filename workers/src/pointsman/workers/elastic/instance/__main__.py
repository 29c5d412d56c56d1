"""``python -m pointsman.workers.elastic.instance``: one elastic instance."""

import asyncio
import logging
import threading
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

import torch
from aiohttp import web

from pointsman.api.protocol import names
from pointsman.process.entry import run_process
from pointsman.process.lifetime import Lifetime
from pointsman.process.listening import listen
from pointsman.workers.elastic.engine.architecture import Shape, UnsupportedModel, read_shape
from pointsman.workers.elastic.engine.instance import Instance
from pointsman.workers.elastic.engine.kv_pool import KvPool
from pointsman.workers.elastic.engine.model import Llama
from pointsman.workers.elastic.engine.weights import load_weights
from pointsman.workers.elastic.instance.computer import Computer
from pointsman.workers.elastic.instance.presence import Presence
from pointsman.workers.elastic.instance.server import Server
from pointsman.workers.elastic.instance.settings import CPU_SLOTS, InstanceSettings

log = logging.getLogger("pointsman.workers.elastic.instance")

GPU_SHARE = 0.9  # of a GPU's memory, for weights and KV; the rest is for computing


@dataclass(frozen=True, slots=True)
class _Loaded:
    instance: Instance
    slots: int


async def run(settings: InstanceSettings) -> int:
    """Serve until SIGTERM; then hand over what is here."""
    async with Lifetime() as life:
        loading = _in_a_thread(lambda: _load(settings))
        if not await life.reach(_ended(loading)):
            return life.status  # told to stop while the model was loading
        loaded = loading.result()
        computer = Computer(settings.worker, settings.pod_ip, loaded.instance)
        life.callback(computer.close)
        server = Server(settings.worker, loaded.slots, computer, settings.control_token.get_secret_value())
        runner = web.AppRunner(server.application(), access_log=None, shutdown_timeout=1.0)
        await runner.setup()
        life.push_async_callback(runner.cleanup)
        host, port = await listen(runner, settings.bind_host, settings.bind_port)
        log.info("listening on http://%s:%s for the manager", host, port)
        presence = Presence(settings, names.address_url("http", settings.pod_ip, port))
        presence.start()
        life.push_async_callback(presence.stop)
        await life.stopping.wait()
        await server.leave(settings.drain_timeout_seconds)
    return life.status


def _load(settings: InstanceSettings) -> _Loaded:
    """Minutes, for large models. Raises UnsupportedModel or OSError."""
    torch.set_num_threads(settings.threads)
    device = torch.device("cuda" if settings.gpus else "cpu")
    dtype = getattr(torch, settings.dtype)
    folder = model_folder(settings.model, settings.model_revision)
    shape = read_shape(folder)
    model = Llama(shape, load_weights(folder, shape, dtype, device))
    slots = settings.slots or slots_that_fit(shape, dtype, device)
    log.info("model loaded", extra={"model": settings.model, "slots": slots})
    return _Loaded(Instance(model, KvPool(shape, slots, dtype, device)), slots)


def _in_a_thread(work: Callable[[], _Loaded]) -> "asyncio.Future[_Loaded]":
    """As ``asyncio.to_thread``, but the process may end while it works."""
    loop = asyncio.get_running_loop()
    done: asyncio.Future[_Loaded] = loop.create_future()

    def run() -> None:
        with suppress(RuntimeError):  # the loop is closed: nobody waits any more
            try:
                result = work()
            except Exception as error:  # noqa: BLE001 - whatever it is, who waits must hear of it
                loop.call_soon_threadsafe(done.set_exception, error)
            else:
                loop.call_soon_threadsafe(done.set_result, result)

    threading.Thread(target=run, name="loading", daemon=True).start()
    return done


async def _ended(future: "asyncio.Future[_Loaded]") -> None:
    await asyncio.wait([future])


def model_folder(model: str, revision: str | None) -> Path:
    """Where the files of ``model`` are; those of a hub are fetched first. Raises OSError."""
    if model.startswith("/"):
        return Path(model)
    from huggingface_hub import snapshot_download

    return Path(snapshot_download(model, revision=revision, allow_patterns=["*.json", "*.safetensors"]))


def slots_that_fit(shape: Shape, dtype: torch.dtype, device: torch.device) -> int:
    """Tokens of KV beside what is on ``device`` already. Raises UnsupportedModel if there is no room for any."""
    if device.type == "cpu":
        return CPU_SLOTS
    free, total = torch.cuda.mem_get_info(device)
    token_bytes = 2 * shape.layers * shape.kv_heads * shape.head_size * dtype.itemsize
    slots: int = int(free - (1 - GPU_SHARE) * total) // token_bytes
    if slots < 1:
        raise UnsupportedModel(
            f"the model leaves {free / 2**30:.1f} of the GPU's {total / 2**30:.1f} GiB free; "
            f"an instance needs more than {(1 - GPU_SHARE) * total / 2**30:.1f} GiB for KV and computing"
        )
    return slots


if __name__ == "__main__":
    run_process(InstanceSettings, run, UnsupportedModel, OSError)
