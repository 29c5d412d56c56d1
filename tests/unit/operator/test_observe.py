"""Pods of the API server as the core sees them."""

from datetime import UTC, datetime

from pointsman.kube.pods import Pod
from pointsman.operator.observe import worker_of


def test_a_deleted_pods_grace_period_ends_when_the_api_server_says() -> None:
    """The API server stamps a deletion with the time at which the pod is to be gone, not with when it was asked for."""
    metadata = {"name": "chat-0", "namespace": "default", "uid": "u", "resourceVersion": "1"}
    living = worker_of(Pod.model_validate({"metadata": metadata}))
    assert (living.terminating, living.gone_by_s) == (False, None)
    gone_by = datetime(2026, 5, 4, 12, 1, 30, tzinfo=UTC)
    deleted = worker_of(Pod.model_validate({"metadata": {**metadata, "deletionTimestamp": gone_by.isoformat()}}))
    assert (deleted.terminating, deleted.gone_by_s) == (True, gone_by.timestamp())
