"""``python -m pointsman.workers.elastic.instance``: one elastic instance."""

import asyncio
import logging
import os
import threading
from collections.abc import Callable
from contextlib import suppress

from aiohttp import web

from pointsman.api.protocol import names
from pointsman.process.entry import run_process
from pointsman.process.lifetime import Lifetime
from pointsman.process.listening import listen
from pointsman.workers.elastic.engine.architecture import UnsupportedModel
from pointsman.workers.elastic.engine.instance import Instance
from pointsman.workers.elastic.engine.nccl import nccl_environment
from pointsman.workers.elastic.instance.computer import Computer
from pointsman.workers.elastic.instance.loading import gpu_of, load
from pointsman.workers.elastic.instance.presence import Presence
from pointsman.workers.elastic.instance.server import Server
from pointsman.workers.elastic.instance.settings import InstanceSettings
from pointsman.workers.elastic.instance.shard import Shard, store_at
from pointsman.workers.elastic.instance.shard_processes import ShardProcesses

log = logging.getLogger("pointsman.workers.elastic.instance")


async def run(settings: InstanceSettings) -> int:
    """Serve until SIGTERM; then hand over what is here."""
    async with Lifetime() as life:
        if settings.gpus and settings.tensor_transport == "auto":
            os.environ.update(nccl_environment(settings.pod_ip))  # of the further shards too, which are not started yet
        store, at = store_at(settings.pod_ip)
        others = ShardProcesses(settings, at)
        life.callback(others.close)

        def loaded() -> Instance:
            first = load(settings)
            return first.instance(others.slots(first.fits))

        loading = _in_a_thread(loaded)
        if not await life.reach(_ended(loading)):
            return life.status  # told to stop while the model was loading
        instance = loading.result()
        gpu = gpu_of(settings, 0)
        shard = Shard(0, settings.tensor_parallel, settings.worker, settings.pod_ip, instance, store, at, gpu)
        computer = Computer(shard, others)
        life.callback(computer.close)
        token = settings.control_token.get_secret_value()
        server = Server(settings.worker, at, instance.pool.free, computer, token)
        runner = web.AppRunner(server.application(), access_log=None, shutdown_timeout=1.0)
        await runner.setup()
        life.push_async_callback(runner.cleanup)
        host, port = await listen(runner, settings.bind_host, settings.bind_port)
        log.info("listening for the manager", extra={"address": f"http://{host}:{port}"})
        presence = Presence(settings, names.address_url("http", settings.pod_ip, port))
        presence.start()
        life.push_async_callback(presence.stop)
        await life.stopping.wait()
        await server.leave(settings.drain_timeout_seconds)
    return life.status


def _in_a_thread(work: Callable[[], Instance]) -> "asyncio.Future[Instance]":
    """As ``asyncio.to_thread``, but the process may end while it works."""
    loop = asyncio.get_running_loop()
    done: asyncio.Future[Instance] = loop.create_future()

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


async def _ended(future: "asyncio.Future[Instance]") -> None:
    await asyncio.wait([future])


if __name__ == "__main__":
    run_process(InstanceSettings, run, UnsupportedModel, OSError)
