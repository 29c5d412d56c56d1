"""What the API server asks a node over HTTPS: container logs. Only the API server's own certificate may ask."""

import asyncio
import ssl
from collections.abc import Awaitable, Callable, Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Final

from aiohttp import web

from pointsman.local.node.container_log import LogLine, LogReader, tail

API_SERVER_USER: Final = "kube-apiserver-kubelet-client"
"""Common name of the certificate with which the API server asks."""

_FOLLOW_S: Final = 0.2
FindLog = Callable[[str, str, str, bool], Path]
"""Path of a container's log by namespace, pod, container and ``previous``; raises LookupError with a sentence."""
IsOver = Callable[[str, str, str], bool]
"""Whether nothing will be added to a container's log."""


def kubelet_api(find_log: FindLog, is_over: IsOver) -> web.Application:
    """The application to serve."""

    async def logs(request: web.Request) -> web.StreamResponse:
        namespace, pod, container = (request.match_info[name] for name in ("namespace", "pod", "container"))
        query = request.query
        previous = query.get("previous") == "true"
        try:
            path = find_log(namespace, pod, container, previous)
        except LookupError as error:
            return web.Response(status=404, text=f"{error.args[0]}\n")
        response = web.StreamResponse(headers={"Content-Type": "text/plain"})
        await response.prepare(request)
        timestamps = query.get("timestamps") == "true"
        reader = LogReader(path)
        left = int(query["limitBytes"]) if "limitBytes" in query else None
        lines = _selected(reader.read(), query.get("sinceTime"), query.get("sinceSeconds"), query.get("tailLines"))
        left = await _send(response, lines, timestamps, left)
        while query.get("follow") == "true" and not previous and left != 0:
            over = is_over(namespace, pod, container)  # asked first: what is written before the end is sent yet
            left = await _send(response, reader.read(), timestamps, left)
            if over:
                break
            await asyncio.sleep(_FOLLOW_S)
        return response

    async def unsupported(request: web.Request) -> web.Response:
        what = request.path.split("/")[1]
        text = f"{what} is not supported by the process node: the pod's processes run on this computer"
        return web.Response(status=501, text=f"{text}\n")

    async def healthy(_request: web.Request) -> web.Response:
        return web.Response(text="ok")

    @web.middleware
    async def only_the_api_server(
        request: web.Request, handler: Callable[[web.Request], Awaitable[web.StreamResponse]]
    ) -> web.StreamResponse:
        # The certificate is the authority's, or there would be no connection; users and nodes have such too.
        certificate = request.get_extra_info("peercert") or {}
        names = dict(pair for part in certificate.get("subject", ()) for pair in part)
        if names.get("commonName") != API_SERVER_USER:
            return web.Response(status=403, text="only the API server may query the node\n")
        return await handler(request)

    application = web.Application(middlewares=[only_the_api_server])
    application.router.add_get("/healthz", healthy)
    application.router.add_get("/containerLogs/{namespace}/{pod}/{container}", logs)
    for kind in ("exec", "attach", "run", "portForward"):
        application.router.add_route("*", f"/{kind}/{{rest:.*}}", unsupported)
    return application


def server_tls(certificate: Path, key: Path, client_authority: Path) -> ssl.SSLContext:
    """TLS that demands a certificate of the cluster's authority from whoever asks."""
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH, cafile=str(client_authority))
    context.verify_mode = ssl.CERT_REQUIRED
    context.load_cert_chain(certificate, key)
    return context


async def _send(
    response: web.StreamResponse, lines: Iterator[LogLine], timestamps: bool, left: int | None
) -> int | None:
    """Send lines, at most ``left`` bytes; what is left then (None: no limit)."""
    data = b"".join(line.render(timestamps) for line in lines)
    if left is not None:
        data = data[:left]
        left -= len(data)
    if data:
        await response.write(data)
    return left


def _selected(
    lines: Iterator[LogLine], since_time: str | None, since_seconds: str | None, tail_lines: str | None
) -> Iterator[LogLine]:
    since: datetime | None = None
    if since_seconds:
        since = datetime.now(UTC) - timedelta(seconds=int(since_seconds))
    elif since_time:
        since = datetime.fromisoformat(since_time.replace("Z", "+00:00"))
    if since is not None:
        lines = (line for line in lines if line.time >= since)
    return tail(lines, int(tail_lines)) if tail_lines else lines
