"""The ranks of a group, for the benchmark of input broadcasts; runs in the engine environment. Argument: how many.

The first process is the entry rank. It takes jobs from stdin, a JSON line each, and answers each with a line; the other
ranks are its children, and a pipe brings each of them jobs and stamps, as an engine does. The main thread of a process
is the scheduler of its rank: it submits requests, or follows their stamps, and takes inputs.
"""

import io
import json
import multiprocessing
import sys
import time
from collections import deque
from multiprocessing.connection import Connection
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, Final

import numpy as np
from PIL import Image

from pointsman.workers.multimodal.broadcast.entry_rank import EntryRank
from pointsman.workers.multimodal.broadcast.errors import PendingMemoryFull
from pointsman.workers.multimodal.broadcast.inputs import RequestInputs
from pointsman.workers.multimodal.broadcast.modes import Mode
from pointsman.workers.multimodal.broadcast.other_rank import OtherRank
from pointsman.workers.multimodal.broadcast.settings import InputBroadcastSettings

MAX_PENDING_BYTES: Final = 2 << 30
Image.MAX_IMAGE_PIXELS = None
Job = dict[str, Any]


def picture(size_bytes: int) -> bytes:
    """A JPEG of about ``size_bytes``: smooth areas, and the noise of a camera, at quality 90."""
    side = int((size_bytes / 0.55) ** 0.5)
    rng = np.random.default_rng(size_bytes)
    rows, columns = np.mgrid[0:side, 0:side].astype(np.float32) / side
    smooth = np.stack([np.sin(7 * rows) * 90 + 128, np.cos(9 * columns) * 90 + 128, rows * columns * 255], axis=-1)
    noisy = smooth + rng.normal(0, 9, smooth.shape).astype(np.float32)
    target = io.BytesIO()
    Image.fromarray(noisy.clip(0, 255).astype(np.uint8)).save(target, "JPEG", quality=90)
    return target.getvalue()


def decode_picture(raw: object) -> object:
    """The pixels of a request's JPEG: uint8 [height, width, 3]."""
    assert isinstance(raw, dict)
    return {"pixels": np.asarray(Image.open(io.BytesIO(raw["jpeg"])).convert("RGB"))}


def use(inputs: object) -> None:
    """What a scheduler does with inputs at least: look at them."""
    assert isinstance(inputs, dict)
    assert inputs["pixels"][0, 0].shape == (3,)


def settings(job: Job) -> InputBroadcastSettings:
    return InputBroadcastSettings(
        input_broadcast_mode=Mode(job["mode"]), input_broadcast_max_pending_bytes=MAX_PENDING_BYTES
    )


def serve(
    entry: EntryRank, pipes: list[Connection], raw: object, requests: int, concurrency: int, step_s: float = 0.0
) -> float:
    """Keep ``concurrency`` requests under way until all have their inputs; for how long that blocked this thread.

    ``step_s``: it has other work in steps of this length, without CPU time, as an engine that waits for its device.
    Without, it waits for the oldest request when there is nothing to submit.
    """
    under_way: deque[RequestInputs] = deque()
    submitted, blocked_s = 0, 0.0
    while submitted < requests or under_way:
        began_s = time.perf_counter()
        while submitted < requests and len(under_way) < concurrency:
            try:
                under_way.append(entry.submit(f"r{submitted}", raw))
            except PendingMemoryFull:
                break
            for pipe in pipes:
                pipe.send(under_way[-1].stamp)
            submitted += 1
        waits = step_s == 0 or under_way[0].stamp.mode is Mode.DELAYED
        for number, inputs in enumerate([*under_way]):
            if inputs.ended or (waits and number == 0):
                use(inputs.get_inputs())
                under_way.remove(inputs)
        blocked_s += time.perf_counter() - began_s
        if step_s:
            time.sleep(step_s)
    return blocked_s


def lead(job: Job, pipes: list[Connection], path: Path) -> dict[str, float]:
    """One job on the entry rank: requests a second, CPU seconds of all ranks and blocked seconds a request."""
    for pipe in pipes:
        pipe.send(job)
    entry = EntryRank.assemble(path, len(pipes) + 1, decode_picture, settings(job))
    raw, requests = {"jpeg": picture(job["size_bytes"])}, job["requests"]
    serve(entry, pipes, raw, job["warm_up"], job["concurrency"])
    cpu_s, began_s = time.process_time(), time.monotonic()
    blocked_s = serve(entry, pipes, raw, requests, job["concurrency"], job["step_s"])
    ends = [(time.monotonic(), time.process_time() - cpu_s), *(pipe.recv() for pipe in pipes)]
    entry.close()
    seconds = max(ended_s for ended_s, _ in ends) - began_s
    return {
        "qps": requests / seconds,
        "cpu_s": sum(cpu_s for _, cpu_s in ends) / requests,
        "blocked_s": blocked_s / requests,
    }


def follow(rank: int, ranks: int, pipe: Connection, path: Path) -> None:
    """All jobs on another rank; it answers each with its end and its CPU seconds."""
    while True:
        job: Job = pipe.recv()
        own = OtherRank.join(path, rank, ranks, decode_picture, settings(job))
        for number in range(job["warm_up"] + job["requests"]):
            if number == job["warm_up"]:
                cpu_s = time.process_time()
            use(own.expect(pipe.recv()).get_inputs())
        pipe.send((time.monotonic(), time.process_time() - cpu_s))
        own.wait_closed()
        own.close()


def main() -> None:
    ranks = int(sys.argv[1])
    with TemporaryDirectory() as folder:
        path = Path(folder) / "group.sock"
        pipes = []
        for rank in range(1, ranks):
            here, there = multiprocessing.Pipe()
            multiprocessing.Process(target=follow, args=(rank, ranks, there, path), daemon=True).start()
            pipes.append(here)
        for line in sys.stdin:
            print(json.dumps(lead(json.loads(line), pipes, path)), flush=True)


if __name__ == "__main__":
    main()
