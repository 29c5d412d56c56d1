"""Which Prometheus servers a policy may name where the installation lists them."""

import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, HTTPServer

import pytest

from pointsman.planner.errors import PrometheusFailed
from pointsman.planner.prometheus import Prometheus
from pointsman.planner.prometheus_urls import is_allowed

ALLOWED = ("http://prometheus.monitoring.svc:9090", "https://metrics.example/tenant-a/")


@pytest.mark.parametrize(
    "url",
    [
        "http://prometheus.monitoring.svc:9090",
        "http://prometheus.monitoring.svc:9090/",
        "http://user:password@prometheus.monitoring.svc:9090/prefix",
        "http://PROMETHEUS.monitoring.svc:9090",
        "https://metrics.example/tenant-a",
        "https://metrics.example:443/tenant-a/prometheus",
    ],
)
def test_a_listed_address_and_what_is_below_it_may_be_named(url: str) -> None:
    assert is_allowed(url, ALLOWED)


@pytest.mark.parametrize(
    "url",
    [
        "https://prometheus.monitoring.svc:9090",
        "http://prometheus.monitoring.svc",
        "http://prometheus.monitoring.svc:9091",
        "http://prometheus.monitoring.svc.evil.example:9090",
        "http://prometheus.monitoring.svc:9090@evil.example",
        "http://evil.example\\@prometheus.monitoring.svc:9090",
        "http://evil.example#prometheus.monitoring.svc:9090",
        "https://metrics.example/tenant-ab",
        "https://metrics.example/tenant-a/../tenant-b",
        "https://metrics.example/tenant-a/%2e%2e/tenant-b",
        "http://169.254.169.254/latest",
        "http://prometheus.monitoring.svc:port",
        "",
    ],
)
def test_every_other_address_may_not(url: str) -> None:
    assert not is_allowed(url, ALLOWED)


def test_without_a_list_every_address_may_be_named() -> None:
    assert is_allowed("http://127.0.0.1:9090", ())


class Redirecting(BaseHTTPRequestHandler):
    """Sends every request elsewhere, and remembers what it was asked."""

    asked: list[str] = []  # noqa: RUF012 - one server a test

    def do_GET(self) -> None:
        self.asked.append(self.path)
        if self.path.startswith("/inside"):
            self.send_response(200)
            self.end_headers()
            return
        self.send_response(302)
        self.send_header("Location", "/inside")
        self.end_headers()

    def log_message(self, *_: object) -> None:
        return


@pytest.fixture
def server() -> Iterator[str]:
    Redirecting.asked = []
    found = HTTPServer(("127.0.0.1", 0), Redirecting)
    thread = threading.Thread(target=found.serve_forever)
    thread.start()
    yield f"http://127.0.0.1:{found.server_port}"
    found.shutdown()
    thread.join()
    found.server_close()


def test_an_address_that_is_not_listed_is_never_asked(server: str) -> None:
    with pytest.raises(PrometheusFailed, match="none of the addresses that this installation may query"):
        Prometheus(server, 5.0, ALLOWED).samples_now("up", 0.0)
    assert Redirecting.asked == []


def test_a_listed_server_cannot_send_the_planner_elsewhere(server: str) -> None:
    with pytest.raises(PrometheusFailed):
        Prometheus(server, 5.0, (server,)).samples_now("up", 0.0)
    assert len(Redirecting.asked) == 1
