"""Programs beside this file, run in the engine environment, and what they print."""

import json
import subprocess
from pathlib import Path
from typing import Any

from pointsman.local.engine.environment import EngineEnvironment

TESTS = Path(__file__).parents[2]


def run(environment: EngineEnvironment, program: str, *arguments: str, limit_s: float = 240, **more: str) -> Any:
    """The JSON in the last line that a program beside this file prints; ``more``: variables of its environment."""
    command = [str(environment.python), "-m", f"engine.elastic.{program}", *arguments]
    variables = environment.variables() | more
    variables["PYTHONPATH"] += f":{TESTS}"
    said = subprocess.check_output(command, env=variables, text=True, timeout=limit_s)
    return json.loads(said.splitlines()[-1])
