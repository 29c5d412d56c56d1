"""Programs of benchmarks that run in the engine environment: a command a line on stdin, an answer a line on stdout."""

import json
import subprocess
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final

from pointsman.local.engine.environment import EngineEnvironment

ROOT: Final = Path(__file__).parents[1]
Ask = Callable[[Mapping[str, object] | None], dict[str, Any]]


@contextmanager
def engine_process(environment: EngineEnvironment, module: str, *arguments: str, **variables: str) -> Iterator[Ask]:
    """A module with its arguments, for the time of a ``with`` block; it ends with its stdin.

    It is given a command, or None, and returns the next answer; what libraries print is skipped. Raises RuntimeError if
    the process has ended.
    """
    of_process = environment.variables() | variables
    of_process["PYTHONPATH"] += f":{ROOT}:{ROOT}/tests"
    started = [str(environment.python), "-m", module, *arguments]
    pipe = subprocess.PIPE
    with subprocess.Popen(started, env=of_process, stdin=pipe, stdout=pipe, text=True) as process:

        def ask(command: Mapping[str, object] | None) -> dict[str, Any]:
            if command is not None:
                print(json.dumps(command), file=process.stdin, flush=True)
            for line in process.stdout or ():
                if line.startswith("{"):
                    answer: dict[str, Any] = json.loads(line)
                    return answer
            raise RuntimeError(f"{module} ended with {process.wait()}")

        yield ask
