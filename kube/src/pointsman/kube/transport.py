"""Connection to the API server: where it is, who we are, one HTTP session.

Configuration, credentials (service account, client certificate, token file, exec plugin, OIDC …) and the HTTP session
are those of ``kubernetes.aio``; its generated models are not used, because decoding with them costs 15 to 40 times the
time of a slim model.
"""

import asyncio
import ipaddress
import logging
import os
import ssl
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, Protocol
from urllib.parse import urlencode, urlsplit

import aiohttp
import yaml
import yarl
from kubernetes.aio.client.configuration import Configuration
from kubernetes.aio.client.rest import RESTClientObject
from kubernetes.aio.config import ConfigException, load_incluster_config, load_kube_config

from pointsman.kube.errors import NotConfigured, Unreachable
from pointsman.process.clock import SYSTEM_CLOCK, Clock

log = logging.getLogger(__name__)

CREDENTIALS_REFRESH_S: Final = 60.0
EXEC_PLUGIN_TIMEOUT_S: Final = 30.0
CONNECT_TIMEOUT_S: Final = 5.0
DEFAULT_NAMESPACE: Final = "default"
_SERVICE_ACCOUNT_NAMESPACE: Final = Path("/var/run/secrets/kubernetes.io/serviceaccount/namespace")

Loader = Callable[[Configuration], Awaitable[None]]
"""Reads address and credentials, as they are now, into the configuration."""


@dataclass(frozen=True)
class Answer:
    """A whole answer; ``warnings`` are the API server's sentences about deprecations and fields it dropped."""

    status: int
    body: bytes
    retry_after: str | None = None
    warnings: tuple[str, ...] = ()


class _Session(RESTClientObject):  # type: ignore[misc]  # kubernetes has no types
    """kubernetes.aio's HTTP session (TLS, proxy, pool), without its request encoding."""

    pool_manager: aiohttp.ClientSession | None

    def open(self) -> aiohttp.ClientSession:
        if self.pool_manager is None:
            self.pool_manager = self._create_pool_manager()
        return self.pool_manager


class Transport:
    """Requests to one API server, with credentials that are read again as they age."""

    def __init__(
        self,
        configuration: Configuration,
        load: Loader,
        *,
        user_agent: str,
        clock: Clock,
        namespace: str = DEFAULT_NAMESPACE,
    ) -> None:
        """For :func:`connect`; ``configuration`` is loaded already."""
        self.namespace = namespace
        self._configuration = configuration
        self._load = load
        self._clock = clock
        self._user_agent = user_agent
        self._loaded_at_s = clock.monotonic_s()
        self._loading = asyncio.Lock()
        self._session = _Session(configuration)
        self._tls = _tls_material(configuration)

    @property
    def server(self) -> str:
        """Base URL of the API server."""
        return str(self._configuration.host)

    async def close(self) -> None:
        """Close the session; open requests and watches end."""
        await self._session.close()

    async def request(
        self,
        method: str,
        path: str,
        *,
        query: Mapping[str, str],
        body: bytes | None = None,
        content_type: str = "application/json",
        timeout_s: float,
    ) -> Answer:
        """One request, its whole answer, within ``timeout_s``.

        Credentials that are refused are read again once: a refused request was not executed.

        Raises Unreachable when there is no answer.
        """
        timeout = aiohttp.ClientTimeout(total=timeout_s, sock_connect=CONNECT_TIMEOUT_S)
        answer = await self._request(method, path, query, body, content_type, timeout)
        if answer.status == 401 and await self.refresh(force=True):
            answer = await self._request(method, path, query, body, content_type, timeout)
        return answer

    async def _request(
        self,
        method: str,
        path: str,
        query: Mapping[str, str],
        body: bytes | None,
        content_type: str,
        timeout: aiohttp.ClientTimeout,
    ) -> Answer:
        await self.refresh()
        headers = await self.headers()
        if body is not None:
            headers["Content-Type"] = content_type
        try:
            async with self._session.open().request(
                method, self.url(path, query), data=body, headers=headers, timeout=timeout, **self._options()
            ) as response:
                return Answer(
                    response.status,
                    await response.read(),
                    retry_after=response.headers.get("Retry-After"),
                    # Of the form: 299 - "text".
                    warnings=tuple(w.split(" ", 2)[-1].strip('"') for w in response.headers.getall("Warning", ())),
                )
        except TimeoutError as error:
            raise Unreachable(f"{method} {path}: no answer within {timeout.total:g} s") from error
        except (aiohttp.ClientError, OSError) as error:
            raise Unreachable(f"{method} {path}: {error}") from error

    async def stream(self, path: str, *, query: Mapping[str, str], read_timeout_s: float) -> aiohttp.ClientResponse:
        """Begin a GET whose body is read as it comes; the caller closes the response.

        ``read_timeout_s`` bounds the silence between two reads, not the whole.

        Raises Unreachable when there is no answer.
        """
        timeout = aiohttp.ClientTimeout(total=None, sock_connect=CONNECT_TIMEOUT_S, sock_read=read_timeout_s)
        for last_try in (False, True):
            await self.refresh()
            headers = await self.headers()
            try:
                response = await self._session.open().get(
                    self.url(path, query), headers=headers, timeout=timeout, **self._options()
                )
            except TimeoutError as error:
                raise Unreachable(f"GET {path}: no answer within {read_timeout_s:g} s") from error
            except (aiohttp.ClientError, OSError) as error:
                raise Unreachable(f"GET {path}: {error}") from error
            if response.status != 401 or last_try or not await self.refresh(force=True):
                break
            response.close()
        return response

    def url(self, path: str, query: Mapping[str, str]) -> yarl.URL:
        """The URL of ``path`` (already quoted) at this server."""
        text = self.server + path
        return yarl.URL(f"{text}?{urlencode(query)}" if query else text, encoded=True)

    async def headers(self) -> dict[str, str]:
        """Headers every request carries."""
        headers = {
            "Accept": "application/json",
            # The API server would compress large lists: more work for both sides than a cluster's network saves.
            "Accept-Encoding": "identity",
            "User-Agent": self._user_agent,
        }
        token = await self._configuration.get_api_key_with_prefix("BearerToken", alias="authorization")
        if token:
            headers["Authorization"] = token.strip()  # a token file may end in a newline
        return headers

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
                    await self._load(self._configuration)
            except (NotConfigured, ConfigException, OSError, TimeoutError) as error:
                log.warning("cannot read credentials again, keeping the old ones: %s", error)
                return False
            tls = _tls_material(self._configuration)
            if tls != self._tls:
                log.info("certificates changed, connecting anew to %s", self.server)
                old, self._session, self._tls = self._session, _Session(self._configuration), tls
                await old.close()
            return True

    def _options(self) -> dict[str, Any]:
        options: dict[str, Any] = {}
        if self._configuration.tls_server_name:
            options["server_hostname"] = str(self._configuration.tls_server_name)
        if self._configuration.proxy:
            options["proxy"] = str(self._configuration.proxy)
        return options


async def connect(
    kubeconfig: Path | str | None = None,
    context: str | None = None,
    *,
    user_agent: str = "pointsman",
    clock: Clock = SYSTEM_CLOCK,
) -> Transport:
    """Find the cluster and who we are there.

    In this order: ``kubeconfig``; the files named by ``KUBECONFIG``; the pod's service account; ``~/.kube/config``. No
    request is made yet.

    Raises NotConfigured, naming what was looked for.
    """
    load = _loader(kubeconfig, context)
    configuration = Configuration()
    # Many clusters' CA certificates lack the key identifier that Python 3.13's strict mode demands.
    configuration.disable_strict_ssl_verification = True
    try:
        await load(configuration)
        # A proxy of the environment is for the outside; kube-apiserver on loopback is not there (Go's rule too).
        configuration.client_session_kwargs = {"trust_env": not _is_loopback(configuration.host)}
        namespace = load.namespace if isinstance(load, _KubeconfigLoader) else _pods_namespace()
        return Transport(configuration, load, user_agent=user_agent, clock=clock, namespace=namespace)
    except (ConfigException, OSError, ssl.SSLError) as error:
        raise NotConfigured(f"the cluster's configuration cannot be used: {error}") from error


def _loader(kubeconfig: Path | str | None, context: str | None) -> Loader:
    named = str(kubeconfig) if kubeconfig is not None else os.environ.get("KUBECONFIG", "")
    if named:
        return _KubeconfigLoader(named, context)
    if os.environ.get("KUBERNETES_SERVICE_HOST"):
        return _load_service_account
    home = Path("~/.kube/config").expanduser()
    if home.exists():
        return _KubeconfigLoader(str(home), context)
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


async def _load_service_account(configuration: Configuration) -> None:
    load_incluster_config(client_configuration=configuration, try_refresh_token=False)


class _KubeconfigLoader:
    """Loads one or several kubeconfig files (separated as in PATH), again when they were rewritten."""

    def __init__(self, files: str, context: str | None) -> None:
        self._files = files
        self._paths = [Path(path).expanduser() for path in files.split(os.pathsep) if path]
        self._context = context
        # The loader remembers when an exec plugin's or identity provider's token ends.
        self._loader: _AuthLoader | None = None
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
                    config_file=self._files,
                    context=self._context,
                    client_configuration=configuration,
                    persist_config=False,
                )
                self._seen = seen
            else:
                await self._loader.load_and_set(configuration)
        except (ConfigException, yaml.YAMLError, TypeError, AttributeError) as error:
            # What is no kubeconfig at all (a list, an empty file) fails in the loader with the latter two.
            raise NotConfigured(f"kubeconfig {self._files} cannot be used: {error}") from error


class _AuthLoader(Protocol):
    """What is used of the loader ``load_kube_config`` returns."""

    @property
    def current_context(self) -> Mapping[str, Any]:
        """The entry of ``contexts`` that is used."""

    async def load_and_set(self, client_configuration: Configuration) -> None:
        """Read the credentials again, those that have not ended from memory."""


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
