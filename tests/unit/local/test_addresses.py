"""Ports that are given to servers which will listen on them."""

import socket
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context

import pytest

from pointsman.local import addresses
from pointsman.local.addresses import free_port


def ports(count: int) -> list[int]:
    return [free_port() for _ in range(count)]


def test_no_two_processes_are_given_the_same_port() -> None:
    """Before they listen on them, nothing else keeps a port from being free twice."""
    with ProcessPoolExecutor(4, mp_context=get_context("spawn")) as processes:
        given = [port for found in processes.map(ports, [500] * 8) for port in found]
    assert len(set(given)) == len(given) == 4000


def test_a_port_that_somebody_listens_on_is_left_out(monkeypatch: pytest.MonkeyPatch) -> None:
    with socket.socket() as server:
        server.bind(("127.0.0.1", free_port()))
        server.listen()
        taken, free = server.getsockname()[1], free_port()
        monkeypatch.setattr(addresses, "_next_port", iter([taken, taken, free]).__next__)
        assert free_port() == free
