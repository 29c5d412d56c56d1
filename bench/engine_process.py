"""Programs of benchmarks that run in the engine environment: a command a line on stdin, an answer a line on stdout."""

import json
import subprocess
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final, Self

from pointsman.local.engine.environment import EngineEnvironment

END_S: Final = 60.0
ROOT: Final = Path(__file__).parents[1]


class EngineProcess:
    """A module with its arguments, for the time of a ``with`` block; it ends with its stdin."""

    def __init__(self, environment: EngineEnvironment, module: str, *arguments: str, **variables: str) -> None:
        self._module = module
        of_process = environment.variables() | variables
        of_process["PYTHONPATH"] += f":{ROOT}:{ROOT / 'tests'}"
        command = [str(environment.python), "-m", module, *arguments]
        self._process = subprocess.Popen(
            command, env=of_process, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )

    def send(self, command: Mapping[str, object]) -> None:
        """Have a command carried out."""
        print(json.dumps(command), file=self._process.stdin, flush=True)

    def answer(self) -> dict[str, Any]:
        """The next answer; what libraries print is skipped. Raises RuntimeError if the process has ended."""
        for line in self._process.stdout or ():
            if line.startswith("{"):
                answer: dict[str, Any] = json.loads(line)
                return answer
        raise RuntimeError(f"{self._module} ended with {self._process.wait()}")

    def ask(self, command: Mapping[str, object]) -> dict[str, Any]:
        """Send a command and wait for its answer."""
        self.send(command)
        return self.answer()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        assert self._process.stdin is not None
        self._process.stdin.close()
        try:
            self._process.wait(END_S)
        except subprocess.TimeoutExpired:
            self._process.kill()
            raise
