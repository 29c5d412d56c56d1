"""``python -m pointsman.workers.elastic.manager [VLLM ARGUMENTS]``: vLLM's API server over an elastic group.

Who it is and what it serves comes from the environment, as of every worker (``pointsman.workers.settings``), and how
its group works (``pointsman.workers.elastic.manager.settings``); the arguments are the user's own for vLLM.
"""

import os
import sys

from pointsman.workers.elastic.manager.settings import ManagerSettings
from pointsman.workers.settings import WorkerSettings
from pointsman.workers.vllm.api_server import Install, become_api_server
from pointsman.workers.vllm.flags import elastic_arguments


def prepare() -> Install:
    """Read the manager's settings. Raises BadSettings."""
    settings, worker = ManagerSettings.read(), WorkerSettings.read()

    def install() -> None:
        from pointsman.workers.elastic.manager.engine_core import install as install_core

        install_core(settings, worker)

    return install


if __name__ == "__main__":
    # Not in the settings alone: the middleware reads them again. A manager decodes, and has no other role to take.
    # And vLLM's CUDA build refuses to start without a GPU unless it is told that it needs none.
    os.environ |= {"POINTSMAN_PREFIX_CACHE": "false", "POINTSMAN_ROLE": "Decode", "VLLM_TARGET_DEVICE": "cpu"}
    sys.exit(become_api_server("manager", sys.argv[1:], elastic_arguments, prepare))
