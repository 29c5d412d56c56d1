"""The processes of an instance's further shards: one for each GPU but the first, which is the instance's own.

A shard without its instance ends, and an instance that lost a shard ends too: KV of a part of the model is of no use.
"""

import logging
import multiprocessing
import os
import signal
import threading
from multiprocessing.connection import Connection, wait
from typing import Final, NoReturn

from pointsman.process.logs import configure_logs
from pointsman.workers.elastic.engine.architecture import UnsupportedModel
from pointsman.workers.elastic.instance.loading import gpu_of, load
from pointsman.workers.elastic.instance.settings import InstanceSettings
from pointsman.workers.elastic.instance.shard import Result, Shard, store_of
from pointsman.workers.elastic.protocol import Iterate, Release

log = logging.getLogger(__name__)

_SPAWN: Final = multiprocessing.get_context("spawn")  # a fork would take over locks of this process's threads


class ShardProcesses:
    """Starts the shards 1, 2 … of ``settings``, which load their part of the model meanwhile. None, if it is whole."""

    def __init__(self, settings: InstanceSettings, store_at: str) -> None:
        self._pipes: list[Connection] = []
        self._processes = []
        for number in range(1, settings.tensor_parallel):
            here, there = _SPAWN.Pipe()
            process = _SPAWN.Process(target=_serve, args=(there, settings, number, store_at), daemon=True)
            process.start()
            there.close()  # so that the end of the process is the end of the pipe
            self._pipes.append(here)
            self._processes.append(process)
        self._closing = False

    @property
    def closing(self) -> bool:
        """Whether they were told to end."""
        return self._closing

    def slots(self, fits: int) -> int:
        """The slots of each shard, ``fits`` being those of the first. Waits until all have loaded.

        Raises UnsupportedModel as a shard did, and ChildProcessError where one ended instead.
        """
        found = [fits]
        for number, pipe in enumerate(self._pipes, 1):
            try:
                said: int | str = pipe.recv()
            except EOFError as error:
                raise ChildProcessError(f"shard {number} of the model ended while it was loading") from error
            if isinstance(said, str):
                raise UnsupportedModel(said)
            found.append(said)
        for pipe in self._pipes:
            pipe.send(min(found))
        if self._processes:
            threading.Thread(target=self._watch, name="shards", daemon=True).start()
        return min(found)

    def tell(self, what: Iterate | Release) -> None:
        """Have each shard do it. Raises OSError where one is gone."""
        for pipe in self._pipes:
            pipe.send(what)

    def results(self) -> list[Result]:
        """What came of the iteration that they were told last. Raises EOFError or OSError where one is gone."""
        return [pipe.recv() for pipe in self._pipes]

    def close(self) -> None:
        """End them."""
        self._closing = True
        for pipe in self._pipes:
            pipe.close()
        for process in self._processes:
            process.kill()

    def _watch(self) -> None:
        wait([process.sentinel for process in self._processes])
        if not self._closing:
            end_instance("a shard of the model has ended")


def end_instance(why: str) -> NoReturn:
    """End the process at once: its KV is lost, and the manager has what was here computed again."""
    log.critical("instance ends", extra={"why": why})
    os._exit(1)


def _serve(pipe: Connection, settings: InstanceSettings, number: int, store_at: str) -> None:
    for each in (signal.SIGINT, signal.SIGTERM):  # the instance hands over what is here, and then ends this process
        signal.signal(each, signal.SIG_IGN)
    configure_logs(settings.log_level, settings.log_format, settings.log_fields)
    try:
        loaded = load(settings, number)
    except (UnsupportedModel, OSError) as error:
        pipe.send(str(error))
        return
    pipe.send(loaded.fits)
    try:
        instance = loaded.instance(pipe.recv())
        shard = Shard(
            number,
            settings.tensor_parallel,
            settings.worker,
            settings.pod_ip,
            instance,
            store_of(store_at),
            store_at,
            gpu_of(settings, number),
        )
        while True:
            match pipe.recv():
                case Iterate() as what:
                    pipe.send(shard.iterate(what))
                case Release() as what:
                    shard.release(what)
    except (EOFError, BrokenPipeError):
        return
