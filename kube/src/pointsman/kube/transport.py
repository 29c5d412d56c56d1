"""Connection to the API server through the ``ApiClient`` of ``kubernetes.aio``: where it is, who we are.

Configuration, credentials (service account, client certificate, token file, exec plugin, OIDC …), TLS, HTTP session and
the sending of requests are the package's. Answers stay as the API server sent them: the package's generated models
take 15 to 40 times the time of a slim model to decode.
"""

import asyncio
import ipaddress
import logging
import os
import ssl
import urllib.request
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final
from urllib.parse import urlsplit

import aiohttp
import yaml
import yarl
from kubernetes.aio.client.api_client import ApiClient
from kubernetes.aio.client.configuration import Configuration
from kubernetes.aio.config import ConfigException, load_incluster_config, load_kube_config

from pointsman.kube.errors import NotConfigured
from pointsman.process.clock import SYSTEM_CLOCK, Clock

log = logging.getLogger(__name__)

JSON: Final = "application/json"
CREDENTIALS_REFRESH_S: Final = 60.0
EXEC_PLUGIN_TIMEOUT_S: Final = 30.0
DEFAULT_NAMESPACE: Final = "default"
_SERVICE_ACCOUNT_NAMESPACE: Final = Path("/var/run/secrets/kubernetes.io/serviceaccount/namespace")

Loader = Callable[[Configuration], Awaitable[None]]
"""Reads address and credentials, as they are now, into the configuration."""


@dataclass(frozen=True, slots=True)
class Call:
    """One HTTP request. ``path`` is quoted; ``body`` is an object for a content type of JSON, bytes for another."""

    method: str
    path: str
    query: Mapping[str, str]
    body: object = None
    content_type: str = JSON

    def __str__(self) -> str:
        return f"{self.method} {self.path}"


class Transport:
    """Requests to one API server, with credentials that are read again as they age."""

    def __init__(
        self, configuration: Configuration, load: Loader, *, user_agent: str, clock: Clock, namespace: str
    ) -> None:
        """For :func:`connect`; ``configuration`` is loaded already."""
        self.namespace = namespace
        self._configuration = configuration
        self._load = load
        self._clock = clock
        self._user_agent = user_agent
        self._loaded_at_s = clock.monotonic_s()
        self._loading = asyncio.Lock()
        self._client = self._new_client()
        self._tls = _tls_material(configuration)

    def _new_client(self) -> ApiClient:
        client = ApiClient(self._configuration)
        client.user_agent = self._user_agent
        client.set_default_header("Accept", JSON)
        # The API server would compress large lists: more work for both sides than a cluster's network saves.
        client.set_default_header("Accept-Encoding", "identity")
        return client

    @property
    def server(self) -> str:
        """Base URL of the API server."""
        return str(self._configuration.host)

    async def close(self) -> None:
        """Close the session; open requests and watches end."""
        await self._client.close()

    async def send(self, call: Call, timeout: aiohttp.ClientTimeout) -> aiohttp.ClientResponse:
        """Begin a request; the caller reads and closes the response. Raises what aiohttp raises.

        Credentials that are refused are read again once: a refused request was not executed.
        """
        await self.refresh()
        response = await self._try(call, timeout)
        if response.status == 401 and await self.refresh(force=True):
            response.close()
            response = await self._try(call, timeout)
        return response

    async def _try(self, call: Call, timeout: aiohttp.ClientTimeout) -> aiohttp.ClientResponse:
        method, url, headers, body, _ = await self._client.param_serialize(
            call.method,
            call.path,
            query_params=[*call.query.items()],
            header_params={"Content-Type": call.content_type},
            body=call.body,
            auth_settings=["BearerToken"],
        )
        quoted = yarl.URL(url, encoded=True)
        answer = await self._client.call_api(method, quoted, headers, body, _request_timeout=timeout)
        response: aiohttp.ClientResponse = answer.response
        return response

    async def refresh(self, *, force: bool = False) -> bool:
        """Read the credentials again when they are a minute old; True when they were read.

        Bound tokens are rotated on disk, kubeconfig files are rewritten, exec plugins know when their token ends. When
        reading fails the old ones stay: they may still be good, and the API server says so if not.
        """
        asked_at_s = self._clock.monotonic_s()
        if not force and asked_at_s - self._loaded_at_s < CREDENTIALS_REFRESH_S:
            return False
        async with self._loading:
            if self._loaded_at_s >= asked_at_s:
                return True  # another request has just read them
            self._loaded_at_s = self._clock.monotonic_s()
            try:
                async with asyncio.timeout(EXEC_PLUGIN_TIMEOUT_S):
                    await _load(self._load, self._configuration)
            except (NotConfigured, ConfigException, OSError, TimeoutError) as error:
                log.warning("credentials not readable, keeping the old ones", extra={"why": str(error)})
                return False
            tls = _tls_material(self._configuration)
            if tls != self._tls:
                log.info("certificates changed, reconnecting", extra={"server": self.server})
                old, self._client, self._tls = self._client, self._new_client(), tls
                await old.close()
            return True


async def connect(
    kubeconfig: Path | str | None = None, *, user_agent: str = "pointsman", clock: Clock = SYSTEM_CLOCK
) -> Transport:
    """Find the cluster and who we are there.

    In this order: ``kubeconfig``; the files named by ``KUBECONFIG``; the pod's service account; ``~/.kube/config``. No
    request is made yet.

    Raises NotConfigured, naming what was looked for.
    """
    load = _loader(kubeconfig)
    configuration = Configuration()
    # Many clusters' CA certificates lack the key identifier that Python 3.13's strict mode demands.
    configuration.disable_strict_ssl_verification = True
    try:
        await _load(load, configuration)
        # A proxy of the environment is for the outside; kube-apiserver on loopback is not there (Go's rule too). The
        # environment is looked at once: aiohttp does it for each request, which doubles what a request costs.
        trust = bool(urllib.request.getproxies()) and not _is_loopback(configuration.host)
        configuration.client_session_kwargs = {"trust_env": trust}
        namespace = load.namespace if isinstance(load, _KubeconfigLoader) else _pods_namespace()
        return Transport(configuration, load, user_agent=user_agent, clock=clock, namespace=namespace)
    except (ConfigException, OSError, ssl.SSLError) as error:
        raise NotConfigured(f"the cluster's configuration cannot be used: {error}") from error


def _loader(kubeconfig: Path | str | None) -> Loader:
    named = str(kubeconfig) if kubeconfig is not None else os.environ.get("KUBECONFIG", "")
    if named:
        return _KubeconfigLoader(named)
    if os.environ.get("KUBERNETES_SERVICE_HOST"):
        return _load_service_account
    home = Path("~/.kube/config").expanduser()
    if home.exists():
        return _KubeconfigLoader(str(home))
    raise NotConfigured(
        "no cluster is configured: KUBECONFIG is not set, this is no pod (KUBERNETES_SERVICE_HOST is not set), "
        f"and {home} does not exist"
    )


def _pods_namespace() -> str:
    """The namespace of the pod this process is in."""
    try:
        return _SERVICE_ACCOUNT_NAMESPACE.read_text().strip() or DEFAULT_NAMESPACE
    except OSError:
        return DEFAULT_NAMESPACE


async def _load(load: Loader, configuration: Configuration) -> None:
    await load(configuration)
    # A token file may end in a newline.
    configuration.api_key = {name: key.strip() for name, key in configuration.api_key.items()}


async def _load_service_account(configuration: Configuration) -> None:
    load_incluster_config(client_configuration=configuration, try_refresh_token=False)


class _KubeconfigLoader:
    """Loads one or several kubeconfig files (separated as in PATH), again when they were rewritten."""

    def __init__(self, files: str) -> None:
        self._files = files
        self._paths = [Path(path).expanduser() for path in files.split(os.pathsep) if path]
        # The loader remembers when an exec plugin's or identity provider's token ends.
        self._loader: Any = None
        self._seen: tuple[int, ...] = ()

    @property
    def namespace(self) -> str:
        """What the current context says, as kubectl reads it."""
        context = (self._loader.current_context if self._loader is not None else {}).get("context") or {}
        return str(context.get("namespace") or DEFAULT_NAMESPACE)

    async def __call__(self, configuration: Configuration) -> None:
        seen = tuple(path.stat().st_mtime_ns for path in self._paths if path.exists())
        if not seen:
            raise NotConfigured(f"kubeconfig {self._files} does not exist")
        try:
            if self._loader is None or seen != self._seen:
                self._loader = await load_kube_config(
                    config_file=self._files, client_configuration=configuration, persist_config=False
                )
                self._seen = seen
            else:
                await self._loader.load_and_set(configuration)
        except (ConfigException, yaml.YAMLError, TypeError, AttributeError) as error:
            # What is no kubeconfig at all (a list, an empty file) fails in the loader with the latter two.
            raise NotConfigured(f"kubeconfig {self._files} cannot be used: {error}") from error


def _tls_material(configuration: Configuration) -> tuple[object, ...]:
    """What the session's TLS context was made from.

    By content: when the kubelet rotates a token it writes the CA file beside it anew, and a new session would cut all
    watches.
    """
    paths = (configuration.ssl_ca_cert, configuration.cert_file, configuration.key_file)
    contents = tuple(hash(Path(path).read_bytes()) if path and Path(path).exists() else None for path in paths)
    return (configuration.host, configuration.verify_ssl, *contents)


def _is_loopback(server: str) -> bool:
    host = urlsplit(server).hostname or ""
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"
