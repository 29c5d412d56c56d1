"""One rank of a group that broadcasts inputs, for the tests of broadcasts.

Every rank derives the same requests from the seed. The entry rank writes the stamps to the pipes of the other ranks, as
an engine brings requests to its ranks. Each rank prints one line for every request that ended on it.
"""

import json
import os
import sys
import time
import zlib
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from random import Random

import msgspec

from pointsman.workers.multimodal.broadcast.entry_rank import EntryRank
from pointsman.workers.multimodal.broadcast.errors import BroadcastError, NotMaterialised, PendingMemoryFull
from pointsman.workers.multimodal.broadcast.inputs import RequestInputs
from pointsman.workers.multimodal.broadcast.modes import Mode, Stamp
from pointsman.workers.multimodal.broadcast.other_rank import OtherRank
from pointsman.workers.multimodal.broadcast.settings import InputBroadcastSettings

MAX_PENDING_BYTES = 4 << 20
SIZES = (10, 40_000, 300_000)  # in the message, and in shared memory


@dataclass(frozen=True)
class Request:
    """One request. ``failing_rank``: it cannot materialise the inputs; only looked at by the ranks that do."""

    request_id: str
    size_bytes: int
    failing_rank: int | None
    aborted: bool


@dataclass(frozen=True)
class Run:
    """What all ranks of a group know."""

    seed: int
    mode: Mode
    world_size: int
    requests: int

    def all_requests(self) -> list[Request]:
        rng = Random(self.seed)

        def one(number: int) -> Request:
            failing = rng.randrange(self.world_size) if rng.random() < 0.15 else None
            return Request(f"r{number}", rng.choice(SIZES), failing, rng.random() < 0.15)

        return [one(number) for number in range(self.requests)]


def data(request: Request) -> bytes:
    """Other bytes for each request."""
    return Random(request.request_id).randbytes(request.size_bytes)


class Materialiser:
    """Checks the bytes of a request, or fails for it, on one rank."""

    def __init__(self, rank: int, requests: list[Request]) -> None:
        self.rank = rank
        self.requests = {each.request_id: each for each in requests}

    def __call__(self, raw: object) -> object:
        assert isinstance(raw, dict)
        request = self.requests[raw["id"]]
        if request.failing_rank == self.rank:
            raise ValueError(f"no picture for {request.request_id}")
        return {"sum": zlib.crc32(raw["data"]), "data": bytearray(raw["data"])}


def say(**what: object) -> None:
    os.write(sys.stdout.fileno(), json.dumps(what).encode() + b"\n")  # at once: two threads print


def report_end(inputs: RequestInputs, request: Request) -> None:
    """Wait for the end, and print it. The outcome is the same text on every rank, or the test fails."""
    try:
        value = inputs.get_inputs()
    except BroadcastError as error:
        if not isinstance(error, NotMaterialised) or error.args[0].count(f"no picture for {request.request_id}"):
            say(request=request.request_id, outcome=type(error).__name__, message=str(error))
            return
        raise
    assert isinstance(value, dict)
    right = value["data"] == data(request) and value["sum"] == zlib.crc32(value["data"])
    say(request=request.request_id, outcome="delivered" if right else "wrong bytes", message="")


def settings(mode: Mode, stall_s: float) -> InputBroadcastSettings:
    return InputBroadcastSettings(
        input_broadcast_mode=mode,
        input_broadcast_max_pending_bytes=MAX_PENDING_BYTES,
        input_broadcast_stall_seconds=stall_s,
        input_broadcast_join_seconds=60,
    )


def entry(run: Run, path: Path, pipes: list[int], stall_s: float) -> None:
    """Submit everything; a second thread waits for the ends, as an engine's step would."""
    requests = run.all_requests()
    rng = Random(f"{run.seed} entry")
    group = EntryRank.assemble(path, run.world_size, Materialiser(0, requests), settings(run.mode, stall_s))
    with ThreadPoolExecutor(1) as waiting:
        ends = []
        for request in requests:
            raw = {"id": request.request_id, "data": data(request)}
            try:
                while True:
                    try:
                        inputs = group.submit(request.request_id, raw)
                        break
                    except PendingMemoryFull:
                        time.sleep(0.001)  # the request waits in the engine's queue
            except BroadcastError as error:
                say(refused=str(error))
                break
            assert group.pending_bytes < 4 * MAX_PENDING_BYTES
            stamp = msgspec.json.encode(inputs.stamp) + b"\n"
            for pipe in pipes:
                try:
                    os.write(pipe, stamp)
                except BrokenPipeError:
                    continue  # it was killed
            ends.append(waiting.submit(report_end, inputs, request))
            if request.aborted:
                time.sleep(rng.uniform(0, 0.003))
                inputs.cancel()
        for pipe in pipes:
            os.close(pipe)
        for each in ends:
            each.result()
    group.close()
    say(closed=group.pending_bytes)


def other(run: Run, path: Path, rank: int, pipe: int, stall_s: float) -> None:
    """Follow the stamps, now and then late."""
    requests = {each.request_id: each for each in run.all_requests()}
    rng = Random(f"{run.seed} {rank}")
    time.sleep(rng.uniform(0, 0.1))
    materialiser = Materialiser(rank, list(requests.values()))
    group = OtherRank.join(path, rank, run.world_size, materialiser, settings(run.mode, stall_s))
    with ThreadPoolExecutor(1) as waiting, os.fdopen(pipe, "rb") as stamps:
        ends = []
        for line in stamps:
            stamp = msgspec.json.decode(line, type=Stamp)
            if rng.random() < 0.1:
                time.sleep(rng.uniform(0, 0.02))
            inputs = group.expect(stamp)
            request = requests[stamp.request_id]
            ends.append(waiting.submit(report_end, inputs, request))
            if request.aborted:
                inputs.cancel()
        for each in ends:
            each.result()
    group.wait_closed()
    group.close()
    say(closed=0)


def main() -> None:
    rank = int(sys.argv[1])
    given = json.loads(sys.argv[2])
    run = Run(given["seed"], Mode(given["mode"]), given["world_size"], given["requests"])
    path = Path(sys.argv[3])
    pipes = [int(each) for each in sys.argv[4].split(",") if each]
    stall_s = float(sys.argv[5])
    if rank == 0:
        entry(run, path, pipes, stall_s)
    else:
        other(run, path, rank, pipes[0], stall_s)


if __name__ == "__main__":
    main()
