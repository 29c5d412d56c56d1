"""The control plane: real processes, killed and started again."""

import json
import os

import pytest

from pointsman.local.addresses import listeners_in_the_way
from pointsman.local.control_plane import APISERVER, ETCD, ControlPlane, ControlPlaneOptions
from pointsman.local.errors import ControlPlaneFailed
from pointsman.local.processes import ProcessId
from waiting import until


def test_objects_outlive_a_killed_etcd_and_apiserver(mortal_control_plane: ControlPlane) -> None:
    mortal_control_plane.kubectl("create", "configmap", "kept", "--from-literal=answer=42")

    mortal_control_plane.kill(APISERVER)
    with pytest.raises(ControlPlaneFailed, match="kubectl get"):
        mortal_control_plane.kubectl("get", "configmap", "kept", "--request-timeout=2s")
    mortal_control_plane.kill(ETCD)
    mortal_control_plane.start_part(ETCD)
    mortal_control_plane.start_part(APISERVER)

    assert mortal_control_plane.get("configmap", "kept")["data"] == {"answer": "42"}


def test_endpoints_that_would_name_loopback_addresses_are_not_made(mortal_control_plane: ControlPlane) -> None:
    mortal_control_plane.kubectl("create", "service", "clusterip", "nobody", "--tcp=80")

    assert mortal_control_plane.kubectl("get", "endpointslices", "-A", "-o", "name") == ""


def test_a_user_may_do_only_what_rbac_grants(mortal_control_plane: ControlPlane) -> None:
    kubeconfig = mortal_control_plane.kubeconfig_for("reader", ("readers",))
    mortal_control_plane.kubectl("create", "clusterrole", "read", "--verb=list", "--resource=configmaps")
    mortal_control_plane.kubectl("create", "clusterrolebinding", "read", "--clusterrole=read", "--group=readers")

    def may_read() -> bool:
        """The authorizer hears of a new binding a moment after it was made."""
        try:
            mortal_control_plane.kubectl("get", "configmaps", f"--kubeconfig={kubeconfig}")
        except ControlPlaneFailed as error:
            assert "cannot list resource" in str(error)
            return False
        return True

    until(may_read, "the reader may read")
    with pytest.raises(ControlPlaneFailed, match='"reader" cannot list resource "secrets"'):
        mortal_control_plane.kubectl("get", "secrets", f"--kubeconfig={kubeconfig}")


def test_the_audit_log_has_one_line_for_each_request(mortal_control_plane: ControlPlane) -> None:
    mortal_control_plane.kubectl("create", "configmap", "audited")

    lines = [json.loads(line) for line in mortal_control_plane.audit_log.read_text().splitlines()]
    made = [line for line in lines if line["verb"] == "create" and line["objectRef"].get("name") == "audited"]
    assert {line["user"]["username"] for line in made} == {"kubernetes-admin"}


def test_a_part_that_cannot_start_is_named_with_its_last_words() -> None:
    options = ControlPlaneOptions(arguments={APISERVER: ("--no-such-flag",)})

    with pytest.raises(ControlPlaneFailed, match=r"kube-apiserver ended with 1:\n(.|\n)*unknown flag: --no-such-flag"):
        ControlPlane.temporary(options=options).start()


def test_nothing_listens_outside_loopback(control_plane: ControlPlane) -> None:
    ports = {int(port) for port in json.loads((control_plane.directory / "ports.json").read_text()).values()}

    assert len(ports) == 3
    assert listeners_in_the_way(ports) == []
    assert {listener.port for listener in listeners_in_the_way(ports, "127.0.0.1")} == ports


def test_this_process_is_known_by_its_start_too() -> None:
    me = ProcessId.of(os.getpid())

    assert me is not None
    assert me.alive
    assert not ProcessId(me.pid, me.start_ticks - 1).alive
