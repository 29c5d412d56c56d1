"""The image store: what the process node runs for an image name.

A YAML file, read again when it changes::

    images:
      pointsman/gateway:dev:
        path: [/work/.venv/bin]              # comes first on PATH
        entrypoint: [python, -m, pointsman.gateway]
        env: {PYTHONUNBUFFERED: "1"}
      pointsman/worker:dev:
        path: [/cache/engines/3f/bin]
        prefix: [python, -m, pointsman.local.engine.fork_client, --socket, /run/fork.sock, --]
        startSeconds: 45                     # as image pull and weight loading take on a real cluster

As in a real image, ``entrypoint`` and ``cmd`` are what runs where the pod says nothing, and ``env`` comes before the
pod's own. ``prefix`` stands before whatever runs. A name without tag stands for every tag of it.
"""

from collections.abc import Mapping
from pathlib import Path

import yaml
from pydantic import BaseModel, ConfigDict, Field, ValidationError
from pydantic.alias_generators import to_camel

from pointsman.local.errors import ImageStoreFailed


class Image(BaseModel):
    """How one image runs on this computer."""

    model_config = ConfigDict(frozen=True, extra="forbid", alias_generator=to_camel, populate_by_name=True)

    path: tuple[Path, ...] = Field(default=(), description="Directories that come first on PATH.")
    entrypoint: tuple[str, ...] = Field(default=(), description="Runs where the pod gives no command.")
    cmd: tuple[str, ...] = Field(default=(), description="Its arguments where the pod gives none.")
    env: Mapping[str, str] = Field(default={}, description="Variables, before the pod's own.")
    prefix: tuple[str, ...] = Field(default=(), description="Comes before the command of the container.")
    working_dir: Path | None = Field(default=None, description="Where it runs; default: a directory of the pod's own.")
    start_seconds: float = Field(default=0, ge=0, description="Simulated start-up time before the program is run.")


class _Store(BaseModel):
    model_config = ConfigDict(extra="forbid")

    images: Mapping[str, Image]


class ImageStore:
    """The images of one file."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._read_ns: int | None = None
        self._images: Mapping[str, Image] = {}

    def get(self, name: str) -> Image | None:
        """The image of that name (or of that name without its tag or digest); None if there is none.

        Raises ImageStoreFailed when the file is wrong.
        """
        images = self._current()
        return images.get(name) or images.get(without_tag(name))

    def names(self) -> list[str]:
        """All names in the store."""
        return sorted(self._current())

    def _current(self) -> Mapping[str, Image]:
        try:
            changed_ns = self._path.stat().st_mtime_ns
            if changed_ns != self._read_ns:
                self._images = _Store.model_validate(yaml.safe_load(self._path.read_text())).images
                self._read_ns = changed_ns
        except (OSError, yaml.YAMLError, ValidationError) as error:
            raise ImageStoreFailed(f"image store {self._path}: {error}") from error
        return self._images


def write_images(path: Path, images: Mapping[str, Image]) -> None:
    """Write a store's file, all of it at once, so that a node never reads half of it."""
    content = {
        "images": {
            name: image.model_dump(mode="json", by_alias=True, exclude_defaults=True) for name, image in images.items()
        }
    }
    partial = path.with_name(f".{path.name}")
    partial.write_text(yaml.safe_dump(content, sort_keys=False))
    partial.replace(path)


def without_tag(name: str) -> str:
    """``registry:5000/team/image:1.0`` without its tag (or digest): ``registry:5000/team/image``."""
    name = name.partition("@")[0]
    head, slash, last = name.rpartition("/")
    return head + slash + last.partition(":")[0]
