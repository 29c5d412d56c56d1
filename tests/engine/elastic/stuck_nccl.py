"""What becomes of a member whose communicator does not end when another member is gone. Prints JSON.

    python -m engine.elastic.stuck_nccl HOW

``HOW``: "call": a call into NCCL never returns; "abort": the abort does not; "settle": the GPU never finishes. In each
case the process must end. "slow": the abort takes longer than a member waits for it, and the next group is not to
connect meanwhile; prints what happened in which order.
"""

import json
import sys
import threading
import time
from typing import Any

import torch

from engine.elastic.nccl_groups import groups
from engine.elastic.strict_nccl import StrictCommunicator, StrictGpu
from pointsman.process.logs import configure_logs
from pointsman.workers.elastic.engine import nccl
from pointsman.workers.elastic.engine.meeting import GroupBroken

HAPPENED: list[str] = []
NEVER = threading.Event()


class StuckCommunicator(StrictCommunicator):
    """Of the first member."""

    how = ""

    def _end_coalescing(self) -> Any:
        if self.how == "call":
            NEVER.wait()
        return super()._end_coalescing()

    def abort(self) -> None:
        """See ProcessGroupNCCL."""
        HAPPENED.append("abort begins")
        if self.how == "abort":
            NEVER.wait()
        super().abort()
        if self.how == "slow":
            time.sleep(nccl._CLOSE_S + 0.5)
        HAPPENED.append("abort ends")


class StuckGpu(StrictGpu):
    """Of the first member."""

    communicator = StuckCommunicator
    how = ""

    def settle(self) -> None:
        """See Gpu."""
        if self.how == "settle":
            NEVER.wait()
        super().settle()

    def connect(self, *of: Any) -> Any:
        """See Gpu."""
        HAPPENED.append("connects")
        return super().connect(*of)


def main(how: str) -> list[str]:
    """The second of two members goes while the first one sends to it; then a group forms again."""
    StuckCommunicator.how = StuckGpu.how = how
    if how != "slow":
        vars(nccl).update(ABORT_S=1.0, SETTLE_S=1.0)
    first, second = groups([StuckGpu(), StrictGpu()])
    second.close()
    try:
        exchange = first.exchange()
        exchange.send(torch.ones(2), 1)
        exchange.begin()
        first.end()
    except GroupBroken:
        first.close()
    again = groups([StuckGpu(), StrictGpu()])
    found = list(HAPPENED)
    for each in again:
        each.close()
    return found


if __name__ == "__main__":
    configure_logs("info", "text", {})
    print(json.dumps(main(sys.argv[1])), flush=True)
