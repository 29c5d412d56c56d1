"""Workers that find no node: how long a plan waits for them, and which of them it gives up.

A plan gives up only workers that it added itself, and takes back at most the number by which it enlarged their pool: a
Pending worker of before, or of another pool, is not its own.
"""

from collections.abc import Iterable
from datetime import datetime
from typing import Final

from pointsman.operator.core.snapshot import Policy, Worker

NODE_PROVISION_S: Final = 900.0  # both cluster-autoscaler and Karpenter delete a node that has not joined by then


def given_up_at_s(worker: Worker, policy: Policy) -> float:
    """When an unschedulable worker is given up, in seconds since the epoch.

    Never while an autoscaler makes a node for it: the pod would be gone when its node comes.
    """
    deadline_s = worker.created_s + policy.spec.actions.scale_out.unschedulable_after_seconds
    return (
        deadline_s if worker.node_requested_s is None else max(deadline_s, worker.node_requested_s + NODE_PROVISION_S)
    )


def pending_of_plan(workers: Iterable[Worker], began: datetime | None, added: int) -> list[Worker]:
    """The unschedulable ones among ``workers`` that a plan added, the newest first.

    ``began``: when its execution did; ``added``: by how many it enlarged their pool.
    """
    if began is None:
        return []
    since_s = began.timestamp() // 1  # a pod's creation stamp has whole seconds
    waiting = [w for w in workers if w.active and w.unschedulable and w.created_s >= since_s]
    return sorted(waiting, key=lambda worker: (-worker.created_s, worker.name))[: max(0, added)]
