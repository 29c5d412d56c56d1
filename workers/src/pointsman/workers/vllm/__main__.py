"""``python -m pointsman.workers.vllm [VLLM ARGUMENTS]``: one worker, vLLM's API server with Pointsman inside.

Who the worker is and what it serves comes from the environment (``pointsman.workers.settings``); the arguments are the
user's own for vLLM.
"""

import os
import sys
from collections.abc import Sequence

from pydantic import ValidationError

from pointsman.workers import logs
from pointsman.workers.settings import WorkerSettings
from pointsman.workers.vllm.flags import OwnedFlagError, engine_environment, vllm_arguments


def main(argv: Sequence[str]) -> int:
    """Become vLLM's API server; returns only if a setting or an argument is wrong (2)."""
    try:
        settings = WorkerSettings()
        arguments = vllm_arguments(settings, argv)
    except ValidationError as error:
        for problem in error.errors(include_url=False, include_input=False):
            name = "_".join(str(part) for part in problem["loc"]).upper()
            print(f"worker: {name or 'settings'}: {problem['msg']}", file=sys.stderr)
        return 2
    except OwnedFlagError as error:
        print(f"worker: {error}", file=sys.stderr)
        return 2
    logs.configure(settings.worker)
    os.environ.update(engine_environment(settings, os.environ))
    sys.argv = ["vllm", *arguments]

    from vllm.entrypoints.launchers.api_server.entry import main as serve

    serve()
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
