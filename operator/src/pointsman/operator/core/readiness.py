"""The readiness gate of worker pods: a pod is Ready only while gateways may use it.

Who counts Ready pods then counts routable workers: a PodDisruptionBudget allows no second eviction until the
replacement of the first worker serves. The label stays what gateways obey; the condition follows it.
"""

from collections.abc import Collection, Iterator

from pointsman.operator.core.actions import SetRoutableCondition
from pointsman.operator.core.messages import reasons as text
from pointsman.operator.core.snapshot import Snapshot


def readiness_actions(snapshot: Snapshot, made_routable: Collection[str] = ()) -> Iterator[SetRoutableCondition]:
    """Conditions that differ from the label. ``made_routable``: uids of workers that get the label in this pass."""
    for worker in snapshot.workers:
        routable = worker.routable_label or worker.uid in made_routable
        if worker.routable_condition is None or worker.routable_condition == routable:
            continue
        if not (worker.terminating or worker.finished):
            why = text.condition_follows(routable)
            yield SetRoutableCondition(worker=worker.name, uid=worker.uid, routable=routable, why=why)
