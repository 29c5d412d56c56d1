"""The tokenizer and template files of the model, for gateways, which mount no model."""

import asyncio
import hashlib
import importlib
import os
from pathlib import Path

from pointsman.api.protocol.control import ModelFile
from pointsman.workers.errors import ModelUnreadable

NAMES = frozenset(
    {
        "config.json",
        "generation_config.json",
        "tokenizer.json",
        "tokenizer.model",
        "tokenizer_config.json",
        "special_tokens_map.json",
        "added_tokens.json",
        "vocab.json",
        "merges.txt",
        "chat_template.jinja",
        "chat_template.json",
    }
)


class ModelFiles:
    """The files of one model directory (or of a hub name that is in the local cache), by content."""

    def __init__(self, model: str, revision: str | None = None) -> None:
        """``revision``: which files of a hub's model; None: those of its default branch."""
        self._model = model
        self._revision = revision
        self._paths: dict[str, Path] | None = None
        self._files: tuple[ModelFile, ...] = ()
        self._reading = asyncio.Lock()

    async def files(self) -> tuple[ModelFile, ...]:
        """All files, by name; raises FileNotFoundError if the model is not on this machine."""
        async with self._reading:
            if self._paths is None:
                self._files, self._paths = await asyncio.to_thread(_read, self._model, self._revision)
        return self._files

    async def content(self, sha256: str) -> bytes | None:
        """The bytes of one file; None if there is no such file."""
        await self.files()
        path = (self._paths or {}).get(sha256)
        return None if path is None else await asyncio.to_thread(path.read_bytes)


def check_readable(model: str) -> None:
    """Raise ModelUnreadable if ``model`` is a path and not every file in that folder can be read.

    The engine's own words are about something else then: a folder that is not there is taken for a hub's name, and a
    file that may not be read is said not to exist.
    """
    folder = Path(model)
    if not folder.is_absolute():
        return
    if not os.path.isdir(folder):  # noqa: PTH112 - Path.is_dir raises where a folder above may not be entered
        raise ModelUnreadable(
            f"{model} is no folder that user {os.getuid()} finds here: is spec.model.source the path inside the volume?"
        )
    paths = sorted(folder.iterdir()) if os.access(folder, os.R_OK | os.X_OK) else ()
    for path in (folder, *paths):
        if path.is_symlink() and not path.exists():
            raise ModelUnreadable(
                f"{path} is a link to {path.readlink()}, which does not exist here: copy the files themselves, or "
                "mount the targets of the links as well"
            )
        if not os.access(path, os.R_OK):
            raise ModelUnreadable(
                f"{path} may not be read by user {os.getuid()}: run chmod -R a+rX on the folder, or choose the user or "
                "group in spec.worker.template.spec.securityContext (safetensors writes files that only their owner "
                "reads)"
            )


def digest(files: tuple[ModelFile, ...]) -> str:
    """Equal for equal names and contents."""
    return hashlib.sha256("".join(f"{file.name} {file.sha256}\n" for file in files).encode()).hexdigest()


def _read(model: str, revision: str | None) -> tuple[tuple[ModelFile, ...], dict[str, Path]]:
    found: list[ModelFile] = []
    paths: dict[str, Path] = {}
    for path in sorted(_directory(model, revision).iterdir()):
        if path.name in NAMES and path.is_file():
            content = path.read_bytes()
            sha256 = hashlib.sha256(content).hexdigest()
            found.append(ModelFile(name=path.name, sha256=sha256, bytes=len(content)))
            paths[sha256] = path
    return tuple(found), paths


def _directory(model: str, revision: str | None) -> Path:
    path = Path(model)
    if path.is_dir():
        return path
    # The engine has loaded the model, so its environment has the hub's client and its cache the files.
    hub = importlib.import_module("huggingface_hub")
    return Path(hub.snapshot_download(model, revision=revision, local_files_only=True))
