"""Probes and hooks: asking a container over HTTP, TCP or by a program."""

import asyncio
import contextlib
import os
import signal
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Final

import aiohttp

from pointsman.local.node.core.probe_count import ProbeCount
from pointsman.local.node.core.types import Object

_OUTPUT_CHARACTERS: Final = 300


class Prober:
    """Asks one container. ``env`` and ``cwd`` are the container's, for programs run in it."""

    def __init__(
        self, session: aiohttp.ClientSession, container: Object, pod_ip: str, env: Mapping[str, str], cwd: Path
    ) -> None:
        self._session = session
        self._container = container
        self._pod_ip = pod_ip
        self._env = env
        self._cwd = cwd

    async def ask(self, action: Object, timeout_s: float) -> str | None:
        """Do what a probe or hook says: None if it went well, else what went wrong, as a kubelet words it."""
        try:
            async with asyncio.timeout(timeout_s):
                if "httpGet" in action:
                    return await self._http(action["httpGet"])
                if "tcpSocket" in action:
                    return await self._tcp(action["tcpSocket"])
                if "exec" in action:
                    return await self._exec(action["exec"]["command"])
                if "sleep" in action:
                    await asyncio.sleep(action["sleep"]["seconds"])
                    return None
        except TimeoutError:
            return f"no answer within {timeout_s:g} s"
        return f"{', '.join(action)} is not supported by the process node"

    async def watch(self, probe: Object, changed: Callable[[bool, str], None], initial: bool | None = None) -> None:
        """Ask for ever, as the probe says; ``changed(verdict, words)`` when a threshold turns the verdict."""
        count = ProbeCount(probe.get("successThreshold", 1), probe.get("failureThreshold", 3), verdict=initial)
        await asyncio.sleep(probe.get("initialDelaySeconds", 0))
        while True:
            words = await self.ask(probe, probe.get("timeoutSeconds", 1))
            before, count = count, count.after(words is None)
            if count.verdict != before.verdict and count.verdict is not None:
                changed(count.verdict, words or "")
            await asyncio.sleep(probe.get("periodSeconds", 10))

    async def _http(self, get: Object) -> str | None:
        scheme = get.get("scheme", "HTTP").lower()
        host = get.get("host") or self._pod_ip
        path = get.get("path", "/")
        url = f"{scheme}://{host}:{self._port(get['port'])}{path if path.startswith('/') else '/' + path}"
        headers = {header["name"]: header["value"] for header in get.get("httpHeaders") or ()}
        headers.setdefault("User-Agent", "kube-probe/pointsman-local")
        try:
            async with self._session.get(url, headers=headers, allow_redirects=False, ssl=False) as response:
                if 200 <= response.status < 400:
                    return None
                text = (await response.text(errors="replace"))[:_OUTPUT_CHARACTERS].strip()
                return f"HTTP probe failed with statuscode: {response.status}" + (f": {text}" if text else "")
        except (aiohttp.ClientError, OSError) as error:
            return f"Get {url!r}: {error}"

    async def _tcp(self, socket: Object) -> str | None:
        host, port = socket.get("host") or self._pod_ip, self._port(socket["port"])
        try:
            _, writer = await asyncio.open_connection(host, port)
        except OSError as error:
            return f"dial tcp {host}:{port}: {error.strerror or error}"
        writer.close()
        return None

    async def _exec(self, command: Sequence[str]) -> str | None:
        try:
            process = await asyncio.create_subprocess_exec(
                *command,
                env=dict(self._env),
                cwd=self._cwd,
                stdin=asyncio.subprocess.DEVNULL,
                stdout=asyncio.subprocess.PIPE,
                stderr=asyncio.subprocess.STDOUT,
                process_group=0,
            )
        except OSError as error:
            return f"cannot run {command[0]!r}: {error.strerror}"
        try:
            output, _ = await process.communicate()
        except asyncio.CancelledError:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            await process.wait()
            raise
        if process.returncode == 0:
            return None
        return (
            f"command ended with {process.returncode}: {output.decode(errors='replace')[:_OUTPUT_CHARACTERS].strip()}"
        )

    def _port(self, port: int | str) -> int:
        """A number, or the number of the container's port of that name."""
        if isinstance(port, int):
            return port
        named = {p.get("name"): p["containerPort"] for p in self._container.get("ports") or ()}
        return int(named[port]) if port in named else int(port)
