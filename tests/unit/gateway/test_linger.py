"""How long a gateway that was told to end takes requests."""

from collections.abc import Callable

import pytest

from pointsman.gateway.core.linger import Linger, OtherGateways
from pointsman.gateway.discovery.kubernetes import other_gateways
from pointsman.kube.pods import Pod

NONE = OtherGateways(ready=0, starting=0)
STARTING = OtherGateways(ready=0, starting=1)
READY = OtherGateways(ready=1, starting=0)

STEP_S = 0.5


def ends_at_s(
    others: Callable[[float], OtherGateways | None], *, linger_s: float = 5.0, longest_s: float = 65.0
) -> float:
    """When it ends, seconds after its start, if ``others`` are the other gateways at each moment."""
    linger = Linger(began_s=100.0, linger_s=linger_s, longest_s=longest_s)
    now_s = 0.0
    while not linger.ends(100.0 + now_s, others(now_s)):
        now_s += STEP_S
    return now_s


def test_beside_a_ready_gateway_it_lingers_as_long_as_services_may_send() -> None:
    assert ends_at_s(lambda now_s: READY) == 5.0


def test_the_only_gateway_lingers_until_its_replacement_is_ready_and_services_know_it() -> None:
    assert ends_at_s(lambda now_s: STARTING if now_s < 20 else READY) == 25.0


def test_a_replacement_that_never_gets_ready_is_not_awaited_for_longer_than_the_grace_period_allows() -> None:
    assert ends_at_s(lambda now_s: STARTING) == 65.0


@pytest.mark.parametrize("linger_s", [0.5, 5.0])
def test_no_replacement_is_awaited_where_none_is_made(linger_s: float) -> None:
    """As after the service was deleted. A pod that is made is there a moment after the old one was deleted."""
    assert ends_at_s(lambda now_s: NONE, linger_s=linger_s) == max(linger_s, 1.0)


def test_what_is_not_known_is_awaited_until_the_api_server_should_have_answered() -> None:
    assert ends_at_s(lambda now_s: None) == 10.0
    assert ends_at_s(lambda now_s: None if now_s < 8 else READY) == 13.0


def test_a_replacement_that_ends_again_does_not_count() -> None:
    assert ends_at_s(lambda now_s: READY if now_s < 2 or now_s >= 10 else STARTING) == 15.0


def test_other_gateways_are_those_that_are_not_deleted_and_have_not_ended() -> None:
    def pod(name: str, *, ready: bool = True, deleted: bool = False, phase: str = "Running") -> Pod:
        meta = {"name": name, "uid": name, "resourceVersion": "1"}
        if deleted:
            meta["deletionTimestamp"] = "2026-01-01T00:00:00Z"
        conditions = [{"type": "Ready", "status": str(ready)}]
        return Pod.model_validate({"metadata": meta, "status": {"phase": phase, "conditions": conditions}})

    pods = [
        pod("own", deleted=True),
        pod("ready"),
        pod("starts", ready=False, phase="Pending"),
        pod("ends", deleted=True),
        pod("evicted", ready=False, phase="Failed"),
    ]
    assert other_gateways(pods, "own") == OtherGateways(ready=1, starting=1)
