"""NCCL on one GPU: a communicator of one member, and members of one GPU as if each had a computer of its own.

    python -m bench.elastic.gpu.nccl FOLDER FILE

``FOLDER``: with the models of `engine.elastic.models`. Runs in the engine environment, on a computer with a GPU.
"""

import multiprocessing
import os
import random
import statistics
import sys
import time
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist

from bench.elastic.gpu.findings import Findings
from engine.elastic.members import ADDRESS, Members
from pointsman.serving.elastic.iterations import Prompt
from pointsman.workers.elastic.engine.exchanges import SentBytes
from pointsman.workers.elastic.engine.groups import Group, _gloo
from pointsman.workers.elastic.engine.liveness import Watch
from pointsman.workers.elastic.engine.meeting import GroupBroken
from pointsman.workers.elastic.engine.nccl import Gpu, Nccl, nccl_environment
from pointsman.workers.elastic.engine.transports import card, nccl_connects
from pointsman.workers.elastic.instance.shard import store_at, store_of

SPAWN = multiprocessing.get_context("spawn")
NUMBERS = 1 << 20
EXCHANGES = 200


class Beside:
    """Another process, that of a GPU's only member is watched together with: when it dies, the member aborts."""

    def __init__(self, name: str) -> None:
        self.store, at = store_at(ADDRESS)
        here = SPAWN.Event()
        self._process = SPAWN.Process(target=_beat, args=(at, name, here), daemon=True)
        self._process.start()
        here.wait(60)
        self.watch = Watch(_gloo(dist.PrefixStore(name, store_of(at)), 0, 2, ADDRESS), 0, 2)

    def kill(self) -> None:
        """As kill -9."""
        self._process.kill()
        self._process.join()


def _beat(at: str, name: str, here: Any) -> None:
    here.set()
    watch = Watch(_gloo(dist.PrefixStore(name, store_of(at)), 1, 2, ADDRESS), 1, 2)
    watch._thread.join()


def _gpu() -> Gpu:
    gpu = Gpu.of(torch.device("cuda", 0))
    assert gpu is not None
    return gpu


def _said(nccl: Nccl) -> str | None:
    """What a call of a communicator that has ended raises; None: nothing."""
    try:
        nccl.sum(torch.ones(3, device="cuda"))
    except GroupBroken as error:
        return str(error)[:120]
    return None


def one_member() -> dict[str, Any]:
    """What the engine does with a communicator, done with one that has a single member: it sends to itself."""
    beside, sent = Beside("used"), SentBytes()
    nccl = Nccl(_gpu(), beside.store, 0, 1, beside.watch)
    began_s = time.perf_counter()
    nccl.connect()
    found: dict[str, Any] = {"connect_s": round(time.perf_counter() - began_s, 3)}
    took, right = [], True
    for number in range(EXCHANGES):
        began_s = time.perf_counter()
        tensor = torch.full((NUMBERS,), float(number), device="cuda")
        exchange = nccl.exchange(sent)
        sending, arriving = exchange.send(tensor, 0), exchange.receive(torch.empty_like(tensor), 0)
        exchange.begin()
        sending.wait()
        received = arriving.wait()
        nccl.synchronize()
        took.append(time.perf_counter() - began_s)
        right = right and bool((received == number).all())
    found |= {"received_right": right, "exchange_ms": round(1000 * statistics.median(took), 3)}
    found["sent_bytes"] = [sent.take(), EXCHANGES * NUMBERS * 4]
    found["sum"] = float(nccl.sum(torch.ones(3, device="cuda")).sum())
    nccl.synchronize()
    began_s = time.perf_counter()
    nccl.close()
    found["close_s"] = round(time.perf_counter() - began_s, 3)
    return found | {"after_close": _said(nccl)}


def abort() -> dict[str, Any]:
    """A death beside the member: how soon it is noticed, and what becomes of the communicator."""
    beside = Beside("aborted")
    nccl = Nccl(_gpu(), beside.store, 0, 1, beside.watch)
    nccl.connect()
    nccl.sum(torch.ones(3, device="cuda"))
    nccl.synchronize()
    beside.kill()
    began_s = time.perf_counter()
    noticed = None
    while noticed is None and time.perf_counter() - began_s < 5:
        try:
            nccl.synchronize()
            time.sleep(0.01)
        except GroupBroken as error:
            noticed = str(error)[:120]
    noticed_s = time.perf_counter() - began_s
    while nccl._communicator is not None and time.perf_counter() - began_s < 5:
        time.sleep(0.01)
    found = {"noticed": noticed, "noticed_s": round(noticed_s, 3), "gone": nccl._communicator is None}
    found["after"] = _said(nccl)
    value = torch.ones(1000, device="cuda").sum().item()  # the GPU goes on
    return found | {"gpu_goes_on": value == 1000}


def chosen() -> dict[str, bool]:
    """Whether NCCL is chosen for two members on this GPU, and for two on two GPUs."""
    gpu = _gpu()
    other = card(torch.cuda.nccl.version()[:3], bytes(16))
    return {"one_gpu": nccl_connects([gpu.card, gpu.card]), "two_gpus": nccl_connects([gpu.card, other])}


def refused() -> str:
    """What NCCL says of two members on this GPU, were it chosen."""
    store, at = store_at(ADDRESS)
    told = SPAWN.Queue()
    members = [SPAWN.Process(target=_try, args=(at, rank, told), daemon=True) for rank in range(2)]
    for member in members:
        member.start()
    try:
        return str(told.get(timeout=30))
    finally:
        for member in members:
            member.kill()
        del store


def _try(at: str, rank: int, told: Any) -> None:
    os.environ |= nccl_environment(ADDRESS)
    try:
        _gpu().connect(store_of(at), rank, 2)
        told.put("connected")
    except Exception as error:  # noqa: BLE001 - whatever it says is what is asked
        told.put(str(error)[-300:])


def forming(folder: Path) -> dict[str, Any]:
    """Seconds of a prefill in a group that forms, and in one that is there, of members as on hosts of their own."""
    members = Members(folder, 3, 2000, transport="hosts")
    rng, found = random.Random(1), dict[str, list[tuple[float, float]]]()
    try:
        for number, chosen in enumerate([[0, 1], [1, 2], [0, 1, 2], [0, 2], [0, 1], [0, 1, 2]]):
            took = []
            for again in range(2):
                ids = tuple(rng.randrange(512) for _ in range(100))
                request = f"r{number}.{again}"
                began_s = time.perf_counter()
                members.iterate(chosen, [Prompt(request, ids, ((0, 100),))], ())
                took.append(round(time.perf_counter() - began_s, 3))
                members.asked("release", request)
            found.setdefault(str(len(chosen)), []).append((took[0], took[1]))
    finally:
        members.close()
    return dict(found)


def main(folder: Path, file: Path) -> None:
    """All of it."""
    os.environ |= nccl_environment(ADDRESS)
    findings = Findings(file)
    findings.step("chosen", chosen)
    findings.step("alone", lambda: Group.alone().transport)
    findings.step("refused", refused)
    findings.step("forming", lambda: forming(folder / "plain"))
    findings.step("one_member", one_member)
    findings.step("abort", abort)


if __name__ == "__main__":
    main(Path(sys.argv[1]), Path(sys.argv[2]))
    os._exit(0)  # a thread may still wait for who is dead
