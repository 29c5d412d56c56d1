"""``make bench-elastic-gpu``: what the elastic engine computes on a GPU, and how long it takes there.

On one GPU: one instance beside transformers, two to four instances over gloo, and NCCL between members that share the
GPU as if each had a computer of its own. It does not measure NCCL between two GPUs. Ten minutes.
"""

import argparse
import asyncio
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from bench.elastic.gpu.findings import Findings
from bench.elastic.gpu.together import together
from bench.elastic.instances import ROOT, Environment
from bench.rows import RESULTS

COMMAND: Final = "make bench-elastic-gpu"
PARTS: Final = ("exact", "alone", "together")
GROUPED: Final = "grouped-tied-llama3-sharded"


@dataclass(frozen=True)
class Python:
    """A Python that has torch, transformers and what instances import, also on a computer without our own."""

    python: Path

    def variables(self, base: Mapping[str, str] | None = None) -> dict[str, str]:
        """See Environment."""
        return {"PYTHONPATH": "", **(os.environ if base is None else base)}


@dataclass(frozen=True)
class Program:
    """A module to run. ``prints``: its last line is its findings, else it writes them to a file by itself."""

    name: str
    module: str
    arguments: tuple[str, ...]
    limit_s: float
    prints: bool = True


def main(argv: list[str]) -> int:
    """Run the parts; 0 unless there is nothing to run them on."""
    parser = argparse.ArgumentParser(
        prog=COMMAND, description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--device", choices=("cuda", "cpu"), default="cuda", help="cpu tries the benchmark, in small")
    parser.add_argument("--python", type=Path, help="default: that of the engine environment")
    parser.add_argument("--parts", nargs="+", choices=PARTS, default=PARTS)
    parser.add_argument("--output", type=Path, help="folder for logs and what each program finds (default: a new one)")
    options = parser.parse_args(argv)
    environment = _environment(options.python)
    output: Path = options.output or Path(tempfile.mkdtemp())
    output.mkdir(parents=True, exist_ok=True)
    if options.device == "cuda" and not _has_gpu(environment):
        print("torch finds no GPU here: nothing is measured")
        return 0
    with tempfile.TemporaryDirectory(dir="/dev/shm") as folder:
        small, large = Path(folder) / "small", Path(folder) / "large"
        if "exact" in options.parts:
            _run_all(environment, output, [Program("models", "engine.elastic.models", (str(small),), 60)])
            _run_all(environment, output, exact_programs(options.device, small))
        if "alone" in options.parts or "together" in options.parts:
            alone = (options.device, str(large))
            _run_all(environment, output, [Program("alone", "bench.elastic.gpu.alone", alone, 170, False)])
        if "together" in options.parts:
            asyncio.run(_together(environment, output, options.device, large))
    found = {each.stem: json.loads(each.read_text()) for each in sorted(output.glob("*.json"))}
    (output / "all" if options.device == "cpu" else RESULTS / "elastic_gpu.json").write_text(
        json.dumps(found, indent=1)
    )
    print(f"logs and findings are in {output}")
    return 0


def exact_programs(device: str, small: Path) -> list[Program]:
    """What shows that the tokens are right, also when instances die; at one time, because nothing of it is timed."""
    gpu = "gpu" if device == "cuda" else "gloo"
    engines = [
        ("gloo_float32", "regroupings", GROUPED, "float32", "1", gpu, "1", "2"),
        ("gloo_plain", "regroupings", "plain", "float32", "1", gpu, "3"),
        ("gloo_bfloat16", "regroupings", GROUPED, "bfloat16", "1", gpu, "1"),
        ("gloo_killed", "scaling_deaths", "plain", gpu, "killed", "1", "2"),
        ("gloo_stopped", "scaling_deaths", "plain", gpu, "stopped", "3"),
    ]
    own = [Program("exact", "bench.elastic.gpu.exact", (device, str(small)), 80, False)]
    if device == "cuda":
        engines += [
            ("hosts_float32", "regroupings", GROUPED, "float32", "1", "hosts", "1", "2"),
            ("hosts_plain", "regroupings", "plain", "float32", "1", "hosts", "3"),
            ("hosts_killed", "scaling_deaths", "plain", "hosts", "killed", "1", "4", "6"),
            ("hosts_stopped", "scaling_deaths", "plain", "hosts", "stopped", "3", "5"),
        ]
        own.append(Program("nccl", "bench.elastic.gpu.nccl", (str(small),), 80, False))
    return own + [
        Program(name, f"engine.elastic.{program}", (str(small / kind), *arguments), 80)
        for name, program, kind, *arguments in engines
    ]


async def _together(environment: Environment, output: Path, device: str, large: Path) -> None:
    of: dict[str, Any] = (
        {"lengths": (2048, 8192, 32_768), "batches": (1, 16, 64), "context": 1024, "repeats": 3}
        if device == "cuda"
        else {"lengths": (64, 256, 1024), "batches": (1, 4), "context": 64, "repeats": 2}
    )
    findings = Findings(output / "together.json")
    try:
        async with asyncio.timeout(150):
            await together(environment, large, findings, gpus=int(device == "cuda"), command=COMMAND, **of)
    except (TimeoutError, RuntimeError, ExceptionGroup, OSError) as error:
        why = repr(error)
        findings.step("ended early", lambda: why)
    for log in large.parent.glob("*.log"):
        (output / f"{log.stem}.txt").write_text(log.read_text()[-4000:])


def _run_all(environment: Environment, output: Path, programs: Sequence[Program]) -> None:
    """All at once. What each finds is in ``output``, by its name."""
    running = []
    for each in programs:
        file = output / f"{each.name}.json"
        arguments = each.arguments if each.prints else (*each.arguments, str(file))
        command = [str(environment.python), "-m", each.module, *arguments]
        with (output / f"{each.name}.txt").open("w") as log:
            process = subprocess.Popen(
                command, env=_variables(environment, len(programs)), text=True, start_new_session=True,
                stdout=subprocess.PIPE if each.prints else log, stderr=log,
            )  # fmt: skip
        running.append((each, file, process))
    began_s = time.monotonic()
    for each, file, process in running:
        try:
            said, _ = process.communicate(timeout=max(1.0, each.limit_s - (time.monotonic() - began_s)))
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, 9)
            process.communicate()
            said = None
        print(f"{each.name}: {process.returncode}, {time.monotonic() - began_s:.1f} s", flush=True)
        if each.prints and process.returncode != 0:
            log_tail = (output / f"{each.name}.txt").read_text(errors="replace").splitlines()[-12:]
            file.write_text(json.dumps({"failed": process.returncode, "log": log_tail}, indent=1))
        elif each.prints and said:
            found = json.loads(said.splitlines()[-1])
            for one in found:
                if isinstance(one, dict):
                    one.pop("logits_apart", None)  # a number for each token
            file.write_text(json.dumps(found, indent=1))


def _variables(environment: Environment, programs: int) -> dict[str, str]:
    variables = environment.variables()
    variables["OMP_NUM_THREADS"] = str(max(1, (os.cpu_count() or 1) // programs))
    variables["PYTHONPATH"] += f":{ROOT}:{ROOT / 'tests'}"
    return variables


def _has_gpu(environment: Environment) -> bool:
    asked = [str(environment.python), "-c", "import torch; raise SystemExit(not torch.cuda.is_available())"]
    return subprocess.run(asked, env=environment.variables(), check=False).returncode == 0


def _environment(python: Path | None) -> Environment:
    if python is not None:
        return Python(python)
    from pointsman.local.engine.environment import ensure_engine_environment  # not needed beside another Python

    return ensure_engine_environment()


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
