"""``python -m pointsman.workers.elastic.manager [VLLM ARGUMENTS]``: vLLM's API server over an elastic group.

Who it is and what it serves comes from the environment, as of every worker (``pointsman.workers.settings``), and which
instances it has (``pointsman.workers.elastic.manager.settings``); the arguments are the user's own for vLLM.
"""

import os
import sys

from pointsman.workers.elastic.manager.settings import ManagerSettings
from pointsman.workers.vllm.api_server import Install, become_api_server
from pointsman.workers.vllm.flags import elastic_arguments


def prepare() -> Install:
    """Read the manager's settings. Raises SettingsError."""
    settings = ManagerSettings.read()

    def install() -> None:
        from pointsman.workers.elastic.manager.engine_core import install as install_core

        install_core(settings)

    return install


if __name__ == "__main__":
    os.environ["POINTSMAN_PREFIX_CACHE"] = "false"  # not in the settings alone: the middleware reads them again
    sys.exit(become_api_server("manager", sys.argv[1:], elastic_arguments, prepare))
