"""One rank of a group, for the benchmark of input broadcasts; runs in the engine environment.

It takes jobs from stdin, a JSON line each, and answers each with a line. All ranks of a group take the same jobs. The
main thread is the scheduler of its rank: it submits requests, or follows their stamps, and takes inputs.
"""

import ctypes
import io
import json
import os
import resource
import socket
import sys
import time
from collections import deque
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final

import msgspec
import numpy as np
from PIL import Image

from pointsman.workers.multimodal.broadcast.entry_rank import EntryRank
from pointsman.workers.multimodal.broadcast.errors import PendingMemoryFull
from pointsman.workers.multimodal.broadcast.inputs import RequestInputs
from pointsman.workers.multimodal.broadcast.modes import Mode, Stamp
from pointsman.workers.multimodal.broadcast.other_rank import OtherRank
from pointsman.workers.multimodal.broadcast.settings import InputBroadcastSettings

SEED_SYNC: Final = "seed"
"""The seed's way: materialise and ``torch.distributed.broadcast_object_list`` (gloo) on the scheduler's thread."""
MAX_PENDING_BYTES: Final = 2 << 30
Image.MAX_IMAGE_PIXELS = None


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


def as_it_is(raw: object) -> object:
    return raw


def use(inputs: object) -> None:
    """What a scheduler does with inputs at least: look at them."""
    assert isinstance(inputs, dict)
    assert inputs["pixels"][0, 0].shape == (3,)


class Stamps:
    """The engine's own way of bringing requests to ranks: a socket between the entry rank and each other rank."""

    def __init__(self, folder: Path, job: dict[str, Any], rank: int) -> None:
        self._peers: list[socket.socket] = []
        for other in [rank] if rank else range(1, job["ranks"]):
            path = str(folder / f"stamps{job['number']}-{other}.sock")
            sock = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
            if rank == 0:
                while True:
                    try:
                        sock.connect(path)
                        break
                    except OSError:
                        time.sleep(0.01)  # the other rank has not started to listen
                self._peers.append(sock)
            else:
                sock.bind(path)
                sock.listen(1)
                self._peers.append(sock.accept()[0])

    def send(self, stamp: Stamp) -> None:
        packet = msgspec.msgpack.encode(stamp)
        for peer in self._peers:
            peer.send(packet)

    def receive(self) -> Stamp:
        return msgspec.msgpack.decode(self._peers[0].recv(4096), type=Stamp)


@contextmanager
def group(job: dict[str, Any], rank: int, folder: Path, materialise: Any = decode_picture) -> Iterator[Any]:
    """This rank in a group of its own for one job."""
    settings = InputBroadcastSettings(
        input_broadcast_mode=Mode(job["mode"]), input_broadcast_max_pending_bytes=MAX_PENDING_BYTES
    )
    path = folder / f"{job['number']}.sock"
    if rank == 0:
        entry = EntryRank.assemble(path, job["ranks"], materialise, settings)
        yield entry
        entry.close()
    else:
        other = OtherRank.join(path, rank, job["ranks"], materialise, settings)
        yield other
        other.wait_closed()
        other.close()


def cpu_seconds() -> float:
    used = resource.getrusage(resource.RUSAGE_SELF)
    return used.ru_utime + used.ru_stime


class Scheduler:
    """The entry rank's: keeps ``concurrency`` requests under way until ``requests`` have their inputs.

    ``step_s``: it has other work in steps of this length, without CPU time, as an engine that waits for its device.
    Without, it waits for the oldest request when there is nothing to submit.
    """

    def __init__(self, entry: EntryRank, stamps: Stamps, raw: object, concurrency: int, step_s: float) -> None:
        self._entry = entry
        self._stamps = stamps
        self._raw = raw
        self._concurrency = concurrency
        self._step_s = step_s
        self.blocked_s: list[float] = []
        self.latencies_s: list[float] = []

    def serve(self, requests: int) -> None:
        under_way: deque[tuple[RequestInputs, float]] = deque()
        submitted = 0
        while submitted < requests or under_way:
            began_s = time.perf_counter()
            while submitted < requests and len(under_way) < self._concurrency:
                submitted_s = time.perf_counter()
                try:
                    inputs = self._entry.submit(f"r{submitted}", self._raw)
                except PendingMemoryFull:
                    break
                self._stamps.send(inputs.stamp)
                under_way.append((inputs, submitted_s))
                submitted += 1
            waits = self._step_s == 0 or under_way[0][0].stamp.mode is Mode.DELAYED
            taken = False
            for each in list(under_way):
                inputs, submitted_s = each
                if inputs.ended or (waits and not taken):
                    use(inputs.get_inputs())
                    self.latencies_s.append(time.perf_counter() - submitted_s)
                    under_way.remove(each)
                    taken = True
            self.blocked_s.append(time.perf_counter() - began_s)
            if self._step_s:
                time.sleep(self._step_s)


def measure(job: dict[str, Any], rank: int, folder: Path) -> dict[str, Any]:
    """Serve the requests of one cell after a warm-up. Every rank answers with its times."""
    stamps = Stamps(folder, job, rank)
    warm_up, requests = job["warm_up"], job["requests"]
    with group(job, rank, folder) as own:
        if rank:
            for number in range(warm_up + requests):
                if number == warm_up:
                    cpu_s = cpu_seconds()
                use(own.expect(stamps.receive()).get_inputs())
            ended_s = time.monotonic()
            answer: dict[str, Any] = {"ended_s": ended_s, "cpu_s": cpu_seconds() - cpu_s}
        else:
            raw = {"jpeg": picture(job["size_bytes"])}
            Scheduler(own, stamps, raw, job["concurrency"], 0.0).serve(warm_up)
            scheduler = Scheduler(own, stamps, raw, job["concurrency"], job["step_s"])
            cpu_s, began_s = cpu_seconds(), time.monotonic()
            scheduler.serve(requests)
            answer = {
                "began_s": began_s,
                "ended_s": time.monotonic(),
                "cpu_s": cpu_seconds() - cpu_s,
                "blocked_s": sum(scheduler.blocked_s),
                "latencies_s": scheduler.latencies_s,
            }
    return answer


def measure_seed(job: dict[str, Any], rank: int, folder: Path) -> dict[str, Any]:
    """The seed's synchronous way: every request blocks the scheduler of every rank."""
    import torch.distributed as dist

    dist.init_process_group(
        "gloo", init_method=f"file://{folder}/gloo{job['number']}", rank=rank, world_size=job["ranks"]
    )
    raw = {"jpeg": picture(job["size_bytes"])}
    warm_up, requests = job["warm_up"], job["requests"]
    began_s = blocked_s = cpu_s = 0.0
    for number in range(warm_up + requests):
        if number == warm_up:
            dist.barrier()
            cpu_s, began_s, blocked_s = cpu_seconds(), time.monotonic(), 0.0
        submitted_s = time.perf_counter()
        objects = [decode_picture(raw) if rank == 0 else None]
        dist.broadcast_object_list(objects, src=0)
        use(objects[0])
        blocked_s += time.perf_counter() - submitted_s
        if job["step_s"] and number % job["concurrency"] == 0:
            time.sleep(job["step_s"])
    answer = {"began_s": began_s, "ended_s": time.monotonic(), "cpu_s": cpu_seconds() - cpu_s, "blocked_s": blocked_s}
    dist.destroy_process_group()
    return answer


def measure_memory(job: dict[str, Any], rank: int, folder: Path) -> dict[str, Any]:
    """Bytes a second from the entry rank's arrays into what the other rank reads, beside memcpy of the same arrays."""
    stamps = Stamps(folder, job, rank)
    size, items = job["size_bytes"], job["requests"]
    with group(job, rank, folder, as_it_is) as own:
        if rank:
            for _ in range(2 * items):
                use(own.expect(stamps.receive()).get_inputs())
            answer: dict[str, Any] = {}
        else:
            arrays = [np.random.default_rng(n).integers(0, 255, (size // 3, 1, 3), dtype=np.uint8) for n in range(8)]
            targets = [np.zeros_like(each) for each in arrays]

            def send(count: int) -> float:
                began_s = time.perf_counter()
                under_way: deque[RequestInputs] = deque()
                for number in range(count):
                    while len(under_way) >= 4:
                        under_way.popleft().get_inputs()
                    under_way.append(own.submit(f"r{number}", {"pixels": arrays[number % 8]}))
                    stamps.send(under_way[-1].stamp)
                while own.pending_bytes:
                    time.sleep(0.0001)  # until the other rank has had all of it
                return count * arrays[0].nbytes / (time.perf_counter() - began_s)

            def memcpy(count: int) -> float:
                began_s = time.perf_counter()
                for number in range(count):
                    source, target = arrays[number % 8], targets[number % 8]
                    ctypes.memmove(target.ctypes.data, source.ctypes.data, source.nbytes)
                return count * arrays[0].nbytes / (time.perf_counter() - began_s)

            send(items), memcpy(items)
            answer = {"bytes_per_s": send(items), "memcpy_bytes_per_s": memcpy(items)}
    return answer


def main() -> None:
    rank, folder = int(sys.argv[1]), Path(sys.argv[2])
    os.environ["OMP_NUM_THREADS"] = "1"
    for line in sys.stdin:
        job = json.loads(line)
        kinds = {"cell": measure, SEED_SYNC: measure_seed, "memory": measure_memory}
        print(json.dumps(kinds[job["kind"]](job, rank, folder)), flush=True)


if __name__ == "__main__":
    main()
