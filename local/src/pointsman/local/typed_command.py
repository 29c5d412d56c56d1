"""How the ``pointsman`` command is typed on this computer, for what is printed to be typed next."""

import shlex
import sys
from pathlib import Path
from typing import Final

_NAME: Final = "pointsman"


def typed_command() -> str:
    """The path of this environment's command, relative to the working folder if it is below it.

    In a checkout that is ``.venv/bin/pointsman``: neither ``uv`` nor an activated environment is needed to type it.
    ``pointsman`` where this environment has no such command.
    """
    command = Path(sys.executable).with_name(_NAME)
    if not command.exists():
        return _NAME
    here = Path.cwd()
    return shlex.quote(str(command.relative_to(here) if command.is_relative_to(here) else command))
