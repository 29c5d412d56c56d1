"""The chart's NATS, started as its pod is: authenticated, a login for each service, and no password in sight."""

import os
import subprocess
import sys
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import nats
import nats.errors
import pytest
import yaml

from fixtures.helm_release import CHART, REGISTRY
from pointsman.api.protocol.names import prefill_stream, reply_inbox_prefix
from pointsman.operator.core.nats_logins import OPERATOR_USER, Login, password_of, service_login
from waiting import until

POD_IPS = ("127.77.3.9", "::1")  # an address of this test's own: the ports of a pod are fixed
SECRETS = {
    "nats-user": "pointsman",
    "nats-password": '9starts-with-a-digit$and"is\\odd',
    "nats-service-key": "a-key-of-the-services-in-the-tests-of-the-chart",
    "nats-earlier-versions": "accepted",
}
SHARED = Login(SECRETS["nats-user"], SECRETS["nats-password"])
OPERATOR = Login(OPERATOR_USER, password_of(SECRETS["nats-service-key"], OPERATOR_USER))
SERVICE = service_login(SECRETS["nats-service-key"], "ns", "uid-1", 1024)


class Pod(NamedTuple):
    """A running pod; ``host`` as it stands in a URL."""

    host: str
    processes: dict[str, subprocess.Popen[bytes]]


@pytest.fixture(scope="module")
def pod_spec(binary: Callable[[str], Path]) -> dict[str, Any]:
    """Of the chart's StatefulSet."""
    done = subprocess.run(
        [binary("helm"), "template", "pointsman", CHART, *REGISTRY, "--set", "bindHost=$(POD_IP)"],
        capture_output=True,
        text=True,
        check=True,
        timeout=60,
    )
    (stateful_set,) = (item for item in yaml.safe_load_all(done.stdout) if item and item["kind"] == "StatefulSet")
    found: dict[str, Any] = stateful_set["spec"]["template"]["spec"]
    return found


def environment(container: dict[str, Any], pod_ip: str) -> dict[str, str]:
    """As a kubelet makes it of values, fields and Secrets."""
    fields = {"status.podIP": pod_ip, "metadata.name": "pointsman-nats-0"}
    found = {}
    for item in container["env"]:
        source = item.get("valueFrom", {})
        if "value" in item:
            found[item["name"]] = item["value"].replace("$(POD_IP)", pod_ip)
        elif "fieldRef" in source:
            found[item["name"]] = fields[source["fieldRef"]["fieldPath"]]
        elif source["secretKeyRef"]["key"] in SECRETS:
            found[item["name"]] = SECRETS[source["secretKeyRef"]["key"]]
    return found


@pytest.fixture(scope="module", params=POD_IPS)
def pod(
    request: pytest.FixtureRequest,
    pod_spec: dict[str, Any],
    binary: Callable[[str], Path],
    tmp_path_factory: pytest.TempPathFactory,
) -> Iterator[Pod]:
    """Its processes, with the environment a kubelet would give them and a folder for temporary files of their own."""
    pod_ip: str = request.param
    folder = tmp_path_factory.mktemp("nats")
    path = f"{Path(sys.executable).parent}:{binary('nats-server').parent}:{os.environ['PATH']}"

    def told(container: dict[str, Any]) -> dict[str, str]:
        return {"PATH": path, "TMPDIR": str(folder), **environment(container, pod_ip)}

    (configure,) = pod_spec["initContainers"]
    subprocess.run(configure["command"], env=told(configure), cwd=folder, check=True, timeout=240)
    host = f"[{pod_ip}]" if ":" in pod_ip else pod_ip
    processes = {
        each["name"]: subprocess.Popen(each["command"], env=told(each), cwd=folder) for each in pod_spec["containers"]
    }
    try:
        for container in pod_spec["containers"]:
            name = container["name"]
            until(lambda: ready(container, processes[name], host), f"{name} is ready")  # noqa: B023
        yield Pod(host, processes)
    finally:
        for process in processes.values():
            process.terminate()
        for process in processes.values():
            process.wait(timeout=120)


def ready(container: dict[str, Any], process: subprocess.Popen[bytes], host: str) -> bool:
    """By the readiness probe."""
    assert process.poll() is None, f"{container['name']} ended"
    probe = container["readinessProbe"]["httpGet"]
    port = next(item["containerPort"] for item in container["ports"] if item["name"] == probe["port"])
    try:
        with urllib.request.urlopen(f"http://{host}:{port}{probe['path']}", timeout=2) as answer:
            return bool(answer.status == 200)
    except OSError:
        return False


@pytest.mark.parametrize("login", [SHARED, OPERATOR], ids=["shared", "operator"])
async def test_the_logins_of_operator_and_earlier_versions_open_jetstream(pod: Pod, login: Login) -> None:
    client = await nats.connect(f"nats://{pod.host}:4222", user=login.user, password=login.password)
    try:
        await client.jetstream().add_stream(name="tried", subjects=["tried"])
        await client.jetstream().publish("tried", b"x")
        assert (await client.jetstream().stream_info("tried")).config.subjects == ["tried"]
    finally:
        await client.close()


async def test_a_service_finds_its_queue_with_its_login(pod: Pod) -> None:
    inbox = reply_inbox_prefix("ns", "uid-1", "decode-0").encode()
    client = await nats.connect(
        f"nats://{pod.host}:4222", user=SERVICE.user, password=SERVICE.password, inbox_prefix=inbox
    )
    try:
        info = await client.jetstream().stream_info(prefill_stream("ns", "uid-1"))
        assert info.config.max_msgs == 1024
    finally:
        await client.close()


@pytest.mark.parametrize(
    "login",
    [
        Login("", ""),
        Login(SHARED.user, "guessed"),
        Login(SERVICE.user, SHARED.password),
        Login(OPERATOR_USER, SERVICE.password),
    ],
    ids=["nobody", "shared", "service", "operator"],
)
async def test_nobody_else_gets_in(pod: Pod, login: Login) -> None:
    async def ignore(_: Exception) -> None:
        """The refusal comes as an exception too."""

    credentials = {"user": login.user, "password": login.password} if login.user else {}
    with pytest.raises((nats.errors.Error, OSError)):
        await nats.connect(
            f"nats://{pod.host}:4222", allow_reconnect=False, error_cb=ignore, connect_timeout=30, **credentials
        )


def test_no_password_is_on_a_command_line_and_the_file_is_for_the_server_alone(pod: Pod) -> None:
    for process in pod.processes.values():
        line = Path(f"/proc/{process.pid}/cmdline").read_bytes()
        assert not any(secret.encode() in line for secret in SECRETS.values() if len(secret) > 20)
    server = pod.processes["nats"].pid
    command = Path(f"/proc/{server}/cmdline").read_bytes().split(b"\0")
    configuration = Path(command[command.index(b"--config") + 1].decode())
    assert configuration.stat().st_mode & 0o077 == 0
