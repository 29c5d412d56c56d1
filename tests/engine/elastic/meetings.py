"""A member that dies when it has come to a meeting and the others are to connect to it, or it to them. Prints JSON.

python -m engine.elastic.meetings
"""

import json
import multiprocessing
import os
import signal
import time
from typing import Any

import torch.distributed as dist

from pointsman.workers.elastic.engine.groups import Group
from pointsman.workers.elastic.engine.meeting import GroupBroken, meet
from pointsman.workers.elastic.instance.shard import store_at, store_of

SPAWN = multiprocessing.get_context("spawn")
ADDRESS = "127.0.0.1"


class LastWords(dist.Store):  # type: ignore[misc]
    """Passes on at which address this member is, and kills it when it would read those of others."""

    def __init__(self, store: dist.Store) -> None:
        super().__init__()
        self._store = store

    def set(self, key: str, value: str) -> None:
        """Of this member."""
        self._store.set(key, value)

    def wait(self, *_: Any) -> None:
        """Never returns."""
        os.kill(os.getpid(), signal.SIGKILL)

    def get(self, key: str) -> bytes:
        """Never returns."""
        os.kill(os.getpid(), signal.SIGKILL)
        raise AssertionError(key)

    def has_extended_api(self) -> bool:
        """Only the three above."""
        return False


def come(store: str, rank: int, size: int, dying: int, noticed: Any) -> None:
    """One member's part, and how many seconds it took to notice; None: it did not."""
    began_s = time.monotonic()
    of = store_of(store)
    names = [str(number) for number in range(size)]
    try:
        store_of_mine = LastWords(of) if rank == dying else of
        group = meet(lambda: Group.join(store_of_mine, "e", names, names[rank], address=ADDRESS, timeout_s=10))
        group.agree()  # the dead may have been reached, by the kernel alone
    except GroupBroken:
        noticed.put(time.monotonic() - began_s)
    else:
        noticed.put(None)


def main() -> list[dict[str, Any]]:
    """For groups of two and three, and each member that may die: what the others noticed."""
    found = []
    for size in (2, 3):
        for dying in range(size):
            store, at = store_at(ADDRESS)
            noticed = SPAWN.Queue()
            members = [SPAWN.Process(target=come, args=(at, rank, size, dying, noticed)) for rank in range(size)]
            for member in members:
                member.start()
            seconds = [noticed.get(timeout=60) for _ in range(size - 1)]
            for member in members:
                member.join()
            found.append({"size": size, "died": members[dying].exitcode == -signal.SIGKILL, "seconds": seconds})
            del store
    return found


if __name__ == "__main__":
    print(json.dumps(main()))
