"""``python -m pointsman.workers.vllm [VLLM ARGUMENTS]``: one worker, vLLM's API server with Pointsman inside.

Who the worker is and what it serves comes from the environment (``pointsman.workers.settings``); the arguments are the
user's own for vLLM.
"""

import sys

from pointsman.workers.vllm.api_server import become_api_server
from pointsman.workers.vllm.flags import vllm_arguments

if __name__ == "__main__":
    sys.exit(become_api_server("worker", sys.argv[1:], vllm_arguments))
