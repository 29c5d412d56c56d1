"""The folder of a model, before an engine is started on it."""

import os
import tempfile
from pathlib import Path

import pytest

from pointsman.workers.errors import ModelUnreadable
from pointsman.workers.model_files import check_readable

OTHER_USER = 65532 if os.getuid() == 0 else os.getuid()


def test_a_readable_folder_and_the_name_of_a_hub_are_fine(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text("{}")
    check_readable(str(tmp_path))
    check_readable("meta-llama/Llama-3.1-8B-Instruct")


def test_a_folder_that_is_not_in_the_volume_is_named(tmp_path: Path) -> None:
    with pytest.raises(ModelUnreadable, match="absent is no folder that user"):
        check_readable(str(tmp_path / "absent"))


def test_a_link_that_leads_out_of_the_volume_is_named_with_its_target(tmp_path: Path) -> None:
    (tmp_path / "model.safetensors").symlink_to("../../blobs/0123")
    with pytest.raises(ModelUnreadable, match=r"model\.safetensors is a link to \.\./\.\./blobs/0123"):
        check_readable(str(tmp_path))


@pytest.mark.parametrize("unreadable", ["model.safetensors", "."])
def test_what_only_its_owner_reads_is_named(unreadable: str) -> None:
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        folder.chmod(0o755)
        (folder / "model.safetensors").touch(mode=0o644)
        (folder / unreadable).chmod(0o000)
        said = said_to_another_user(folder)
        folder.chmod(0o755)
    assert said.startswith(f"{folder / unreadable} may not be read by user {OTHER_USER}")


def said_to_another_user(folder: Path) -> str:
    """What the check says in a process of another user where that is possible: root may read everything."""
    reader, writer = os.pipe()
    child = os.fork()
    if child == 0:
        try:
            if os.getuid() == 0:
                os.setuid(OTHER_USER)
            check_readable(str(folder))
        except ModelUnreadable as error:
            os.write(writer, str(error).encode())
        finally:
            os._exit(0)
    os.close(writer)
    with os.fdopen(reader, "rb") as pipe:
        said = pipe.read().decode()
    os.waitpid(child, 0)
    return said
