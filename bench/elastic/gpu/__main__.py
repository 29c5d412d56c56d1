"""``make bench-elastic-gpu``: what the elastic engine computes on a GPU, and how long it takes there.

On one GPU: one instance beside transformers, two to four instances over gloo, and NCCL between members that share the
GPU as if each had a computer of its own. It does not measure NCCL between two GPUs. Ten minutes.
"""

import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from bench.rows import RESULTS, data, keep, kept, options

COMMAND: Final = "make bench-elastic-gpu"
PARTS: Final = ("exact", "alone", "together")
ROOT: Final = RESULTS.parents[1]

Program = Sequence[str]
"""A module of ours and its arguments. The last line that it prints is what it found, as JSON."""


def main(argv: Sequence[str]) -> int:
    """Run the parts; 0 unless there is nothing to run them on."""
    asked = options(
        COMMAND, __doc__, argv,
        device=("cuda", "or cpu, which tries the benchmark in small"), parts=(PARTS, "that run"),
        python=("", "instead of that of the engine environment"),
        output=("", "folder for logs and what each program finds, instead of a new one"),
    )  # fmt: skip
    output = Path(asked.output or tempfile.mkdtemp())
    output.mkdir(parents=True, exist_ok=True)
    run = Runner(*environment(asked.python), output)
    if asked.device == "cuda" and not run.ends_well(
        "-c", "import torch; raise SystemExit(not torch.cuda.is_available())"
    ):
        print("torch finds no GPU here: nothing is measured")
        return 0
    with tempfile.TemporaryDirectory(dir="/dev/shm") as folder:
        small, large = f"{folder}/small", f"{folder}/large"
        if "exact" in asked.parts and run.ends_well("-m", "engine.elastic.models", small):
            run.at_once(80, exact_programs(asked.device, Path(small)))
        for part in ("alone", "together"):
            if part in asked.parts or "together" in asked.parts:  # which needs the model that alone makes
                run.at_once(170, {part: (f"bench.elastic.gpu.{part}", asked.device, large)})
    if asked.device == "cuda":
        found = {each.stem: kept(each) for each in sorted(output.glob("*.json"))}
        keep(RESULTS / "elastic_gpu.json", kept(RESULTS / "elastic_gpu.json") | found)
    print(f"logs and findings are in {output}")
    return 0


def exact_programs(device: str, small: Path) -> dict[str, Program]:
    """What shows that the tokens are right, also when instances die; at one time, because nothing of it is timed."""
    programs = data("gpu-programs")
    words = {"device": device, "models": small, "transport": "gpu" if device == "cuda" else "gloo"}
    asked: dict[str, str] = programs["anywhere"] | (programs["cuda"] if device == "cuda" else {})
    return {name: [word.format(**words) for word in program.split()] for name, program in asked.items()}


def environment(python: str) -> tuple[str, dict[str, str]]:
    """A Python that has torch, transformers and what instances import, and the variables of its processes."""
    if python:
        variables = {**os.environ, "PYTHONPATH": ""}
    else:
        from pointsman.local.engine.environment import ensure_engine_environment  # not needed beside another Python

        engine = ensure_engine_environment()
        python, variables = str(engine.python), engine.variables()
    return python, variables | {"PYTHONPATH": f"{variables['PYTHONPATH']}:{ROOT}:{ROOT / 'tests'}"}


@dataclass(frozen=True)
class Runner:
    """Runs programs with ``python``. What each found is in ``output`` by its name, and its log beside it."""

    python: str
    variables: Mapping[str, str]
    output: Path

    def ends_well(self, *arguments: str) -> bool:
        """Whether python with these exits with 0."""
        return subprocess.run([self.python, *arguments], env=self.variables, check=False).returncode == 0

    def at_once(self, limit_s: float, programs: Mapping[str, Program]) -> None:
        """All of them, for so long at most."""
        variables = {**self.variables, "OMP_NUM_THREADS": str(max(1, (os.cpu_count() or 1) // len(programs)))}
        running = {}
        for name, program in programs.items():
            with (self.output / f"{name}.out").open("w") as out, (self.output / f"{name}.log").open("w") as log:
                running[name] = subprocess.Popen(
                    [self.python, "-m", *program], env=variables, stdout=out, stderr=log, start_new_session=True
                )
        began_s = time.monotonic()
        for name, process in running.items():
            with suppress(subprocess.TimeoutExpired):
                process.wait(max(1.0, began_s + limit_s - time.monotonic()))
            with suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)  # also members that it has left
            print(f"{name}: {process.wait()}, {time.monotonic() - began_s:.1f} s", flush=True)
            keep(self.output / f"{name}.json", self._found(name, process.returncode))

    def _found(self, name: str, code: int) -> Any:
        lines = (self.output / f"{name}.out").read_text().splitlines()
        if not lines:
            log = (self.output / f"{name}.log").read_text(errors="replace")
            return {"failed": code, "log": log.splitlines()[-12:]}
        found = json.loads(lines[-1])
        for one in found if isinstance(found, list) else ():
            one.pop("logits_apart", None)  # a number for each token
        return found


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
