"""``python -m pointsman.workers.elastic.manager [VLLM ARGUMENTS]``: vLLM's API server over an elastic group.

Who it is and what it serves comes from the environment, as of every worker (``pointsman.workers.settings``), and which
instances it has (``pointsman.workers.elastic.manager.settings``); the arguments are the user's own for vLLM.
"""

import os
import sys
from collections.abc import Sequence

from pointsman.process.errors import SettingsError
from pointsman.process.lifetime import ExitStatus
from pointsman.process.logs import configure_logs_of_a_guest
from pointsman.workers.elastic.manager.settings import ManagerSettings
from pointsman.workers.errors import ModelUnreadableError
from pointsman.workers.model_files import check_readable
from pointsman.workers.settings import WorkerSettings
from pointsman.workers.vllm.flags import OwnedFlagError, elastic_arguments, engine_environment


def main(argv: Sequence[str]) -> int:
    """Become vLLM's API server; returns only if a setting, an argument or the model's folder is wrong (2)."""
    try:
        os.environ["POINTSMAN_PREFIX_CACHE"] = "false"  # also for the middleware, which reads the settings again
        settings, of_manager = WorkerSettings.read(), ManagerSettings.read()
        arguments = elastic_arguments(settings, argv)
        check_readable(settings.model)
    except (SettingsError, OwnedFlagError, ModelUnreadableError) as error:
        print(f"manager: {error}", file=sys.stderr)
        return ExitStatus.WRONG_SETTINGS
    configure_logs_of_a_guest(settings.log_level, settings.log_format, settings.log_fields)
    os.environ.update(engine_environment(settings, os.environ))
    sys.argv = ["vllm", *arguments]

    from vllm.entrypoints.launchers.api_server.entry import main as serve

    from pointsman.workers.elastic.manager.engine_core import install

    install(of_manager)
    serve()
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
