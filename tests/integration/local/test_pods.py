"""What a pod of the process node sees, and what the API says of it."""

import os
import signal
import socket
import ssl
import subprocess
import urllib.error
import urllib.request
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from integration.local.pods import Pods, condition, pod, waiting_reason
from pointsman.local.control_plane import ControlPlane
from pointsman.local.node.images import Image
from pointsman.local.process_node import ProcessNode
from waiting import until

FOREVER = "trap 'exit 0' TERM; echo up; while :; do sleep 0.1; done"


def test_a_container_gets_its_environment_from_fields_secrets_and_config_maps(pods: Pods) -> None:
    pods.kubectl("create", "secret", "generic", "keys", "--from-literal=token=s3cret")
    pods.kubectl("create", "configmap", "all", "--from-literal=COLOUR=green", "--from-literal=SIZE=3")
    pods.run(
        pod(
            "sees",
            'echo "$POD $IP $TOKEN $COLOUR $BOTH $GPUS $1"',
            restartPolicy="Never",
            args=["sh", "argument of $(POD) and $$(POD)"],
            envFrom=[{"configMapRef": {"name": "all"}}],
            env=[
                {"name": "POD", "valueFrom": {"fieldRef": {"fieldPath": "metadata.name"}}},
                {"name": "IP", "valueFrom": {"fieldRef": {"fieldPath": "status.podIP"}}},
                {"name": "TOKEN", "valueFrom": {"secretKeyRef": {"name": "keys", "key": "token"}}},
                {"name": "NONE", "valueFrom": {"secretKeyRef": {"name": "keys", "key": "no", "optional": True}}},
                {"name": "BOTH", "value": "$(COLOUR)-$(SIZE)"},
                {"name": "GPUS", "valueFrom": {"resourceFieldRef": {"resource": "limits.cpu"}}},
            ],
            resources={"limits": {"cpu": "1500m"}},
        )
    )

    status = pods.until_phase("sees", "Succeeded")

    words = f"sees {status['podIP']} s3cret green green-3 2 argument of sees and $(POD)"
    assert pods.logs("sees") == words + "\n"
    assert status["podIP"].startswith("127.")
    assert condition(status, "Initialized") == "True"


@pytest.mark.usefixtures("cpu_limits")
def test_a_cpu_limit_holds_for_all_a_container_starts_and_its_group_goes_with_it(pods: Pods) -> None:
    # Until it was held back often enough: on a busy computer it may get less than its limit for a while.
    busy = (
        "import os, time\n"
        "stat, end_s = os.environ['POINTSMAN_CPU_GROUP'] + '/cpu.stat', time.monotonic() + 60\n"
        "held_back = lambda: int(dict(map(str.split, open(stat)))['nr_throttled'])\n"
        "while held_back() < 10 and time.monotonic() < end_s: pass"
    )
    says = 'echo $G; grep -c "${G##*/}" /proc/self/cgroup; grep nr_throttled $G/cpu.stat'
    script = f'G=$POINTSMAN_CPU_GROUP; python -c "{busy}"; {says}'
    pods.run(pod("half", script, image="python", restartPolicy="Never", resources={"limits": {"cpu": "500m"}}))
    pods.until_phase("half", "Succeeded")

    group, in_it, _, throttled = pods.logs("half").split()
    assert group.endswith("-main-0")
    assert int(in_it) == 1
    assert int(throttled) >= 10, "in a minute of 10 ms periods"
    until(lambda: not Path(group).exists(), "the group is removed")
    assert not [event for event in pods.events("half") if event.startswith("CpuLimit")]


def test_a_limit_that_cannot_be_kept_is_an_event_and_the_pod_runs(pods: Pods) -> None:
    more = {"requests": {"cpu": "0"}, "limits": {"cpu": "90000000000"}}
    pods.run(pod("odd", "echo ran", restartPolicy="Never", resources=more))
    pods.until_phase("odd", "Succeeded")
    assert pods.logs("odd") == "ran\n"
    until(lambda: any(event.startswith("CpuLimitNotKept: ") for event in pods.events("odd")), "it is told")


def test_a_missing_secret_is_named_and_the_pod_starts_when_it_comes(pods: Pods) -> None:
    token = {"name": "TOKEN", "valueFrom": {"secretKeyRef": {"name": "late", "key": "token"}}}
    pods.run(pod("waits", "echo $TOKEN", restartPolicy="Never", env=[token]))

    def says_why(container: dict[str, Any]) -> str | None:
        # The API server may first refuse the node a token: it learns a moment later that the pod runs there.
        message = container.get("state", {}).get("waiting", {}).get("message")
        return message if message and message.startswith("secret") else None

    waiting = pods.until("waits", says_why, "says why")
    assert waiting == 'secret "late" not found (container "main", variable "TOKEN")'

    pods.kubectl("create", "secret", "generic", "late", "--from-literal=token=here")
    pods.until_phase("waits", "Succeeded")
    assert pods.logs("waits") == "here\n"


def test_a_failed_container_shows_exit_code_and_last_words(pods: Pods) -> None:
    pods.run(pod("fails", "echo first; echo 'no such model' >&2; exit 7", restartPolicy="Never"))

    status = pods.until_phase("fails", "Failed")

    ended = status["containerStatuses"][0]["state"]["terminated"]
    assert (ended["exitCode"], ended["reason"], ended["message"]) == (7, "Error", "first\nno such model")


def test_a_crashing_container_is_restarted_with_a_growing_back_off_and_keeps_its_previous_log(pods: Pods) -> None:
    pods.run(pod("crashes", "echo run $$; exit 3"))

    status = pods.until(
        "crashes",
        lambda c: c if c.get("state", {}).get("waiting", {}).get("reason") == "CrashLoopBackOff" else None,
        "backs off",
    )
    assert status["lastState"]["terminated"]["exitCode"] == 3
    pods.until("crashes", lambda c: c.get("restartCount", 0) >= 3, "is restarted three times")

    assert pods.logs("crashes", "--previous").startswith("run ")
    words = [f"BackOff: back-off {delay}s restarting failed container=main" for delay in ("0.5", "1")]
    until(lambda: set(words) <= set(pods.events("crashes")), "each back-off is told")


def test_a_command_that_does_not_exist_is_named(pods: Pods) -> None:
    pods.run(pod("typo", "", command=["no-such-program"], restartPolicy="Never"))

    status = pods.until_phase("typo", "Failed")

    ended = status["containerStatuses"][0]["state"]["terminated"]
    assert (ended["exitCode"], ended["reason"]) == (128, "StartError")
    assert ended["message"] == "cannot start 'no-such-program': No such file or directory"


def test_readiness_follows_the_probe_and_liveness_restarts(pods: Pods, tmp_path: Path) -> None:
    ready, alive = tmp_path / "ready", tmp_path / "alive"
    alive.touch()
    pods.run(
        pod(
            "probed",
            FOREVER,
            readinessProbe={
                "exec": {"command": ["sh", "-c", f"test -e {ready}"]},
                "periodSeconds": 1,
                "failureThreshold": 1,
            },
            livenessProbe={
                "exec": {"command": ["sh", "-c", f"test -e {alive}"]},
                "periodSeconds": 1,
                "failureThreshold": 1,
            },
        )
    )
    pods.until("probed", lambda c: "running" in c.get("state", {}), "runs")
    assert condition(pods.status("probed"), "Ready") == "False"

    ready.touch()
    pods.until_ready("probed")
    ready.unlink()
    until(lambda: condition(pods.status("probed"), "Ready") == "False", "the pod is not Ready any more")

    alive.unlink()
    pods.until("probed", lambda c: c.get("restartCount", 0) >= 1, "is restarted")  # again and again, until it is there
    alive.touch()
    unhealthy = "Unhealthy: Liveness probe failed: command ended with 1"
    until(lambda: any(event.startswith(unhealthy) for event in pods.events("probed")), "it is told")


def test_liveness_is_not_asked_before_the_startup_probe_succeeded(pods: Pods, tmp_path: Path) -> None:
    started = tmp_path / "started"
    fails = {"exec": {"command": ["sh", "-c", "false"]}, "periodSeconds": 1, "failureThreshold": 1}
    succeeds = {"exec": {"command": ["sh", "-c", f"test -e {started}"]}, "periodSeconds": 1, "failureThreshold": 60}
    pods.run(pod("starts", FOREVER, startupProbe=succeeds, livenessProbe=fails))
    pods.until("starts", lambda c: "running" in c.get("state", {}), "runs")
    assert pods.container("starts")["started"] is False
    assert pods.container("starts")["restartCount"] == 0

    started.touch()

    pods.until("starts", lambda c: c.get("restartCount", 0) >= 1, "liveness is asked, fails, and restarts it")


def test_deletion_runs_pre_stop_then_sigterm_then_kills_all_that_is_left(pods: Pods, tmp_path: Path) -> None:
    log, child = tmp_path / "log", tmp_path / "child"
    script = (
        f"trap 'echo term >> {log}' TERM; (trap '' TERM; exec sleep 1000) & echo $! > {child};"
        "while :; do sleep 0.1; done"
    )
    hook = {"preStop": {"exec": {"command": ["sh", "-c", f"echo pre-stop >> {log}"]}}}
    pods.run(pod("stubborn", script, terminationGracePeriodSeconds=2, lifecycle=hook))
    grandchild = int(until(lambda: child.read_text() if child.exists() else None, "the container started its child"))

    pods.kubectl("delete", "pod", "stubborn", "--wait=false")
    pods.until_gone("stubborn")

    assert log.read_text() == "pre-stop\nterm\n"
    assert not Path(f"/proc/{grandchild}").exists()


def test_a_pod_that_ends_on_sigterm_is_gone_at_once(pods: Pods) -> None:
    pods.run(pod("polite", FOREVER, terminationGracePeriodSeconds=600))
    pods.until_ready("polite")

    pods.kubectl("delete", "pod", "polite")

    pods.until_gone("polite")


def test_init_containers_run_one_after_the_other_before_the_rest(pods: Pods, tmp_path: Path) -> None:
    log = tmp_path / "log"
    init = [
        {"name": name, "image": "host", "command": ["sh", "-c", f"echo {name} >> {log}"]}
        for name in ("first", "second")
    ]
    pods.run(pod("prepared", f"echo main >> {log}", restartPolicy="Never", initContainers=init))

    pods.until_phase("prepared", "Succeeded")

    assert log.read_text() == "first\nsecond\nmain\n"


def test_logs_are_followed_until_the_container_ends(pods: Pods, control_plane: ControlPlane, tmp_path: Path) -> None:
    go = tmp_path / "go"
    script = f"echo one; printf two; while ! test -e {go}; do sleep 0.05; done; echo; echo three >&2"
    pods.run(pod("talks", script, restartPolicy="Never"))
    pods.until("talks", lambda c: "running" in c.get("state", {}), "runs")
    kubectl = [str(control_plane.kubectl_path), f"--kubeconfig={control_plane.kubeconfig}", f"-n={pods.namespace}"]
    argv = [*kubectl, "logs", "-f", "talks"]
    with subprocess.Popen(argv, stdout=subprocess.PIPE, text=True) as following:
        assert following.stdout is not None
        assert following.stdout.readline() == "one\n"
        go.touch()
        assert following.stdout.read() == "two\nthree\n"

    assert pods.logs("talks", "--tail=1") == "three\n"
    assert pods.logs("talks", "--timestamps", "--tail=1").split()[0].startswith("20")


def test_an_unknown_image_is_named_and_the_pod_starts_when_the_store_has_it(
    pods: Pods, process_node: ProcessNode
) -> None:
    pods.run(pod("pulls", "echo $FROM_IMAGE", image="registry.example:5000/new:1.0", restartPolicy="Never"))
    # Before, it may wait for the account of a namespace that was made a moment ago.
    reason = "ImagePullBackOff"
    waiting = pods.until("pulls", lambda c: waiting_reason(c) == reason and c["state"]["waiting"], f"waits: {reason}")
    assert '"registry.example:5000/new:1.0" is not in the image store (it has: host, ' in waiting["message"]

    process_node.add_image("registry.example:5000/new", Image(env={"FROM_IMAGE": "pulled"}))

    pods.until_phase("pulls", "Succeeded")
    assert pods.logs("pulls") == "pulled\n"


def test_a_volume_that_cannot_be_mounted_is_refused_in_a_sentence(pods: Pods) -> None:
    mount = [{"name": "models", "mountPath": "/models"}]
    pods.run(pod("mounts", FOREVER, volumes=[{"name": "models", "emptyDir": {}}], volumeMounts=mount))

    waiting = pods.until("mounts", lambda c: c.get("state", {}).get("waiting"), "waits")

    assert waiting["reason"] == "CreateContainerConfigError"
    assert waiting["message"].startswith('containers "main" mounts the empty volume "models" at /models: pods of the')
    pods.kubectl("delete", "pod", "mounts")


def test_a_pod_is_its_service_account(pods: Pods, process_node: ProcessNode, control_plane: ControlPlane) -> None:
    process_node.add_image("kubectl", Image(path=(control_plane.kubectl_path.parent,)))
    pods.run(
        pod(
            "who", "kubectl auth whoami -o jsonpath={.status.userInfo.username}", image="kubectl", restartPolicy="Never"
        )
    )

    pods.until_phase("who", "Succeeded")

    assert pods.logs("who") == f"system:serviceaccount:{pods.namespace}:default"


def _waits_for(container: Mapping[str, Any]) -> str:
    return str(container.get("state", {}).get("waiting", {}).get("message", ""))


def test_a_server_on_every_address_is_named_before_a_pod_fails_on_its_port(pods: Pods) -> None:
    with socket.socket() as squatter:
        squatter.bind(("0.0.0.0", 0))
        squatter.listen()
        port = squatter.getsockname()[1]
        pods.run(pod("blocked", "echo free", restartPolicy="Never", ports=[{"containerPort": port}]))
        # What it waits for before that (its service account's token) may be said first.
        listens = f") listens on 0.0.0.0:{port}: the container could not listen there"
        waiting = pods.until("blocked", lambda c: listens in (said := _waits_for(c)) and said, "says why")
        assert f"process {os.getpid()} (" in waiting

    pods.until_phase("blocked", "Succeeded")


def test_two_pods_serve_on_the_same_port_each_at_its_own_address(pods: Pods) -> None:
    serve = "exec python3 -m http.server 8000 --bind $IP"
    for name in ("left", "right"):
        pods.run(
            pod(
                name,
                serve,
                env=[{"name": "IP", "valueFrom": {"fieldRef": {"fieldPath": "status.podIP"}}}],
                ports=[{"name": "http", "containerPort": 8000}],
                readinessProbe={"httpGet": {"port": "http"}, "periodSeconds": 1},
            )
        )

    pods.until_ready("left", "right")

    assert pods.status("left")["podIP"] != pods.status("right")["podIP"]


def test_gpus_are_made_up_but_scheduled(pods: Pods) -> None:
    for name in ("six", "three"):
        gpus = {"limits": {"nvidia.com/gpu": 6 if name == "six" else 3}}
        pods.run(pod(name, FOREVER, resources=gpus))
    pods.until_ready("six")

    unscheduled = until(
        lambda: [c for c in pods.status("three").get("conditions") or () if c["type"] == "PodScheduled"],
        "the scheduler has seen the second pod",
    )
    assert "1 Insufficient nvidia.com/gpu" in unscheduled[0]["message"]

    pods.kubectl("delete", "pod", "six")
    pods.until_ready("three")
    pods.kubectl("delete", "pod", "three")


def test_a_pod_waits_for_its_readiness_gate(pods: Pods, control_plane: ControlPlane) -> None:
    gate = "example.com/routable"
    pods.run(pod("gated", FOREVER, readinessGates=[{"conditionType": gate}]))
    until(lambda: condition(pods.status("gated"), "ContainersReady") == "True", "the container is ready")
    assert condition(pods.status("gated"), "Ready") == "False"

    patch = f'{{"status": {{"conditions": [{{"type": "{gate}", "status": "True"}}]}}}}'
    pods.kubectl("patch", "pod", "gated", "--subresource=status", "--type=strategic", "-p", patch)

    pods.until_ready("gated")


def test_a_signal_shows_as_exit_code_128_and_more(pods: Pods) -> None:
    pods.run(pod("killed", FOREVER, restartPolicy="Never"))
    running = pods.until("killed", lambda c: c if "running" in c.get("state", {}) else None, "runs")

    os.kill(int(running["containerID"].removeprefix("process://").split("-")[0]), signal.SIGKILL)

    status = pods.until_phase("killed", "Failed")
    assert status["containerStatuses"][0]["state"]["terminated"]["exitCode"] == 128 + signal.SIGKILL


def test_only_the_api_server_may_ask_the_node_for_logs(
    pods: Pods, process_node: ProcessNode, control_plane: ControlPlane
) -> None:
    pods.run(pod("private", "echo secret", restartPolicy="Never"))
    pods.until_phase("private", "Succeeded")
    node = control_plane.get("node", process_node.name)["status"]
    address = next(a["address"] for a in node["addresses"] if a["type"] == "InternalIP")
    url = f"https://{address}:{node['daemonEndpoints']['kubeletEndpoint']['Port']}"
    path = f"/containerLogs/{pods.namespace}/private/main"
    pki = control_plane.directory / "pki"

    def ask(name: str | None) -> tuple[int, str]:
        context = ssl.create_default_context(cafile=str(pki / "ca.crt"))
        if name is not None:
            context.load_cert_chain(pki / f"{name}.crt", pki / f"{name}.key")
        try:
            with urllib.request.urlopen(url + path, context=context) as response:
                return response.status, response.read().decode()
        except urllib.error.HTTPError as refusal:
            return refusal.code, ""

    assert ask("kubelet-client") == (200, "secret\n")
    assert ask("admin") == (403, "")
    with pytest.raises(OSError):  # how a refused handshake shows depends on when it is noticed
        ask(None)
