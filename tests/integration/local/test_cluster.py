"""The whole local cluster, brought up and down as a user does, without engines."""

import json
import os
import secrets
import subprocess
import sys
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from pointsman.local.processes import recorded
from pointsman.local.state import clusters_directory
from waiting import until

SYSTEM = "pointsman-system"


class Kept:
    """A cluster that ``pointsman local up --keep`` left running."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.directory = clusters_directory() / name
        done = run("up", name, "--keep", "--no-engine", "--gpus", "3", "--prometheus")
        assert done.returncode == 0, done.stderr
        self.printed, self.said = done.stdout, done.stderr

    def kubectl(self, *arguments: str) -> str:
        """kubectl, as the two lines that ``up`` printed set it up."""
        lines = "\n".join(line for line in self.printed.splitlines() if line.startswith("export "))
        script = f'{lines}\nexec kubectl "$@"'
        argv = ["sh", "-c", script, "kubectl", *arguments]
        return subprocess.run(argv, check=True, capture_output=True, text=True).stdout


@pytest.fixture(scope="module")
def kept() -> Iterator[Kept]:
    name = f"kept-{secrets.token_hex(2)}"
    yield Kept(name)
    pointsman("down", name)
    assert not (clusters_directory() / name).exists()


def test_nats_operator_and_planner_run_as_pods_under_the_charts_service_accounts(kept: Kept) -> None:
    pods = json.loads(kept.kubectl("get", "pods", "-n", SYSTEM, "-o", "json"))["items"]

    found = {pod["spec"]["serviceAccountName"]: pod["status"]["phase"] for pod in pods}
    assert found == {f"pointsman-{part}": "Running" for part in ("nats", "operator", "planner")}
    operator = next(pod["metadata"]["name"] for pod in pods if "operator" in pod["metadata"]["name"])
    lease = ("get", "lease", "pointsman-operator", "-n", SYSTEM, "-o", "jsonpath={.spec.holderIdentity}")
    until(lambda: kept.kubectl(*lease).startswith(operator), "the operator's pod holds its Lease")


def test_its_prometheus_scrapes_operator_and_planner_with_the_labels_that_the_planner_reads(kept: Kept) -> None:
    url = next(line.split()[-1] for line in kept.said.splitlines() if line.startswith("Prometheus: "))

    def scraped() -> dict[str, str]:
        with urllib.request.urlopen(f"{url}/api/v1/query?query=up%7Bnamespace='{SYSTEM}'%7D", timeout=60) as answer:
            found = json.load(answer)["data"]["result"]
        return {one["metric"]["component"]: one["value"][1] for one in found if one["metric"]["pod"]}

    until(lambda: scraped() == {"operator": "1", "planner": "1"}, "both are scraped")


def test_a_service_is_reconciled_and_its_workers_say_that_there_is_no_engine(kept: Kept, tmp_path: Path) -> None:
    manifest = tmp_path / "service.yaml"
    manifest.write_text("""
apiVersion: pointsman.dev/v1alpha1
kind: LLMService
metadata: {name: chat}
spec:
  model: {source: "file:///models/none", servedName: none}
  pools: {prefill: {replicas: 1}, decode: {replicas: 1}}
  worker: {gpus: 0}
  gateway: {replicas: 1}
  drain: {timeoutSeconds: 1}
""")
    kept.kubectl("apply", "-f", str(manifest))

    workers = ("get", "pods", "-l", "app.kubernetes.io/component=worker", "-o", "json")

    def waiting() -> set[str]:
        statuses = [pod["status"].get("containerStatuses") for pod in json.loads(kept.kubectl(*workers))["items"]]
        return {s["state"].get("waiting", {}).get("reason", "") for status in statuses for s in status or ()}

    until(lambda: waiting() == {"ImagePullBackOff"}, "the workers wait for their image")
    until(
        lambda: "1/1" in kept.kubectl("get", "deployment", "chat-gateway", "--no-headers", "--ignore-not-found"),
        "the gateway is Ready",
    )
    kept.kubectl("delete", "llms", "chat", "--wait=false")
    until(lambda: not kept.kubectl("get", "llms", "-o", "name"), "the service is gone")


def test_nats_comes_back_at_its_address_after_its_pod_was_forced_away(kept: Kept) -> None:
    def ready_nats() -> dict[str, Any] | None:
        found = kept.kubectl("get", "pod", "pointsman-nats-0", "-n", SYSTEM, "-o", "json", "--ignore-not-found")
        pod: dict[str, Any] = json.loads(found) if found else {}
        statuses = pod.get("status", {}).get("containerStatuses") or [{"ready": False}]
        return pod if all(status["ready"] for status in statuses) else None

    before = until(ready_nats, "NATS is ready")
    kept.kubectl("delete", "pod", "pointsman-nats-0", "-n", SYSTEM, "--grace-period=0", "--force")

    def another() -> dict[str, Any] | None:
        pod = ready_nats()
        return pod if pod and pod["metadata"]["uid"] != before["metadata"]["uid"] else None

    after = until(another, "another NATS is ready")
    assert after["status"]["podIP"] == before["status"]["podIP"]


def test_no_process_has_a_session_of_its_own_as_small_ones_would_starve_beside_engines(kept: Kept) -> None:
    sessions = {os.getsid(process.pid) for process in recorded(kept.directory)}

    assert sessions == {os.getsid(0)}, "the control plane, the node and every container's shim"


def test_status_lists_the_cluster_and_up_says_that_it_runs(kept: Kept) -> None:
    assert f"KUBECONFIG={kept.directory}/admin.kubeconfig" in pointsman("status")
    assert len(recorded(kept.directory)) >= 7

    again = run("up", kept.name, "--no-engine")

    assert again.returncode == 1
    assert f"the cluster '{kept.name}' runs already" in again.stderr
    assert f"pointsman local down {kept.name}" in again.stderr


def test_down_names_the_clusters_there_are() -> None:
    done = run("down", "no-such-cluster")

    assert done.returncode == 1
    assert "there is no cluster 'no-such-cluster' (there are: " in done.stderr


def pointsman(*arguments: str) -> str:
    """``pointsman local …``; what it printed."""
    done = run(*arguments)
    assert done.returncode == 0, done.stderr
    return done.stdout


def run(*arguments: str) -> "subprocess.CompletedProcess[str]":
    argv = [str(Path(sys.executable).with_name("pointsman")), "local", *arguments]
    return subprocess.run(argv, capture_output=True, text=True, check=False, env=os.environ)
