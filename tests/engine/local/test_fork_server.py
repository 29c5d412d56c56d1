"""The fork server starts processes that behave as if started by themselves."""

import os
import select
import signal
import socket
import subprocess
from collections.abc import Sequence
from pathlib import Path

import psutil
import pytest

from fixtures.engines import Engines
from fixtures.fork_servers import fork_server, prefix_of, wait_until_ready
from pointsman.local.engine.fork_client import ForkServerFailed, start
from pointsman.local.node.cpu_limits import GROUP_VARIABLE

FORKS_AND_WAITS = """
import os, signal
if os.fork() == 0:
    signal.pause()
print(os.getpid(), flush=True)
signal.pause()
"""


@pytest.fixture
def script(tmp_path: Path) -> Path:
    return tmp_path / "script.py"


def client(engines: Engines, argv: Sequence[str], folder: Path) -> "subprocess.Popen[str]":
    """The client program that stands for a process."""
    command = [*prefix_of(engines.environment, engines.socket), *argv]
    variables = engines.environment.own_variables
    return subprocess.Popen(command, cwd=folder, env=variables, stdout=subprocess.PIPE, text=True)


def test_a_process_gets_arguments_environment_folder_and_streams(engines: Engines, script: Path) -> None:
    script.write_text(
        "import os, sys; print(sys.argv[1:], os.environ, os.getcwd()); print(sys.stdin.read()); sys.exit(7)"
    )
    inputs, outputs = os.pipe(), os.pipe()
    os.write(inputs[1], b"what it reads")
    os.close(inputs[1])
    process = start(
        engines.socket, ["python", str(script), "a", "b c"], {"X": "1"}, script.parent, inputs[0], outputs[1]
    )
    os.close(inputs[0])
    os.close(outputs[1])
    assert process.wait(120) == 7
    with os.fdopen(outputs[0]) as output:
        first, second = output.read().splitlines()
    assert first == f"['a', 'b c'] environ({{'X': '1'}}) {script.parent}"
    assert second == "what it reads"


def test_a_process_leads_its_group_within_the_servers_session(engines: Engines, script: Path, tmp_path: Path) -> None:
    script.write_text("import os; print(os.getpgid(0) == os.getpid(), os.getsid(0))")
    with (tmp_path / "log").open("w") as log:
        process = start(engines.socket, ["python", str(script)], {}, tmp_path, stdout=log.fileno())
        assert process.wait(120) == 0
    assert (tmp_path / "log").read_text().split() == ["True", str(os.getsid(0))]


def test_a_process_joins_the_control_group_of_its_container_and_runs_where_it_cannot(
    engines: Engines, script: Path, tmp_path: Path
) -> None:
    """A folder in the place of the kernel's: only whether, and before what else, its number is written there."""
    group = tmp_path / "group"
    group.mkdir()
    script.write_text("import os, pathlib; print(os.getpid(), pathlib.Path(os.environ['SEEN']).read_text())")
    seen = group / "cgroup.procs"
    variables = {GROUP_VARIABLE: str(group), "SEEN": str(seen)}
    for gone in (False, True):
        if gone:
            variables[GROUP_VARIABLE] = str(tmp_path / "gone")
        with (tmp_path / "log").open("w") as log:
            process = start(
                engines.socket, ["python", str(script)], variables, script.parent, stdout=log.fileno(),
                stderr=log.fileno(),
            )  # fmt: skip
        assert process.wait(120) == 0
        number, joined = (tmp_path / "log").read_text().split()
        assert (number == joined) is not gone


def test_an_uncaught_exception_is_exit_code_1_with_a_traceback(engines: Engines, script: Path, tmp_path: Path) -> None:
    script.write_text("raise ValueError('as it was')")
    with (tmp_path / "log").open("w") as log:
        process = start(engines.socket, ["python", str(script)], {}, tmp_path, stderr=log.fileno())
        assert process.wait(120) == 1
    assert "ValueError: as it was" in (tmp_path / "log").read_text()


def test_what_is_no_python_program_is_refused_with_a_sentence(engines: Engines, tmp_path: Path) -> None:
    with (tmp_path / "log").open("w") as log:
        process = start(engines.socket, ["python", "-c", "pass"], {}, tmp_path, stderr=log.fileno())
        assert process.wait(120) == 1
    assert "neither 'python -m MODULE" in (tmp_path / "log").read_text()


def test_a_request_that_makes_no_sense_harms_nobody_else(engines: Engines, script: Path) -> None:
    script.write_text("raise SystemExit(3)")
    for nonsense in (b"no json\n", b"[]\n", b'{"argv": 1}\n'):
        with socket.socket(socket.AF_UNIX) as connection:
            connection.connect(str(engines.socket))
            socket.send_fds(connection, [nonsense], [0, 1, 2])
            assert b"error" in connection.recv(4096)
    assert start(engines.socket, ["python", str(script)], {}, script.parent).wait(120) == 3


def test_temporary_files_go_where_its_own_environment_says(engines: Engines, script: Path, tmp_path: Path) -> None:
    script.write_text("import tempfile, sys; sys.exit(tempfile.gettempdir())")
    with (tmp_path / "log").open("w") as log:
        process = start(
            engines.socket, ["python", str(script)], {"TMPDIR": str(tmp_path)}, tmp_path, stderr=log.fileno()
        )
        assert process.wait(120) == 1
    assert (tmp_path / "log").read_text().strip() == str(tmp_path)


def test_the_client_program_waits_for_a_server_that_is_not_there_yet(engines: Engines, script: Path) -> None:
    script.write_text("print('here')")
    later = script.with_name("later.sock")
    command = [*prefix_of(engines.environment, later), "python", str(script)]
    with subprocess.Popen(command, env=engines.environment.own_variables, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        assert not select.select([process.stdout], [], [], 1.0)[0]
        later.symlink_to(engines.socket)
        assert process.communicate(timeout=120)[0] == "here\n"
    assert process.returncode == 0


def test_a_waiting_client_program_can_be_stopped(engines: Engines, tmp_path: Path) -> None:
    command = [*prefix_of(engines.environment, tmp_path / "none.sock"), "python", "-m", "json.tool"]
    with subprocess.Popen(command, env=engines.environment.own_variables, stderr=subprocess.PIPE) as process:
        assert process.stderr is not None
        assert not select.select([process.stderr], [], [], 1.0)[0]
        process.terminate()
        assert process.wait(120) in (128 + signal.SIGTERM, -signal.SIGTERM)


def test_without_a_server_the_client_says_so(tmp_path: Path) -> None:
    with pytest.raises(OSError, match="No such file"):
        start(tmp_path / "none.sock", ["python", "-m", "json.tool"], {}, tmp_path)


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_the_client_program_passes_signals_on_and_ends_alike(engines: Engines, script: Path, number: int) -> None:
    script.write_text(FORKS_AND_WAITS)
    with client(engines, ["python", str(script)], script.parent) as process:
        assert process.stdout is not None
        pid = int(process.stdout.readline())
        process.send_signal(number)
        code = process.wait(120)
    # A Python program ends on SIGINT by KeyboardInterrupt, on SIGTERM by the signal itself.
    assert code == (-signal.SIGTERM if number == signal.SIGTERM else 1)
    assert not psutil.pid_exists(pid)


def test_a_killed_client_takes_the_process_and_its_children_along(engines: Engines, script: Path) -> None:
    script.write_text(FORKS_AND_WAITS)
    with client(engines, ["python", str(script)], script.parent) as process:
        assert process.stdout is not None
        family = psutil.Process(int(process.stdout.readline()))
        everyone = [family, *family.children()]
        assert len(everyone) == 2
        process.kill()
        _, alive = psutil.wait_procs(everyone, timeout=120)
    assert not alive


def test_a_killed_server_takes_everything_along(engines: Engines, script: Path, tmp_path: Path) -> None:
    script.write_text(FORKS_AND_WAITS)
    path = tmp_path / "s"
    with fork_server(engines.environment, path, tmp_path / "log") as server:
        wait_until_ready(server)
        readable, writable = os.pipe()
        process = start(path, ["python", str(script)], {}, tmp_path, stdout=writable)
        os.close(writable)
        with os.fdopen(readable) as output:
            family = psutil.Process(int(output.readline()))
            everyone = [family, *family.children()]
        assert len(everyone) == 2
        server.kill()
        _, alive = psutil.wait_procs(everyone, timeout=120)
        assert not alive
        with pytest.raises(ForkServerFailed, match="has ended"):
            process.wait(120)
