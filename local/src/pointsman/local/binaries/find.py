"""Finds a program: ``KUBEBUILDER_ASSETS``, else PATH, else the cache, else builds or fetches it."""

import os
import shutil
import subprocess
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Final

from pointsman.local.binaries.build import build
from pointsman.local.binaries.catalog import TOOLS, NpmProgram, Tool
from pointsman.local.binaries.fetch import fetch
from pointsman.local.binaries.versions import near_enough, parse_version
from pointsman.local.cache import cache_directory
from pointsman.local.errors import NoBinary

Report = Callable[[str], None]
ASSETS_VARIABLE: Final = "KUBEBUILDER_ASSETS"
VERSION_TIMEOUT_S: Final = 30.0


@dataclass(frozen=True)
class Found:
    """Where a program is; ``passed_over`` says which candidates were not taken, and why, in words."""

    path: Path | None
    passed_over: tuple[str, ...] = ()


def binaries_directory() -> Path:
    """The part of the cache that holds programs."""
    return cache_directory() / "binaries"


def find(name: str) -> Found:
    """Look for a program without building it.

    A program from ``KUBEBUILDER_ASSETS`` or PATH counts only if its version is the pinned one, give or take one minor.

    Raises NoBinary for a name that Pointsman does not know.
    """
    tool = tool_named(name)
    passed_over: list[str] = []
    for candidate in _candidates(name):
        wrong = _wrong_version(tool, candidate)
        if wrong is None:
            return Found(candidate, tuple(passed_over))
        passed_over.append(wrong)
    built = binaries_directory() / tool.directory / name
    return Found(built if built.exists() else None, tuple(passed_over))


def ensure(name: str, report: Report = print) -> Path:
    """The program's path; built or fetched now if this computer has none, which takes from seconds to some minutes.

    ``report`` gets one sentence at a time meanwhile. Several processes may ask at once: one works, the others wait.

    Raises NoBinary if it cannot be had (no Go, no network, disk full), with the last words of what failed.
    """
    found = find(name)
    if found.path is not None:
        return found.path
    for reason in found.passed_over:
        report(reason)
    tool = tool_named(name)
    if isinstance(tool, NpmProgram):
        return fetch(tool, binaries_directory(), report)
    return build(tool, binaries_directory(), report)


def ensure_all(names: Iterable[str], report: Report = print) -> Mapping[str, Path]:
    """``ensure`` for several; says first what is to be built and about how long that takes."""
    wanted = list(names)
    missing = [tool_named(name) for name in wanted if find(name).path is None]
    if len(missing) > 1:
        seconds = sum(tool.estimate_s for tool in missing)
        listed = ", ".join(tool.name for tool in missing)
        report(f"to build or fetch, once for this computer: {listed}; about {max(1, round(seconds / 60))} min")
    return {name: ensure(name, report) for name in wanted}


def tool_named(name: str) -> Tool:
    """The catalogue's entry. Raises NoBinary for an unknown name, naming the known ones."""
    if name not in TOOLS:
        raise NoBinary(f"there is no program '{name}' here (known: {', '.join(TOOLS)})")
    return TOOLS[name]


def _candidates(name: str) -> list[Path]:
    assets = os.environ.get(ASSETS_VARIABLE)
    paths = [Path(assets) / name] if assets else []
    on_path = shutil.which(name)
    if on_path:
        paths.append(Path(on_path))
    return [path for path in paths if os.access(path, os.X_OK)]


def _wrong_version(tool: Tool, path: Path) -> str | None:
    """Why this candidate is not taken, as a sentence; None if it is good."""
    output = _version_output(path, tool.version_command)
    found, pinned = parse_version(output), parse_version(tool.release)
    if found is None or pinned is None:
        return f"{path} is ignored: it does not print its version"
    if near_enough(found, pinned):
        return None
    return f"{path} is ignored: its version is {found[0]}.{found[1]}, {tool.release} or a neighbour is required"


@cache
def _version_output(path: Path, arguments: tuple[str, ...]) -> str:
    try:
        done = subprocess.run(
            [str(path), *arguments], capture_output=True, text=True, timeout=VERSION_TIMEOUT_S, check=False
        )
    except (OSError, subprocess.TimeoutExpired):
        return ""
    return done.stdout + done.stderr if done.returncode == 0 else ""
