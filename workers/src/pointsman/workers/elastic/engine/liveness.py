"""Notices that a member of a group is gone or stands still, and ends what waits for it."""

import threading
import time
from collections.abc import Callable
from contextlib import suppress
from datetime import timedelta
from typing import Final

import torch
import torch.distributed as dist

from pointsman.workers.elastic.engine.meeting import GroupBroken

BEAT_S: Final = 0.5
SILENCE_S: Final = 2.0
"""With the time between two beats, less than the 3 s in which a death is to be noticed."""
_BEATS: Final = 1  # tag; tensors have 0
_NOBODY: Final = 2  # tag that no member ever sends
_AT_ONCE: Final = timedelta(milliseconds=1)
_END_S: Final = 1.0
_JOIN_S: Final = 0.02


class Watch:
    """Twice a second each member of ``gloo`` sends a byte to the next one, in a thread of its own.

    A process that died closes its connections, which gloo notices by itself; one that stands still, or whose node is
    cut off, is silent. Who misses a beat closes its own connections, so all members notice at the next beat, and what
    waits for any of them ends. ``lost`` is called once, in the thread, unless this member stopped before.
    """

    def __init__(self, gloo: "dist.ProcessGroup", rank: int, size: int) -> None:
        self.lost: Callable[[], None] = lambda: None
        self._gloo = gloo
        self._rank = rank
        self._size = size
        self._why: str | None = None
        self._stopping = threading.Event()
        self._left = threading.Event()
        self._thread = threading.Thread(target=self._run, name="liveness", daemon=True)
        self._thread.start()

    def check(self) -> None:
        """Raises GroupBroken if a member is gone."""
        if self._why is not None:
            raise GroupBroken(self._why)

    def stop(self) -> None:
        """Close all connections: members that have not stopped take this one for gone, at once."""
        self._stopping.set()
        self._close()
        deadline_s = time.monotonic() + _END_S
        # A thread in gloo that outlives Python's end would abort the process.
        while self._thread.is_alive() and not self._left.is_set() and time.monotonic() < deadline_s:
            if threading.current_thread() is self._thread:
                return
            self._thread.join(_JOIN_S)

    def _run(self) -> None:
        if self._lost():
            self._left.set()  # of gloo: what comes now can take seconds, and nobody who stops needs it
            self.lost()

    def _lost(self) -> bool:
        """Whether a member is gone; False once this one stops."""
        sent, received = torch.zeros(1, dtype=torch.uint8), torch.zeros(1, dtype=torch.uint8)
        silence = timedelta(seconds=SILENCE_S)
        while not self._stopping.wait(BEAT_S):
            try:
                sending = self._gloo.send([sent], (self._rank + 1) % self._size, _BEATS)
                self._gloo.recv([received], (self._rank - 1) % self._size, _BEATS).wait(silence)
                sending.wait(silence)
            except RuntimeError as error:
                if self._stopping.is_set():
                    return False
                self._why = f"a member is disconnected: {error}"
                self._close()
                return True
        return False

    def _close(self) -> None:
        """Gloo closes all connections of a group when one transfer took too long, and knows no other way."""
        for peer in range(self._size):
            if peer != self._rank:
                with suppress(RuntimeError):  # as it should
                    self._gloo.recv([torch.empty(1)], peer, _NOBODY).wait(_AT_ONCE)
