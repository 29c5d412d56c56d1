"""``python -m pointsman.workers.elastic.instance``: one elastic instance."""

import logging
from pathlib import Path

import torch
from aiohttp import web

from pointsman.process.entry import run_process
from pointsman.process.lifetime import Lifetime
from pointsman.process.listening import listen
from pointsman.workers.elastic.engine.architecture import UnsupportedModel, read_shape
from pointsman.workers.elastic.engine.instance import Instance
from pointsman.workers.elastic.engine.kv_pool import KvPool
from pointsman.workers.elastic.engine.model import Llama
from pointsman.workers.elastic.engine.weights import load_weights
from pointsman.workers.elastic.instance.computer import Computer
from pointsman.workers.elastic.instance.server import Server
from pointsman.workers.elastic.instance.settings import InstanceSettings

log = logging.getLogger("pointsman.workers.elastic.instance")


async def run(settings: InstanceSettings) -> int:
    """Serve until SIGTERM."""
    torch.set_num_threads(settings.threads)
    device = torch.device("cuda" if settings.gpus else "cpu")
    dtype = getattr(torch, settings.dtype)
    folder = Path(settings.model)
    shape = read_shape(folder)
    model = Llama(shape, load_weights(folder, shape, dtype, device))
    instance = Instance(model, KvPool(shape, settings.slots, dtype, device))
    computer = Computer(settings.worker, settings.pod_ip, instance)
    server = Server(settings.worker, settings.slots, computer, settings.control_token.get_secret_value())
    async with Lifetime() as life:
        life.callback(computer.close)
        runner = web.AppRunner(server.application(), access_log=None, shutdown_timeout=1.0)
        await runner.setup()
        life.push_async_callback(runner.cleanup)
        host, port = await listen(runner, settings.bind_host, settings.bind_port)
        log.info("listening on http://%s:%s for the manager", host, port)
        await life.stopping.wait()
    return life.status


if __name__ == "__main__":
    run_process(InstanceSettings, run, UnsupportedModel, OSError)
