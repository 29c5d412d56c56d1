"""The command line of every command: a mistake is one line, not the whole usage with the mistake at its end."""

import argparse
from pathlib import Path
from typing import Any, NoReturn

from pointsman.api.credentials import mask_credentials


class CommandParser(argparse.ArgumentParser):
    """An ``ArgumentParser`` that keeps line breaks of description and epilog; parsers of subcommands are such too."""

    def __init__(self, **settings: Any) -> None:
        settings.setdefault("formatter_class", argparse.RawDescriptionHelpFormatter)
        super().__init__(**settings)

    def error(self, message: str) -> NoReturn:
        """Say what is wrong and where to read more, and exit with status 2."""
        self.exit(2, mask_credentials(f"{self.prog}: {message}; see '{self.prog} --help'\n"))


def output_file(text: str) -> Path:
    """The type of an argument that names a file to write: refused before minutes of work, not after them."""
    path = Path(text)
    try:
        is_folder, has_folder = path.is_dir(), path.parent.is_dir()
    except OSError as error:
        raise argparse.ArgumentTypeError(f"{text} cannot be written: {error.strerror}") from None
    if not text:
        raise argparse.ArgumentTypeError("the name is empty; name a file")
    if is_folder:
        raise argparse.ArgumentTypeError(f"{text} is a folder; name a file")
    if not has_folder:
        raise argparse.ArgumentTypeError(f"there is no folder {path.parent}; create it, or name another file")
    return path
