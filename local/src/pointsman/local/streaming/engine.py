"""A local vLLM server (CPU) whose batch sizes and prefill admission are those that the benchmark was asked for."""

import asyncio
import os
import subprocess
import sys
import tempfile
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import IO

import aiohttp

from pointsman.local import die_with_parent
from pointsman.local.addresses import free_port
from pointsman.local.engine.environment import ensure_engine_environment
from pointsman.local.engine.models import ModelSize, ensure_model
from pointsman.local.engine.plain_server import ENTRY
from pointsman.local.errors import EngineEnvironmentFailed

SERVED_NAME = "bench"
MAX_MODEL_LEN = 4096
START_S = 180.0
POLL_S = 0.2
STOP_S = 15.0
SCHEDULER = "pointsman.local.streaming.admission_scheduler.AdmissionScheduler"


@dataclass(frozen=True, slots=True)
class EngineKnobs:
    """``max_batch_size``: sequences that run at a time; the two limits are of one step's admission, None: unlimited."""

    size: ModelSize = ModelSize.SMALL
    max_batch_size: int = 8
    prefill_max_batch_size: int | None = None
    prefill_max_tokens: int | None = None

    @property
    def arguments(self) -> list[str]:
        """vLLM's flags. A step takes what was admitted as a whole: prompts are not split into chunks.

        Without a limit of tokens a step may take all prompts that fit into the batch.
        """
        return [
            *("--max-num-seqs", str(self.max_batch_size)),
            *("--max-num-batched-tokens", str(self.max_batch_size * MAX_MODEL_LEN)),
            "--no-enable-chunked-prefill",
            "--no-enable-prefix-caching",
            "--no-async-scheduling",
            *("--scheduler-cls", SCHEDULER),
        ]

    @property
    def variables(self) -> dict[str, str]:
        """What the scheduler in the engine's process reads; see ``admission_scheduler``."""
        requests = self.prefill_max_batch_size or self.max_batch_size
        tokens = {} if self.prefill_max_tokens is None else {
            "POINTSMAN_BENCH_PREFILL_TOKENS": str(self.prefill_max_tokens)
        }  # fmt: skip
        return {"POINTSMAN_BENCH_PREFILL_REQUESTS": str(requests)} | tokens


@asynccontextmanager
async def local_engine(knobs: EngineKnobs, report: Callable[[str], None]) -> AsyncIterator[str]:
    """The base URL (ends with /v1) of a server on 127.0.0.1 that lives as long as the context.

    The engine environment and the model are made first where this computer lacks them. Raises EngineEnvironmentFailed,
    with the end of the server's log, when it does not get ready.
    """
    environment = await asyncio.to_thread(ensure_engine_environment, report=report)
    model = await asyncio.to_thread(ensure_model, environment, knobs.size, report=report)
    report("starting a local vLLM server (CPU)")
    port = free_port()
    variables = environment.variables() | knobs.variables | {
        "VLLM_ENABLE_V1_MULTIPROCESSING": "0",
        "VLLM_CPU_OMP_THREADS_BIND": "nobind",
        "OMP_NUM_THREADS": "1",
        "HF_HUB_OFFLINE": "1",
        "VLLM_NO_USAGE_STATS": "1",
    }  # fmt: skip
    command = [
        sys.executable, "-I", "-S", str(die_with_parent.__file__), str(os.getpid()),
        str(environment.python), "-m", ENTRY, "--model", str(model), "--served-model-name", SERVED_NAME,
        "--host", "127.0.0.1", "--port", str(port), "--dtype", "float32", "--enforce-eager",
        "--max-model-len", str(MAX_MODEL_LEN), "--kv-cache-memory-bytes", "1G", *knobs.arguments,
    ]  # fmt: skip
    with tempfile.TemporaryDirectory(prefix="pointsman-bench-") as folder:
        log = Path(folder) / "engine.log"
        with log.open("wb") as output:
            process = _start(command, variables, output)
        try:
            await _ready(process, port, log)
            yield f"http://127.0.0.1:{port}/v1"
        finally:
            process.terminate()
            try:
                await asyncio.to_thread(process.wait, STOP_S)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()


def _start(command: list[str], variables: dict[str, str], output: IO[bytes]) -> "subprocess.Popen[bytes]":
    return subprocess.Popen(command, env=variables, stdout=output, stderr=subprocess.STDOUT)


async def _ready(process: "subprocess.Popen[bytes]", port: int, log: Path) -> None:
    deadline_s = asyncio.get_running_loop().time() + START_S
    async with aiohttp.ClientSession(timeout=aiohttp.ClientTimeout(total=5)) as session:
        while True:
            ended = process.poll()
            if ended is not None or asyncio.get_running_loop().time() > deadline_s:
                what = "did not get ready in time" if ended is None else f"ended with {ended} before it was ready"
                tail = "\n".join(log.read_text(errors="replace").splitlines()[-20:])
                raise EngineEnvironmentFailed(f"the local vLLM server {what}; the end of its log:\n{tail}")
            try:
                async with session.get(f"http://127.0.0.1:{port}/health") as response:
                    if response.status == 200:
                        return
            except (aiohttp.ClientError, TimeoutError, OSError):
                pass
            await asyncio.sleep(POLL_S)
