"""A Prometheus with users, a token or a CA of its own, as managed ones have them; and one that hangs."""

import asyncio
import base64
import socket
import threading
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

from fixtures.certificates import Authority
from fixtures.prometheus_server import PASSWORD, PrometheusServer, running_prometheus
from integration.planner.live_loads import health, healthy
from pointsman.api.v1alpha1.conditions import ConditionStatus
from pointsman.kube import resources
from pointsman.planner.errors import PrometheusFailed
from pointsman.planner.prometheus import Prometheus
from pointsman.planner.prometheus_access import Access
from pointsman.planner.replay import record_command
from waiting import eventually

from .conftest import DEADLINE_S, World

AUTHORITY = Authority()
SECRET = "pointsman-prometheus"


@pytest.fixture(scope="module")
def secured() -> Iterator[PrometheusServer]:
    with running_prometheus(authority=AUTHORITY) as server:
        yield server


def asked(url: str, access: Access | None) -> str:
    """What a query answers: "" for an answer of Prometheus, else the problem."""
    client = Prometheus(url, 5.0, access=access)
    try:
        client.samples_now("up", 0.0)
    except PrometheusFailed as error:
        return str(error)
    finally:
        client.close()
    return ""


def test_a_certificate_of_an_own_authority_and_a_user_are_both_needed_and_what_is_missing_is_said(
    secured: PrometheusServer,
) -> None:
    user = ("planner", PASSWORD)
    assert asked(secured.url, Access(basic=user, ca=AUTHORITY.pem)) == ""
    for untrusted in (None, Access(basic=user), Access(basic=user, ca=Authority().pem)):
        said = asked(secured.url, untrusted)
        assert "has no certificate that is trusted" in said
        assert "put the CA of its certificate into the key 'ca.crt'" in said
    said = asked(secured.url, Access(ca=AUTHORITY.pem))
    assert said.endswith("HTTP Status Code 401: it needs credentials; name a Secret with them in "
                         "metrics.prometheusSecretRef")  # fmt: skip
    said = asked(secured.url, Access(basic=("planner", "wr0ng"), ca=AUTHORITY.pem))
    assert said.endswith("401: correct the username and password in the Secret of metrics.prometheusSecretRef")
    assert "wr0ng" not in said
    with pytest.raises(PrometheusFailed, match=r"key 'ca\.crt' .* has no certificate in PEM"):
        Prometheus(secured.url, 5.0, access=Access(ca="none"))


@contextmanager
def behind_a_token(server: PrometheusServer, token: str) -> Iterator[str]:
    """A proxy that lets only those pass who have the token."""

    class Proxy(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            if self.headers["Authorization"] != f"Bearer {token}":
                self.send_error(401)
                return
            with urllib.request.urlopen(f"{server.url}{self.path}", timeout=10) as answer:
                body = answer.read()
            self.send_response(200)
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *_: object) -> None:
            return

    found = ThreadingHTTPServer(("127.0.0.1", 0), Proxy)
    thread = threading.Thread(target=found.serve_forever)
    thread.start()
    try:
        yield f"http://127.0.0.1:{found.server_port}"
    finally:
        found.shutdown()
        thread.join()
        found.server_close()


def test_a_token_is_sent_as_bearer() -> None:
    with running_prometheus() as server, behind_a_token(server, "t0ken") as url:
        assert asked(url, Access(token="t0ken")) == ""
        assert asked(url, Access(token="0ld")).endswith(
            "401: correct the token in the Secret of metrics.prometheusSecretRef"
        )
        assert "name a Secret" in asked(url, None)


def recorded(url: str, capsys: pytest.CaptureFixture[str], *options: str) -> str:
    """What ``pointsman record`` says is wrong; where it was let in there is nothing to record."""
    assert record_command.main(["--prometheus", url, "--service", "chat", "--last", "1m", "--out", "no", *options]) == 2
    return capsys.readouterr().err.strip()


def test_a_recording_is_let_in_by_a_user_a_token_and_a_ca_and_its_options_are_named_where_it_is_not(
    secured: PrometheusServer, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    secured.let_in("planner")
    files = {"ca": AUTHORITY.pem, "password": PASSWORD, "wrong": "wr0ng", "token": "t0ken"}
    for name, text in files.items():
        (tmp_path / name).write_text(f"{text}\n")
    ca, password, wrong, token = (str(tmp_path / name) for name in files)
    user = ["--ca-file", ca, "--user", "planner", "--password-file"]
    assert "no request arrived" in recorded(secured.url, capsys, *user, password)
    assert recorded(secured.url, capsys, *user, wrong).endswith(
        "401: correct --user or the password in --password-file"
    )
    assert recorded(secured.url, capsys, "--ca-file", ca).endswith(
        "401: it needs credentials; give them with --token-file, or with --user and --password-file"
    )
    assert "is trusted" in (said := recorded(secured.url, capsys)) and said.endswith(
        "give the CA of its certificate with --ca-file"
    )
    with running_prometheus() as server, behind_a_token(server, "t0ken") as url:
        assert "no request arrived" in recorded(url, capsys, "--token-file", token)
        assert recorded(url, capsys, "--token-file", wrong).endswith("401: correct the token in --token-file")


async def write_secret(world: World, **keys: str) -> None:
    data = {key.replace("_", "."): base64.b64encode(text.encode()).decode() for key, text in keys.items()}
    body = {"apiVersion": "v1", "kind": "Secret", "metadata": {"name": SECRET, "namespace": world.namespace}}
    await world.kube.apply(resources.SECRETS, {**body, "data": data})


async def test_a_secret_is_read_in_the_policys_namespace_and_its_rotation_needs_no_restart(
    world: World, secured: PrometheusServer
) -> None:
    secured.let_in("planner")
    metrics = {
        "prometheusUrl": secured.url, "prometheusSecretRef": {"name": SECRET},
        "intervalSeconds": 0.3, "staleAfterSeconds": 5,
    }  # fmt: skip
    await world.policy(metrics=metrics, mode="Shadow")
    await world.service()
    secured.scrape({name: world.address(name) for name in world.pages}, world.namespace)
    world.planner.start()
    await healthy(world, ConditionStatus.FALSE)
    assert health(world).reason == "PrometheusUnreachable"
    assert f"there is no Secret '{SECRET}' (metrics.prometheusSecretRef) in namespace" in health(world).message

    async def said(text: str) -> None:
        await world.until(lambda: text in health(world).message, text, world.services)

    keys = {"url": secured.url, "password": PASSWORD, "ca_crt": AUTHORITY.pem}
    await write_secret(world, **{**keys, "url": "https://elsewhere.example"}, username="planner")
    await said("metrics.prometheusUrl is another address")
    await write_secret(world, **keys, username="planner")
    await healthy(world, ConditionStatus.TRUE)
    secured.let_in("planner-2")
    await healthy(world, ConditionStatus.FALSE)
    await said("401: correct the username and password")
    await write_secret(world, **keys, username="planner-2")
    await healthy(world, ConditionStatus.TRUE)
    assert "planner-2" not in world.planner.log, "what a Secret says is in no log"


async def test_a_secret_that_the_installation_did_not_name_cannot_be_read(
    world: World, secured: PrometheusServer
) -> None:
    metrics = {"prometheusUrl": secured.url, "prometheusSecretRef": {"name": "hub-token"}}
    await world.policy(metrics={**metrics, "intervalSeconds": 0.3, "staleAfterSeconds": 5})
    await world.service()
    world.planner.start()
    await healthy(world, ConditionStatus.FALSE)
    assert health(world).message == (
        "the planner may not read Secret 'hub-token' (metrics.prometheusSecretRef); "
        "add its name to the chart's planner.prometheusSecrets"
    )


@contextmanager
def trickling() -> Iterator[tuple[str, list[socket.socket]]]:
    """A server that begins its answers and sends a byte now and then; (address, connections)."""
    server = socket.create_server(("127.0.0.1", 0))
    connections: list[socket.socket] = []
    ended = threading.Event()

    def serve() -> None:
        while True:
            try:
                connection, _ = server.accept()
            except OSError:
                return
            connections.append(connection)
            threading.Thread(target=trickle, args=(connection,)).start()

    def trickle(connection: socket.socket) -> None:
        try:
            connection.sendall(b"HTTP/1.1 200 OK\r\nContent-Length: 100000\r\n\r\n")
            while not ended.wait(0.05):
                connection.sendall(b" ")
        except OSError:
            pass
        connection.close()

    thread = threading.Thread(target=serve)
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.getsockname()[1]}", connections
    finally:
        ended.set()
        server.shutdown(socket.SHUT_RDWR)
        server.close()
        thread.join()


async def test_a_server_that_hangs_keeps_no_thread() -> None:
    """Each of its bytes comes within the timeout of a read: only the end of the connection ends the thread."""
    with trickling() as (url, connections):
        before = threading.active_count()
        client = Prometheus(url, 0.2)
        for number in range(3):
            with pytest.raises(PrometheusFailed, match=r"did not answer within 0\.4 s"):
                await client.samples("up", 0.0)
            # The server's thread may accept one after its client has given it up.
            await eventually(lambda: len(connections) > number, f"connection {number}")  # noqa: B023 - awaited here
            assert len(connections) == number + 1, "the query before it has ended"
        client.close()

        async def ended() -> bool:
            return threading.active_count() <= before  # what serves it ends by itself

        await eventually(ended, "no thread is left")


async def test_a_client_that_is_closed_ends_its_query_and_its_connections() -> None:
    with trickling() as (url, connections):
        client = Prometheus(url, 5.0)
        query = asyncio.create_task(client.samples("up", 0.0))

        async def connected() -> bool:
            return bool(connections)

        await eventually(connected, "a connection")
        client.close()
        async with asyncio.timeout(DEADLINE_S):
            with pytest.raises(PrometheusFailed):
                await query
