"""What a ``__main__`` calls."""

import asyncio
import sys
from collections.abc import Callable, Coroutine
from typing import Any, NoReturn, TypeVar

from pointsman.api.credentials import mask_credentials
from pointsman.process.errors import BadSettings, ProcessError
from pointsman.process.lifetime import ExitStatus
from pointsman.process.logs import configure_logs
from pointsman.process.settings import ProcessSettings

S = TypeVar("S", bound=ProcessSettings)


def run_process(
    settings_type: type[S], run: Callable[[S], Coroutine[Any, Any, int]], *expected: type[Exception]
) -> NoReturn:
    """Read the settings, log as they say, and exit with the status that ``run`` returns.

    Wrong settings, an address that is taken, and the errors ``expected`` of the surroundings end the process with one
    sentence; any other error is a bug, and says where.
    """
    name = settings_type.model_config.get("cli_prog_name") or settings_type.__name__
    try:
        settings = settings_type.read(sys.argv[1:])
    except BadSettings as error:
        print(f"{name}: {error}", file=sys.stderr)
        sys.exit(ExitStatus.WRONG_SETTINGS)
    configure_logs(settings.log_level, settings.log_format, settings.log_fields)
    told: tuple[type[Exception], ...] = (ProcessError, *expected)
    try:
        status = asyncio.run(run(settings))
    except told as error:
        print(mask_credentials(f"{name}: {error}"), file=sys.stderr)
        sys.exit(ExitStatus.FAILED)
    sys.exit(status)
