"""Starts engine processes in a second or two: imports vLLM once, then forks.

Importing torch, transformers and vLLM costs 5 s of a core and 400 MB in each process of an engine; a forked process
has them already, and shares the memory. ``fork_client`` has the protocol. Run it with the engine environment's python::

    python -m pointsman.local.engine.fork_server --socket /run/fork.sock

It prints one line to stdout when it listens. It ends when its standard input closes (its owner is gone) or by SIGTERM,
and every process it started ends with it.

Fork safety: this process has one thread (OMP_NUM_THREADS=1 keeps torch from making more), so a fork copies no lock that
another thread holds. What a child forks in turn is vLLM's own affair; vLLM for CPU asks for ``spawn``, which would
import everything again, so its choice is put back to ``fork`` in the children of this server only.
"""

import argparse
import atexit
import contextlib
import ctypes
import gc
import importlib
import json
import os
import runpy
import selectors
import signal
import socket
import sys
import tempfile
import threading
import time
import traceback
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final, NoReturn

# The modules an engine process loads anyway. Nothing of Pointsman: its code is imported after the fork, so that an edit
# counts at the next start.
PRELOAD: Final = (
    "vllm.entrypoints.launchers.api_server.entry",
    "vllm.entrypoints.launchers.cli_args",
    "vllm.v1.engine.async_llm",
    "vllm.v1.engine.core",
    "vllm.v1.worker.cpu_worker",
    "vllm.v1.worker.cpu_model_runner",
    "vllm.v1.attention.backends.cpu_attn",
    "vllm.model_executor.models.llama",
    "vllm.model_executor.model_loader.default_loader",
    "vllm.distributed.kv_transfer.kv_connector.v1.nixl",
    "nixl._api",
    "uvicorn",
    "uvloop",
    "aiohttp",
    "nats",
    "pydantic_settings",
    "prometheus_client",
    "xxhash",
)
_PR_SET_PDEATHSIG: Final = 1
_MAX_REQUEST_BYTES: Final = 4 * 1024 * 1024
_LIBC: Final = ctypes.CDLL(None, use_errno=True)


@dataclass(eq=False)
class _Connection:
    """One client, and the process it asked for."""

    socket: socket.socket
    received: bytes = b""
    descriptors: list[int] = field(default_factory=list)
    pid: int | None = None
    pidfd: int | None = None


class ForkServer:
    """Accepts start requests on a listening Unix socket until ``owner`` (a descriptor) closes; None: for good."""

    def __init__(self, listener: socket.socket, owner: int | None) -> None:
        self._listener = listener
        self._owner = owner
        self._selector = selectors.DefaultSelector()
        self._connections: set[_Connection] = set()

    def serve(self) -> None:
        """Serve until the owner goes; then end every process."""
        self._listener.setblocking(False)
        self._selector.register(self._listener, selectors.EVENT_READ, self._accept)
        if self._owner is not None:
            self._selector.register(self._owner, selectors.EVENT_READ, None)
        try:
            while True:
                for key, _ in self._selector.select():
                    if key.data is None:
                        if not os.read(key.fd, 4096):
                            return
                    else:
                        key.data()
        finally:
            for connection in list(self._connections):
                self._drop(connection)

    def _accept(self) -> None:
        with contextlib.suppress(BlockingIOError):
            accepted, _ = self._listener.accept()
            connection = _Connection(accepted)
            self._connections.add(connection)
            self._selector.register(accepted, selectors.EVENT_READ, lambda: self._read(connection))

    def _read(self, connection: _Connection) -> None:
        if connection not in self._connections:
            return
        try:
            data, descriptors, _, _ = socket.recv_fds(connection.socket, 65536, 3)
        except ConnectionError:
            data, descriptors = b"", []
        connection.descriptors += descriptors
        connection.received += data
        if not data or len(connection.received) > _MAX_REQUEST_BYTES:
            self._drop(connection)
            return
        while b"\n" in connection.received and connection in self._connections:
            line, connection.received = connection.received.split(b"\n", 1)
            try:
                message = json.loads(line)
                if connection.pid is None:
                    self._start(connection, message)
                else:
                    self._signal(connection, int(message["signal"]))
            except (ValueError, KeyError, TypeError, OSError) as error:  # of one client, or no memory: the others go on
                self._answer(connection, error=f"{type(error).__name__}: {error}")
                self._drop(connection)

    def _start(self, connection: _Connection, request: dict[str, Any]) -> None:
        if len(connection.descriptors) != 3:
            self._answer(connection, error="a start request carries the descriptors of stdin, stdout and stderr")
            self._drop(connection)
            return
        argv, env, cwd = [*request["argv"]], {**request["env"]}, str(request["cwd"])
        server = os.getpid()
        pid = os.fork()
        if pid == 0:
            self._become(argv, env, cwd, connection.descriptors, server)
        for descriptor in connection.descriptors:
            os.close(descriptor)
        connection.descriptors = []
        connection.pid = pid
        connection.pidfd = os.pidfd_open(pid)
        self._selector.register(connection.pidfd, selectors.EVENT_READ, lambda: self._ended(connection))
        self._answer(connection, pid=pid)

    def _become(
        self, argv: Sequence[str], env: Mapping[str, str], cwd: str, descriptors: list[int], server: int
    ) -> NoReturn:
        """In the child: leave the server behind and run what was asked for."""
        code = 1
        try:
            _die_with_parent(server)
            os.setpgid(0, 0)  # whatever it starts can be ended with it
            self._selector.close()
            self._listener.close()
            for other in self._connections:
                other.socket.close()
                if other.pidfd is not None:
                    os.close(other.pidfd)
            for target, descriptor in enumerate(descriptors):
                os.dup2(descriptor, target)
                os.close(descriptor)
            for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
                signal.signal(number, signal.SIG_DFL)
            signal.signal(signal.SIGINT, signal.default_int_handler)
            os.environ.clear()
            os.environ.update(env)
            tempfile.tempdir = None  # found out while importing, from the server's environment
            os.chdir(cwd)
            _join_cpu_group()
            _run(argv)
            code = 0
        except SystemExit as stop:
            code = _exit_code(stop)
        except BaseException:  # noqa: BLE001 - the top of a process: its traceback goes to its own stderr
            traceback.print_exc()
        finally:
            _finish(code)

    def _signal(self, connection: _Connection, number: int) -> None:
        if connection.pid is None:
            return
        with contextlib.suppress(ProcessLookupError):
            if number == signal.SIGKILL:
                os.killpg(connection.pid, number)
            else:
                os.kill(connection.pid, number)  # not reaped yet, so the number is still this process's

    def _ended(self, connection: _Connection) -> None:
        """The process ended: end what it left behind (an engine core outlives a killed API server) and report."""
        if connection.pid is None or connection not in self._connections:
            return
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(connection.pid, signal.SIGKILL)
        _, status = os.waitpid(connection.pid, 0)
        connection.pid = None
        self._answer(connection, returncode=os.waitstatus_to_exitcode(status))
        self._drop(connection)

    def _answer(self, connection: _Connection, **message: object) -> None:
        with contextlib.suppress(BrokenPipeError, ConnectionResetError):
            connection.socket.sendall(json.dumps(message).encode() + b"\n")

    def _drop(self, connection: _Connection) -> None:
        self._connections.discard(connection)
        self._selector.unregister(connection.socket)
        connection.socket.close()
        for descriptor in connection.descriptors:
            os.close(descriptor)
        if connection.pidfd is not None:
            self._selector.unregister(connection.pidfd)
            os.close(connection.pidfd)
        if connection.pid is not None:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(connection.pid, signal.SIGKILL)
            with contextlib.suppress(ProcessLookupError):
                os.kill(connection.pid, signal.SIGKILL)  # it may not have made its own group yet
            os.waitpid(connection.pid, 0)


def _die_with_parent(parent: int) -> None:
    _LIBC.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != parent:  # it went before the line above
        os._exit(1)


def _join_cpu_group() -> None:
    """The container's (``pointsman.local.node.cpu_limits``): the server it was forked from is not in it."""
    group = os.environ.get("POINTSMAN_CPU_GROUP")
    if group:
        with contextlib.suppress(OSError):  # an Event of the pod says so
            Path(group, "cgroup.procs").write_text(str(os.getpid()))


def _forks_die_together() -> None:
    """What this process forks dies with it: a server killed with SIGKILL must not leave an engine core behind.

    The kernel ties the signal to the forking *thread*, so only forks of the main thread are tied.
    """
    state = {"main": False}

    def before() -> None:
        state["main"] = threading.current_thread() is threading.main_thread()

    def in_child() -> None:
        if state["main"]:
            _LIBC.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)

    os.register_at_fork(before=before, after_in_child=in_child)


def _keep_forking() -> None:
    """Put back what vLLM for CPU sets for the processes it starts (``spawn``, LD_PRELOAD): a fork needs neither."""
    from vllm.platforms.cpu import CpuPlatform

    original = CpuPlatform.check_and_update_config.__func__

    def check_and_update_config(cls: type, vllm_config: object) -> None:
        preload = os.environ.get("LD_PRELOAD")
        original(cls, vllm_config)
        os.environ["VLLM_WORKER_MULTIPROC_METHOD"] = "fork"
        if preload is None:
            os.environ.pop("LD_PRELOAD", None)
        else:
            os.environ["LD_PRELOAD"] = preload

    CpuPlatform.check_and_update_config = classmethod(check_and_update_config)


def _inspect_models_here() -> None:
    """vLLM asks a fresh process about a model's class, lest CUDA be initialised; here that would import all again."""
    from vllm.model_executor.models import registry

    registry._run_in_subprocess = lambda inspect: inspect()


def _run(argv: Sequence[str]) -> None:
    """Run ``[python, "-m", module, …]`` or ``[python, script, …]`` as ``__main__`` of this process."""
    for entry in reversed(os.environ.get("PYTHONPATH", "").split(os.pathsep)):
        if entry and entry not in sys.path:
            sys.path.insert(0, entry)
    importlib.invalidate_caches()
    sys.stdout = os.fdopen(os.dup(1), "w", buffering=1)
    sys.stderr = os.fdopen(os.dup(2), "w", buffering=1)
    arguments = list(argv[1:])
    while arguments and arguments[0] in {"-u", "-P", "-B"}:
        del arguments[0]
    if arguments[:1] == ["-m"] and len(arguments) > 1:
        sys.argv = arguments[1:]
        runpy.run_module(arguments[1], run_name="__main__", alter_sys=True)
    elif arguments and not arguments[0].startswith("-"):
        sys.argv = arguments
        runpy.run_path(arguments[0], run_name="__main__")
    else:
        raise SystemExit(f"fork server: '{' '.join(argv)}' is neither 'python -m MODULE …' nor 'python SCRIPT …'")


def _exit_code(stop: SystemExit) -> int:
    if stop.code is None:
        return 0
    if isinstance(stop.code, int):
        return stop.code & 0xFF
    print(stop.code, file=sys.stderr)
    return 1


def _finish(code: int) -> NoReturn:
    """End a forked child as an ordinary interpreter ends: threads joined, exit handlers run, streams flushed."""
    try:
        threading._shutdown()  # type: ignore[attr-defined]  # what the interpreter calls; there is no public name for it
        atexit._run_exitfuncs()
        sys.stdout.flush()
        sys.stderr.flush()
    finally:
        os._exit(code)


def preload(also: Sequence[str] = ()) -> None:
    """Import what every engine process needs, about 6 s, and the modules in ``also``."""
    for module in (*PRELOAD, *also):
        importlib.import_module(module)


def main(argv: Sequence[str] | None = None) -> None:
    """Listen, preload, say so, serve."""
    parser = argparse.ArgumentParser(prog="python -m pointsman.local.engine.fork_server", description=__doc__)
    parser.add_argument("--socket", type=Path, required=True, help="path of the Unix socket to listen on")
    parser.add_argument("--also", action="append", default=[], metavar="MODULE", help="import this module as well")
    parser.add_argument("--stay", action="store_true", help="run until SIGTERM, even if standard input closes")
    options = parser.parse_args(argv)
    if os.environ.get("OMP_NUM_THREADS") != "1":
        os.environ["OMP_NUM_THREADS"] = "1"  # torch reads it when it is imported: this must come first
    started = time.monotonic()
    preload(options.also)
    _keep_forking()
    _inspect_models_here()
    _forks_die_together()
    threads = len(list(Path("/proc/self/task").iterdir()))
    if threads != 1:
        raise SystemExit(f"fork server: the imports started threads ({threads} in all): forking is not safe")
    gc.collect()
    gc.freeze()  # collections in the children leave the shared pages alone

    options.socket.unlink(missing_ok=True)
    listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    listener.bind(str(options.socket))
    listener.listen(64)
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))
    signal.signal(signal.SIGINT, lambda *_: sys.exit(0))
    print(f"fork server: ready after {time.monotonic() - started:.1f} s", flush=True)
    try:
        ForkServer(listener, None if options.stay else sys.stdin.fileno()).serve()
    finally:
        options.socket.unlink(missing_ok=True)


if __name__ == "__main__":
    main()
