"""Notices that a member of a group is gone, for a transport that would wait for it without end."""

import logging
import threading
from collections.abc import Callable
from datetime import timedelta
from typing import Final

import torch
import torch.distributed as dist

from pointsman.workers.elastic.engine.meeting import GroupBroken

log = logging.getLogger(__name__)

BEAT_SECONDS: Final = 0.5
SILENCE_SECONDS: Final = 2.0
"""With the time between two beats, less than the 3 s in which a death is to be noticed."""


class Watch:
    """All members of ``beats`` sum nothing twice a second, in threads of their own, until one is gone or stops.

    A process that died closes its connections, which is noticed at the next beat; one that stands still, or whose node
    is cut off, is silent. ``lost`` is called once, in the thread, unless this member stopped before.
    """

    def __init__(self, beats: "dist.ProcessGroup", lost: Callable[[], None]) -> None:
        self._lost = lost
        self._why: str | None = None
        self._stopping = threading.Event()
        # The thread alone has the connections, so that they close when it ends.
        threading.Thread(target=self._run, args=(beats,), name="liveness", daemon=True).start()

    def check(self) -> None:
        """Raises GroupBroken if a member is gone."""
        if self._why is not None:
            raise GroupBroken(self._why)

    def stop(self) -> None:
        """Members that have not stopped take this one for gone, within `BEAT_SECONDS`."""
        self._stopping.set()

    def _run(self, beats: "dist.ProcessGroup") -> None:
        options = dist.AllreduceOptions()
        options.timeout = timedelta(seconds=SILENCE_SECONDS)
        while not self._stopping.wait(BEAT_SECONDS):
            try:
                beats.allreduce([torch.zeros(1)], options).wait()
            except RuntimeError as error:
                if not self._stopping.is_set():
                    self._why = f"a member is gone: {error}"
                    self._lost()
                return
