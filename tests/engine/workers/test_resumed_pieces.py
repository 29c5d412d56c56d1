"""A stream that breaks anywhere and is resumed says what an unbroken one says, stop strings and characters included."""

import json
import subprocess
from pathlib import Path

from pointsman.local.engine.environment import EngineEnvironment

TESTS = Path(__file__).parents[2]


def test_wherever_a_stream_breaks_its_text_and_its_end_are_those_of_an_unbroken_one(
    engine_environment: EngineEnvironment,
) -> None:
    variables = engine_environment.variables()
    variables["PYTHONPATH"] += f":{TESTS}"
    command = [str(engine_environment.python), "-m", "engine.workers.resumptions", "1", "2"]
    found = json.loads(subprocess.check_output(command, env=variables, text=True, timeout=240).splitlines()[-1])
    assert found["stopped"] > 0.2 * found["answers"]
    assert not found["wrong"], found["wrong"]
    assert found["two"] == [["a ", ["stop"]]] * 2, "nothing follows a stop string"
