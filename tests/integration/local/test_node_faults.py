"""Kills of the node, of shims and of the API server: pods live on, and nothing is told wrong."""

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from integration.local.pods import Pods, pod
from pointsman.local.control_plane import APISERVER, PARTS, ControlPlane
from pointsman.local.node.images import Image
from pointsman.local.process_node import ProcessNode
from pointsman.local.processes import ProcessId, recorded
from pointsman.local.state import clean_leftovers
from waiting import until

FOREVER = "trap 'echo told to end; exit 0' TERM; echo up; while :; do sleep 0.1; done"


@pytest.fixture(scope="module")
def node(mortal_control_plane: ControlPlane) -> Iterator[ProcessNode]:
    """A node these tests kill."""
    with ProcessNode(mortal_control_plane, images={"host": Image()}, name="mortal", restart_seconds=0.5) as running:
        yield running


@pytest.fixture
def mortal(mortal_control_plane: ControlPlane, node: ProcessNode) -> Pods:
    """Pods on that node."""
    return Pods(mortal_control_plane, "default")


def test_pods_live_on_when_the_node_is_killed_and_are_found_again(
    mortal: Pods, node: ProcessNode, tmp_path: Path
) -> None:
    go, ready = tmp_path / "go", tmp_path / "ready"
    ready.touch()
    probe = {"exec": {"command": ["sh", "-c", f"test -e {ready}"]}, "periodSeconds": 1, "failureThreshold": 1}
    waits = f"echo before; while ! test -e {go}; do sleep 0.05; done; echo while; exit 5"
    mortal.run(
        pod("stays", FOREVER, readinessProbe=probe),
        pod("ends-unseen", waits, restartPolicy="Never"),
        pod(
            "deleted-unseen",
            FOREVER,
            terminationGracePeriodSeconds=600,
            env=[{"name": "HOOKED", "value": str(tmp_path / "hooked")}],
            lifecycle={"preStop": {"exec": {"command": ["sh", "-c", "touch $HOOKED"]}}},
        ),
        pod("forced-away", FOREVER),
    )
    mortal.until_ready("stays", "ends-unseen", "deleted-unseen", "forced-away")
    before = mortal.container("stays")
    forced = process_of(mortal.container("forced-away"))
    ended = process_of(mortal.container("ends-unseen"))
    assert "node ready node=mortal" in node.log.read_text()

    node.kill()
    go.touch()
    until(lambda: not ended.alive, "the program ended while no node was there")
    mortal.kubectl("delete", "pod", "deleted-unseen", "--wait=false")
    mortal.kubectl("delete", "pod", "forced-away", "--grace-period=0", "--force")
    assert process_of(before).alive
    node.start_again()

    status = mortal.until_phase("ends-unseen", "Failed")
    assert status["containerStatuses"][0]["state"]["terminated"]["exitCode"] == 5
    assert mortal.logs("ends-unseen") == "before\nwhile\n"
    mortal.until_gone("deleted-unseen")
    assert (tmp_path / "hooked").exists(), "its preStop hook ran, with the container's environment"
    until(lambda: not forced.alive, "the container of the pod that is gone is ended")
    mortal.until_ready("stays")  # its probe has a second, which on a busy computer may be too little once
    after = mortal.container("stays")
    assert (after["containerID"], after["restartCount"]) == (before["containerID"], 0)

    ready.unlink()  # probes go on, with the container's own environment
    mortal.until("stays", lambda c: not c["ready"], "is not ready")
    mortal.kubectl("delete", "pod", "stays")


def test_a_container_whose_shim_was_killed_ends_with_it_and_is_restarted(mortal: Pods) -> None:
    mortal.run(pod("orphan", FOREVER))
    mortal.until_ready("orphan")
    program = process_of(mortal.container("orphan"))
    shim = int(Path(f"/proc/{program.pid}/stat").read_text().rsplit(")", 1)[1].split()[1])

    os.kill(shim, signal.SIGKILL)

    status = mortal.until(
        "orphan", lambda c: c if c["restartCount"] == 1 and "running" in c["state"] else None, "restarts"
    )
    assert status["lastState"]["terminated"]["reason"] == "ContainerStatusUnknown"
    assert not program.alive
    mortal.kubectl("delete", "pod", "orphan")


def test_pods_run_and_are_reported_after_the_api_server_was_away(
    mortal: Pods, mortal_control_plane: ControlPlane, tmp_path: Path
) -> None:
    go = tmp_path / "go"
    mortal.run(pod("unreported", f"while ! test -e {go}; do sleep 0.05; done; exit 9", restartPolicy="Never"))
    mortal.until_ready("unreported")
    program = process_of(mortal.container("unreported"))

    mortal_control_plane.kill(APISERVER)
    go.touch()
    until(lambda: not program.alive, "the program ended while the API server was away")
    mortal_control_plane.start_part(APISERVER)

    status = mortal.until_phase("unreported", "Failed")
    assert status["containerStatuses"][0]["state"]["terminated"]["exitCode"] == 9


def test_a_node_that_is_ended_takes_its_pods_along(mortal_control_plane: ControlPlane) -> None:
    with ProcessNode(mortal_control_plane, images={"host": Image()}, name="short") as node:
        pods = Pods(mortal_control_plane, "default")
        spec = pod("short-lived", FOREVER)
        spec["spec"]["nodeName"] = "short"
        pods.run(spec)
        pods.until_ready("short-lived")
        processes = recorded(node.pods_directory)

    assert len(processes) == 1
    assert not any(process.alive for process in processes)
    mortal_control_plane.kubectl("delete", "pod", "short-lived", "--grace-period=0", "--force")


def test_nothing_is_left_of_a_run_that_was_killed() -> None:
    program = f"""
from integration.local.pods import Pods, pod
from pointsman.local.control_plane import ControlPlane
from pointsman.local.node.images import Image
from pointsman.local.process_node import ProcessNode
control_plane = ControlPlane.temporary()
control_plane.start()
ProcessNode(control_plane, images={{"host": Image()}}).start()
pods = Pods(control_plane, "default")
pods.run(pod("left", {FOREVER!r}))
pods.until_ready("left")
print(pods.container("left")["containerID"], control_plane.directory, flush=True)
input()
"""
    env = os.environ | {"PYTHONPATH": str(Path(__file__).parents[2])}
    argv = [sys.executable, "-c", program]
    with subprocess.Popen(argv, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=env) as run:
        assert run.stdout is not None
        line = next(line for line in run.stdout if line.startswith("process://"))
        container, directory = process_of({"containerID": line.split()[0]}), Path(line.split()[1])
        processes = [container, *recorded(directory)]
        assert len(processes) == len(PARTS) + 3  # the node, the container and its shim
        assert all(process.alive for process in processes)
        run.send_signal(signal.SIGKILL)

    until(lambda: not any(process.alive for process in processes), "all that it started ends with the run")
    until(lambda: not directory.exists() or clean_leftovers(), "the next run cleans what it left")
    assert not directory.exists()


def process_of(container: dict[str, str]) -> ProcessId:
    """The program of a running container."""
    pid, ticks = container["containerID"].removeprefix("process://").split("-")
    return ProcessId(int(pid), int(ticks))
