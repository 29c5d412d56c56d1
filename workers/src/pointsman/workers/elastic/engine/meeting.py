"""Work that needs all members of a group, some of which may be dead."""

import threading
import time
from collections.abc import Callable
from typing import Final, TypeVar

JOIN_S: Final = 2.5
"""Members that live meet within milliseconds; one that died meanwhile is to be noticed within 3 s."""
_LOOK_S: Final = 0.1

T = TypeVar("T")


class GroupBroken(RuntimeError):
    """A member did not answer in time, or its connection broke. The group is of no more use."""


def meet(work: Callable[[], T], limit_s: float = JOIN_S, check: Callable[[], None] = lambda: None) -> T:
    """What ``work`` returns, which joins groups. Raises GroupBroken as it or ``check`` does, and after ``limit_s``.

    Gloo waits five times its limit for a member that died between coming and connecting, torch's store for ever
    for an answer of one that stands still, and NCCL for ever for both. So it works in a thread, which is left alone
    then.
    """
    done: list[T | Exception] = []

    def run() -> None:
        try:
            done.append(work())
        except Exception as error:  # noqa: BLE001 - whatever it is, the caller must hear of it
            done.append(error)

    thread = threading.Thread(target=run, name="meeting", daemon=True)
    thread.start()
    deadline_s = time.monotonic() + limit_s
    while thread.is_alive() and (left_s := deadline_s - time.monotonic()) > 0:
        check()
        thread.join(min(left_s, _LOOK_S))
    if not done:
        raise GroupBroken(f"the members did not meet within {limit_s:g} s")
    found = done.pop()
    if isinstance(found, Exception):
        try:
            raise found
        finally:
            del found  # its frames, and the groups in them, would stay until the next garbage collection
    return found
