"""The chart's NATS, started as its pod starts it: authenticated, with JetStream, and no password in sight."""

import os
import subprocess
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import nats
import nats.errors
import pytest
import yaml

from waiting import until

CHART = Path(__file__).parents[3] / "charts" / "pointsman"
POD_IPS = ("127.77.3.9", "::1")  # an address of this test's own: the ports of a pod are fixed
PASSWORD = '9starts-with-a-digit$and"is\\odd'


class Server(NamedTuple):
    """A running NATS; ``host`` as it stands in a URL."""

    host: str
    process: subprocess.Popen[bytes]


@pytest.fixture(scope="module")
def container(binary: Callable[[str], Path]) -> dict[str, Any]:
    """The container of the chart's StatefulSet."""
    done = subprocess.run(
        [binary("helm"), "template", "pointsman", CHART, "--set", "bindHost=$(POD_IP)"],
        capture_output=True,
        text=True,
        check=True,
        timeout=60,
    )
    (stateful_set,) = (item for item in yaml.safe_load_all(done.stdout) if item and item["kind"] == "StatefulSet")
    found: dict[str, Any] = stateful_set["spec"]["template"]["spec"]["containers"][0]
    return found


@pytest.fixture(scope="module", params=POD_IPS)
def server(
    request: pytest.FixtureRequest,
    container: dict[str, Any],
    binary: Callable[[str], Path],
    tmp_path_factory: pytest.TempPathFactory,
) -> Iterator[Server]:
    """The pod's process, with the environment a kubelet would give it."""
    pod_ip: str = request.param
    host = f"[{pod_ip}]" if ":" in pod_ip else pod_ip
    folder = tmp_path_factory.mktemp("nats")
    given = {"POD_IP": pod_ip, "POD_NAME": "pointsman-nats-0", "NATS_USER": "pointsman", "NATS_PASSWORD": PASSWORD}
    told = {item["name"]: item["value"].replace("$(POD_IP)", pod_ip) for item in container["env"] if "value" in item}
    environment = {
        "PATH": f"{binary('nats-server').parent}:{os.environ['PATH']}",
        "TMPDIR": str(folder),
        **told,
        **given,
    }
    process = subprocess.Popen(container["command"], env=environment, cwd=folder)
    try:
        until(lambda: healthy(container, process, host), "the readiness probe of the chart succeeds")
        yield Server(host, process)
    finally:
        process.terminate()
        process.wait(timeout=30)


def healthy(container: dict[str, Any], process: subprocess.Popen[bytes], host: str) -> bool:
    assert process.poll() is None, "nats-server ended"
    probe = container["readinessProbe"]["httpGet"]
    port = next(item["containerPort"] for item in container["ports"] if item["name"] == probe["port"])
    try:
        with urllib.request.urlopen(f"http://{host}:{port}{probe['path']}", timeout=2) as answer:
            return bool(answer.status == 200)
    except urllib.error.URLError:
        return False


async def test_the_credentials_of_the_secret_open_jetstream(server: Server) -> None:
    client = await nats.connect(f"nats://{server.host}:4222", user="pointsman", password=PASSWORD)
    try:
        await client.jetstream().add_stream(name="tried", subjects=["tried"])
        acknowledged = await client.jetstream().publish("tried", b"x")
        assert acknowledged.seq == 1
    finally:
        await client.close()


@pytest.mark.parametrize("credentials", [{}, {"user": "pointsman", "password": "guessed"}])
async def test_nobody_else_gets_in(server: Server, credentials: dict[str, str]) -> None:
    async def ignore(_: Exception) -> None:
        """The refusal comes as an exception too."""

    with pytest.raises((nats.errors.Error, OSError)):
        await nats.connect(f"nats://{server.host}:4222", allow_reconnect=False, error_cb=ignore, **credentials)


def test_the_password_is_on_no_command_line(server: Server) -> None:
    assert PASSWORD.encode() not in Path(f"/proc/{server.process.pid}/cmdline").read_bytes()
