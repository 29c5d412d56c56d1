"""Pods of the API server as the core sees them."""

from datetime import UTC, datetime

from pointsman.kube.pods import LOST_AFTER_S, Pod
from pointsman.operator.observe import worker_of


def test_a_deleted_pod_is_given_up_a_while_after_the_end_of_its_grace_period() -> None:
    """The API server stamps a deletion with the time at which the pod is to be gone, not with when it was asked for."""
    metadata = {"name": "chat-0", "namespace": "default", "uid": "u", "resourceVersion": "1"}
    living = worker_of(Pod.model_validate({"metadata": metadata}))
    assert (living.terminating, living.lost_at_s) == (False, None)
    gone_by = datetime(2026, 5, 4, 12, 1, 30, tzinfo=UTC)
    deleted = worker_of(Pod.model_validate({"metadata": {**metadata, "deletionTimestamp": gone_by.isoformat()}}))
    assert (deleted.terminating, deleted.lost_at_s) == (True, gone_by.timestamp() + LOST_AFTER_S)
