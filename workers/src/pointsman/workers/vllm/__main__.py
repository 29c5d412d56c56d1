"""``python -m pointsman.workers.vllm [VLLM ARGUMENTS]``: one worker, vLLM's API server with Pointsman inside.

Who the worker is and what it serves comes from the environment (``pointsman.workers.settings``); the arguments are the
user's own for vLLM.
"""

import os
import sys
from collections.abc import Sequence

from pointsman.process.errors import SettingsError
from pointsman.process.lifetime import ExitStatus
from pointsman.process.logs import configure_logs_of_a_guest
from pointsman.workers.errors import ModelUnreadableError
from pointsman.workers.model_files import check_readable
from pointsman.workers.settings import WorkerSettings
from pointsman.workers.vllm.flags import OwnedFlagError, engine_environment, vllm_arguments


def main(argv: Sequence[str]) -> int:
    """Become vLLM's API server; returns only if a setting, an argument or the model's folder is wrong (2)."""
    try:
        settings = WorkerSettings.read()
        arguments = vllm_arguments(settings, argv)
        check_readable(settings.model)
    except (SettingsError, OwnedFlagError, ModelUnreadableError) as error:
        print(f"worker: {error}", file=sys.stderr)
        return ExitStatus.WRONG_SETTINGS
    configure_logs_of_a_guest(settings.log_level, settings.log_format, settings.log_fields)
    os.environ.update(engine_environment(settings, os.environ))
    sys.argv = ["vllm", *arguments]

    from vllm.entrypoints.launchers.api_server.entry import main as serve

    serve()
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
