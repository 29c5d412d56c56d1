"""Connections to one Prometheus: the CA that is trusted, and a way to end a request that does not end by itself.

The timeout of ``requests`` is of one read: a server that sends a byte now and then holds a thread for ever. What is
open is known here, so that it can be shut.
"""

import contextlib
import socket
import ssl
import weakref
from typing import Any

import requests
from requests.adapters import HTTPAdapter
from urllib3.connection import HTTPConnection, HTTPSConnection
from urllib3.connectionpool import HTTPConnectionPool, HTTPSConnectionPool
from urllib3.util.retry import Retry


class Connections(HTTPAdapter):
    """The adapter of one client. ``ca``: PEM of the only CAs to trust; None: those of the system.

    Raises ssl.SSLError if ``ca`` is no PEM.
    """

    def __init__(self, ca: str | None = None) -> None:
        self._context = None if ca is None else ssl.create_default_context(cadata=ca)
        self._open: weakref.WeakSet[HTTPConnection] = weakref.WeakSet()
        super().__init__(max_retries=Retry(total=0))

    def init_poolmanager(self, connections: int, maxsize: int, block: bool = False, **pool_kwargs: Any) -> None:
        """Of ``requests``: with pools whose connections are known."""
        if self._context is not None:
            pool_kwargs["ssl_context"] = self._context
        super().init_poolmanager(connections, maxsize, block, **pool_kwargs)
        opened = self._open

        class Plain(HTTPConnection):
            def connect(self) -> None:
                opened.add(self)
                super().connect()

        class Encrypted(HTTPSConnection):
            def connect(self) -> None:
                opened.add(self)
                super().connect()

        class PlainPool(HTTPConnectionPool):
            ConnectionCls = Plain

        class EncryptedPool(HTTPSConnectionPool):
            ConnectionCls = Encrypted

        self.poolmanager.pool_classes_by_scheme = {"http": PlainPool, "https": EncryptedPool}

    def cert_verify(self, conn: Any, url: str, verify: Any, cert: Any) -> None:
        """Of ``requests``: it would add the CAs of the system to the one that was given."""
        if self._context is None:
            super().cert_verify(conn, url, verify, cert)

    def abort(self) -> None:
        """End what is under way: who reads gets an error."""
        for connection in list(self._open):
            opened = getattr(connection, "sock", None)
            if opened is not None:
                with contextlib.suppress(OSError):
                    socket.socket.shutdown(opened, socket.SHUT_RDWR)  # not that of TLS, which its reader still uses


class Bearer(requests.auth.AuthBase):
    """Sends a token."""

    def __init__(self, token: str) -> None:
        self._token = token

    def __call__(self, request: requests.PreparedRequest) -> requests.PreparedRequest:
        """Of ``requests``."""
        request.headers["Authorization"] = f"Bearer {self._token}"
        return request
