"""Status, restarts, probes and refusals of the process node."""

from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pointsman.local.node.core.pod_status import phase, pod_status
from pointsman.local.node.core.probe_count import ProbeCount
from pointsman.local.node.core.refusals import TOKEN_PATH, refusals, wants_token
from pointsman.local.node.core.restarts import LONGEST_S, restart_delay_s, restarts
from pointsman.local.node.core.types import ContainerView, Finished, PodView, Running, Waiting

NOW = datetime(2026, 11, 20, 12, 0, tzinfo=UTC)
WAITING = Waiting("ContainerCreating")
READY = Running(NOW, "process://1-1", started=True, ready=True)
UNREADY = Running(NOW, "process://1-1", started=True, ready=False)


def ended(code: int) -> Finished:
    return Finished(code, "Error" if code else "Completed", "", NOW, NOW, "process://1-1")


def view(*states: Any, init: tuple[Any, ...] = (), terminating: bool = False, last: Finished | None = None) -> PodView:
    def views(prefix: str, of: tuple[Any, ...]) -> list[ContainerView]:
        return [ContainerView(f"{prefix}{n}", "image", "id", state, last, 0) for n, state in enumerate(of)]

    return PodView(NOW, "127.1.2.3", "127.1.2.1", views("init", init), views("main", states), terminating)


def pod(policy: str = "Always", **status: Any) -> dict[str, Any]:
    return {"metadata": {"name": "a", "generation": 3}, "spec": {"restartPolicy": policy}, "status": status}


@pytest.mark.parametrize(
    ("policy", "of", "expected"),
    [
        ("Always", view(WAITING), "Pending"),
        ("Always", view(READY), "Running"),
        ("Always", view(READY, WAITING), "Pending"),
        ("Always", view(Waiting("CrashLoopBackOff"), last=ended(1)), "Running"),
        ("Always", view(ended(0)), "Running"),
        ("Always", view(ended(0), terminating=True), "Succeeded"),
        ("Always", view(ended(1), terminating=True), "Failed"),
        ("Never", view(ended(0), ended(0)), "Succeeded"),
        ("Never", view(ended(0), ended(2)), "Failed"),
        ("Never", view(ended(2), READY), "Running"),
        ("OnFailure", view(ended(2)), "Running"),
        ("OnFailure", view(ended(0)), "Succeeded"),
        ("Always", view(WAITING, init=(UNREADY,)), "Pending"),
        ("Never", view(WAITING, init=(ended(1),)), "Failed"),
    ],
)
def test_the_phase_of_a_pod(policy: str, of: PodView, expected: str) -> None:
    assert phase(pod(policy), of) == expected


def conditions(status: dict[str, Any]) -> dict[str, dict[str, Any]]:
    return {condition["type"]: condition for condition in status["conditions"]}


def test_a_condition_keeps_its_time_until_it_turns() -> None:
    before = pod_status(pod(), view(UNREADY), NOW)

    same = conditions(pod_status(pod(conditions=before["conditions"]), view(UNREADY), NOW + timedelta(minutes=1)))
    turned = conditions(pod_status(pod(conditions=before["conditions"]), view(READY), NOW + timedelta(minutes=1)))

    assert same["Ready"] == conditions(before)["Ready"]
    assert same["Ready"]["message"] == "containers with unready status: [main0]"
    assert turned["Ready"]["status"] == "True"
    assert turned["Ready"]["lastTransitionTime"] == "2026-11-20T12:01:00Z"
    assert "reason" not in turned["Ready"]
    assert turned["Initialized"] == conditions(before)["Initialized"]


def test_a_closed_readiness_gate_holds_ready_back_but_not_the_containers() -> None:
    gated = pod(conditions=[{"type": "example.com/routable", "status": "False"}])
    gated["spec"]["readinessGates"] = [{"conditionType": "example.com/routable"}]

    found = conditions(pod_status(gated, view(READY), NOW))

    assert found["ContainersReady"]["status"] == "True"
    assert found["Ready"]["reason"] == "ReadinessGatesNotReady"
    assert found["Ready"]["message"] == "readiness gates not ready: [example.com/routable]"
    assert "example.com/routable" not in found


def test_a_restart_policy_decides_by_exit_code() -> None:
    found = {(policy, code): restarts(policy, code) for policy in ("Always", "OnFailure", "Never") for code in (0, 1)}

    assert [key for key, value in found.items() if value] == [("Always", 0), ("Always", 1), ("OnFailure", 1)]


def test_the_first_restart_is_at_once_and_the_next_wait_twice_as_long_each() -> None:
    assert [restart_delay_s([1.0] * runs) for runs in range(1, 8)] == [0, 10, 20, 40, 80, 160, 300]


@given(st.lists(st.floats(0, 10_000), max_size=60), st.floats(0.1, 60))
def test_the_back_off_is_bounded_and_forgets_after_a_long_run(durations: list[float], first_s: float) -> None:
    assert 0 <= restart_delay_s(durations, first_s) <= LONGEST_S
    assert restart_delay_s([*durations, 600.0], first_s) == 0


def test_a_probe_turns_only_at_its_threshold() -> None:
    count = ProbeCount(success_threshold=2, failure_threshold=3)
    verdicts = []
    for success in (True, False, True, True, False, False, True, False, False, False):
        count = count.after(success)
        verdicts.append(count.verdict)

    assert verdicts == [None, None, None, True, True, True, True, True, True, False]


@given(st.lists(st.booleans()), st.integers(1, 5), st.integers(1, 5))
def test_a_verdict_is_always_the_last_streak_that_was_long_enough(answers: list[bool], up: int, down: int) -> None:
    count = ProbeCount(up, down)
    expected, streak, last = None, 0, None
    for answer in answers:
        count = count.after(answer)
        streak, last = (streak + 1 if answer == last else 1), answer
        expected = answer if streak >= (up if answer else down) else expected

    assert count.verdict == expected


def mounting(volume: dict[str, Any], path: str, **mount: Any) -> dict[str, Any]:
    container = {"name": "main", "volumeMounts": [{"name": "v", "mountPath": path, **mount}]}
    return {"spec": {"volumes": [{"name": "v", **volume}], "containers": [container]}}


@pytest.mark.parametrize(
    ("volume", "path"),
    [
        ({"emptyDir": {}}, "/tmp"),
        ({"emptyDir": {"medium": "Memory"}}, "/dev/shm/"),
        ({"hostPath": {"path": "/models/tiny"}}, "/models/tiny"),
        ({"projected": {"sources": []}}, TOKEN_PATH),
    ],
)
def test_volumes_that_are_there_anyway_are_fine(volume: dict[str, Any], path: str) -> None:
    assert refusals(mounting(volume, path)) == []


@pytest.mark.parametrize(
    ("volume", "path", "words"),
    [
        ({"emptyDir": {}}, "/cache", "only /tmp, /var/tmp, /dev/shm can be had; use one of them or $TMPDIR"),
        ({"hostPath": {"path": "/data"}}, "/models", "it can only be mounted at /data"),
        ({"secret": {"secretName": "s"}}, "/keys", 'the secret volume "v" at /keys'),
        ({"persistentVolumeClaim": {"claimName": "c"}}, "/models", "pass its content by env, envFrom or args"),
    ],
)
def test_volumes_that_cannot_be_had_are_refused_in_a_sentence(volume: dict[str, Any], path: str, words: str) -> None:
    (sentence,) = refusals(mounting(volume, path))

    assert words in sentence


@pytest.mark.parametrize(
    ("container", "words"),
    [
        ({"readinessProbe": {"grpc": {"port": 1}}}, "readinessProbe.grpc is not supported"),
        ({"lifecycle": {"postStart": {}}}, "lifecycle.postStart is not supported"),
        ({"restartPolicy": "Always"}, "sidecar containers are not supported"),
        ({"volumeDevices": [{}]}, "block devices are not supported"),
    ],
)
def test_what_is_not_built_is_refused_by_name(container: dict[str, Any], words: str) -> None:
    (sentence,) = refusals({"spec": {"containers": [{"name": "main", **container}]}})

    assert words in sentence


def test_a_container_that_mounts_its_token_wants_a_kubeconfig() -> None:
    token = mounting({"projected": {}}, TOKEN_PATH)["spec"]["containers"][0]

    assert wants_token(token)
    assert not wants_token({"name": "main"})
