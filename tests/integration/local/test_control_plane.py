"""The control plane: real processes, killed and started again."""

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from pointsman.local.addresses import listeners_in_the_way
from pointsman.local.control_plane import APISERVER, ETCD, PARTS, ControlPlane, ControlPlaneOptions
from pointsman.local.errors import ControlPlaneError
from pointsman.local.processes import ProcessId, recorded
from pointsman.local.state import clean_leftovers, clusters_directory
from waiting import until


@pytest.fixture(scope="module")
def own_control_plane() -> Iterator[ControlPlane]:
    """One whose parts these tests kill."""
    options = ControlPlaneOptions(without=frozenset({"kube-scheduler"}), audit=True)
    with ControlPlane.temporary(options=options) as running:
        yield running


def test_objects_outlive_a_killed_etcd_and_apiserver(own_control_plane: ControlPlane) -> None:
    own_control_plane.kubectl("create", "configmap", "kept", "--from-literal=answer=42")

    own_control_plane.kill(APISERVER)
    with pytest.raises(ControlPlaneError, match="kubectl get"):
        own_control_plane.kubectl("get", "configmap", "kept", "--request-timeout=2s")
    own_control_plane.kill(ETCD)
    own_control_plane.start_part(ETCD)
    own_control_plane.start_part(APISERVER)

    assert own_control_plane.get("configmap", "kept")["data"] == {"answer": "42"}


def test_endpoints_that_would_name_loopback_addresses_are_not_made(own_control_plane: ControlPlane) -> None:
    own_control_plane.kubectl("create", "service", "clusterip", "nobody", "--tcp=80")

    assert own_control_plane.kubectl("get", "endpointslices", "-A", "-o", "name") == ""


def test_a_user_may_do_only_what_rbac_grants(own_control_plane: ControlPlane) -> None:
    kubeconfig = own_control_plane.kubeconfig_for("reader", ("readers",))
    own_control_plane.kubectl("create", "clusterrole", "read", "--verb=list", "--resource=configmaps")
    own_control_plane.kubectl("create", "clusterrolebinding", "read", "--clusterrole=read", "--group=readers")

    own_control_plane.kubectl("get", "configmaps", f"--kubeconfig={kubeconfig}")
    with pytest.raises(ControlPlaneError, match='"reader" cannot list resource "secrets"'):
        own_control_plane.kubectl("get", "secrets", f"--kubeconfig={kubeconfig}")


def test_the_audit_log_has_one_line_for_each_request(own_control_plane: ControlPlane) -> None:
    own_control_plane.kubectl("create", "configmap", "audited")

    lines = [json.loads(line) for line in own_control_plane.audit_log.read_text().splitlines()]
    made = [line for line in lines if line["verb"] == "create" and line["objectRef"].get("name") == "audited"]
    assert {line["user"]["username"] for line in made} == {"kubernetes-admin"}


def test_a_part_that_cannot_start_is_named_with_its_last_words() -> None:
    options = ControlPlaneOptions(arguments={APISERVER: ("--no-such-flag",)})

    with pytest.raises(ControlPlaneError, match=r"kube-apiserver ended with 1:\n(.|\n)*unknown flag: --no-such-flag"):
        ControlPlane.temporary(options=options).start()


def test_nothing_listens_outside_loopback(control_plane: ControlPlane) -> None:
    ports = {int(port) for port in json.loads((control_plane.directory / "ports.json").read_text()).values()}

    assert len(ports) == 3
    assert listeners_in_the_way(ports) == []
    assert {listener.port for listener in listeners_in_the_way(ports, "127.0.0.1")} == ports


def test_what_a_killed_run_left_behind_is_gone_and_cleaned() -> None:
    program = (
        "from pointsman.local.control_plane import ControlPlane, ControlPlaneOptions\n"
        "control_plane = ControlPlane.temporary(options=ControlPlaneOptions(without=frozenset({'kube-scheduler'})))\n"
        "control_plane.start(); print(control_plane.directory, flush=True); input()\n"
    )
    with subprocess.Popen(
        [sys.executable, "-c", program], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as run:
        directory = _directory(run)
        parts = recorded(directory)
        assert len(parts) == len(PARTS) - 1
        run.send_signal(signal.SIGKILL)

    until(lambda: not any(part.alive for part in parts), "the parts end with their owner")
    assert directory in clean_leftovers()
    assert not directory.exists()


def test_this_process_is_known_by_its_start_too() -> None:
    me = ProcessId.of(os.getpid())

    assert me is not None
    assert me.alive
    assert not ProcessId(me.pid, me.start_ticks - 1).alive


def _directory(run: "subprocess.Popen[str]") -> Path:
    assert run.stdout is not None
    for line in run.stdout:
        if line.startswith(str(clusters_directory())):
            return Path(line.strip())
    raise AssertionError(f"the run ended with {run.wait()}")
