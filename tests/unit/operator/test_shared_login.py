"""Which pods may still use the shared NATS login of earlier versions: what is not known counts as use."""

import base64
from typing import Any

import pytest

from pointsman.operator.core.nats_logins import service_login
from pointsman.operator.core.shared_login import PodLogin, may_use_shared_login
from pointsman.operator.nats_settings import NatsServerSettings
from pointsman.operator.shared_login import own_login_since_s

OWN_SINCE_S = 1000.0
KEY = "the-key-of-the-services-in-the-tests-of-the-end"


def pod(created_s: float | None = 2000.0, **fields: bool) -> PodLogin:
    known = {"is_worker": True, "reports_metrics_port": True, "finished": False}
    return PodLogin(created_s=created_s, **(known | fields))


@pytest.mark.parametrize(
    ("found", "since_s", "uses"),
    [
        (pod(), OWN_SINCE_S, False),
        (pod(created_s=OWN_SINCE_S - 1), OWN_SINCE_S, True),
        (pod(created_s=OWN_SINCE_S), OWN_SINCE_S, True),  # both have whole seconds: it may have been before
        (pod(created_s=None), OWN_SINCE_S, True),
        (pod(), None, True),  # there is no Secret, or it has another login
        (pod(reports_metrics_port=False), OWN_SINCE_S, True),  # an image of an earlier version makes its stream itself
        (pod(reports_metrics_port=False, is_worker=False), OWN_SINCE_S, False),
        (pod(created_s=1.0), 0.0, False),  # the Secret was made with the login
        (pod(created_s=None, finished=True), None, False),
    ],
)
def test_a_pod_uses_the_shared_login_unless_it_surely_has_its_own(
    found: PodLogin, since_s: float | None, uses: bool
) -> None:
    assert may_use_shared_login(found, since_s) is uses


def secret(user: str, created: str, *written: str) -> dict[str, Any]:
    entries = [
        {"manager": f"m{number}", "time": time, "fieldsV1": {"f:data": {"f:nats-user": {}}}}
        for number, time in enumerate(written)
    ]
    by_hand = {"manager": "kubectl", "time": "2026-01-09T00:00:00Z", "fieldsV1": {"f:data": {"f:control-token": {}}}}
    metadata = {"creationTimestamp": created, "managedFields": [*entries, by_hand]}
    return {"metadata": metadata, "data": {"nats-user": base64.b64encode(user.encode()).decode()}}


def test_a_secret_tells_since_when_it_has_the_login_of_its_service() -> None:
    own = service_login(KEY, "models", "uid-1", 1024).user
    made, later = "2026-01-01T00:00:00Z", "2026-01-02T00:00:00Z"
    assert own_login_since_s(secret(own, made, later), "models") == 1767312000.0, "a new control token is no new login"
    assert own_login_since_s(secret(own, made, made), "models") == 0.0, "it was made with it"
    assert own_login_since_s(secret("pointsman", made, later), "models") is None, "the shared login"
    assert own_login_since_s(secret(own, made, later), "other") is None, "of another namespace"
    assert own_login_since_s(secret(own, made), "models") is None, "nobody knows when"


@pytest.mark.parametrize(("written", "accepted"), [("accepted", True), ("kept", True), ("refused", False)])
def test_a_server_lets_earlier_versions_in_until_its_secret_says_refused(written: Any, accepted: bool) -> None:
    told: dict[str, Any] = {
        "nats_user": "pointsman",
        "nats_password": "p",
        "nats_service_key": KEY,
        "nats_earlier_versions": written,
    }
    assert NatsServerSettings(**told).accepts_earlier_versions is accepted
