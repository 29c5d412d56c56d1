"""Groups over the strict stand-in for NCCL, without a model, in threads. Prints JSON.

python -m engine.elastic.nccl_groups
"""

import json
import os
import threading
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import psutil
import torch
import torch.distributed as dist
from torch._C import _distributed_c10d as distributed_c10d

from engine.elastic.strict_nccl import ADDRESS, HastyGpu, Stream, StrictGpu
from pointsman.workers.elastic.engine.groups import Group
from pointsman.workers.elastic.engine.meeting import GroupBroken
from pointsman.workers.elastic.engine.nccl import Gpu, nccl_environment
from pointsman.workers.elastic.engine.transports import CARD_BYTES
from pointsman.workers.elastic.instance.shard import store_at, store_of

TIMEOUT_SECONDS = 1.0
EARLIER = Gpu(torch.device("cpu"), bytes(CARD_BYTES))
"""Publishes what a member without a GPU published before there were beats."""


def groups(gpus: Sequence[Gpu | None]) -> list[Group]:
    """Of so many members, each of which has joined and connected."""
    store, at = store_at(ADDRESS)
    names = [str(number) for number in range(len(gpus))]

    def joined(rank: int) -> Group:
        mine = store if rank == 0 else store_of(at)
        group = Group.join(mine, "e", names, names[rank], address=ADDRESS, timeout_s=TIMEOUT_SECONDS, gpu=gpus[rank])
        group.connect()
        return group

    with ThreadPoolExecutor(len(gpus)) as threads:
        return list(threads.map(joined, range(len(gpus))))


def at_once(work: Callable[[Group], Any], members: Sequence[Group], limit_s: float = 5.0) -> list[Any]:
    """What ``work`` returns or raises at each member; "hangs" where it does not end."""
    found: list[Any] = ["hangs"] * len(members)

    def run(member: Group) -> None:
        with Stream():
            try:
                found[member.rank] = work(member)
            except (GroupBroken, AssertionError) as error:
                found[member.rank] = type(error).__name__

    threads = [threading.Thread(target=run, args=(member,), daemon=True) for member in members]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(limit_s)
    return found


def crossing(group: Group) -> float:
    """Both send to each other."""
    other = 1 - group.rank
    exchange = group.exchange()
    sent = exchange.send(torch.full((2,), float(group.rank)), other)
    arriving = exchange.receive(torch.empty(2), other)
    exchange.begin()
    sent.wait()
    value = float(arriving.wait().sum())
    group.end()
    return value


def hasty_reader(group: Group) -> bool:
    """Whether what was not waited for is garbage, and is there afterwards."""
    other = 1 - group.rank
    exchange = group.exchange()
    sent, arriving = exchange.send(torch.ones(2), other), exchange.receive(room := torch.empty(2), other)
    exchange.begin()
    early = bool(room.isnan().all())
    sent.wait()
    return early and bool((arriving.wait() == 1).all())


def changer(group: Group) -> None:
    """Changes what it sends."""
    other = 1 - group.rank
    exchange = group.exchange()
    tensor = torch.ones(2)
    sent, arriving = exchange.send(tensor, other), exchange.receive(torch.empty(2), other)
    exchange.begin()
    tensor += 1
    sent.wait()
    arriving.wait()
    group.synchronize()


def sums(group: Group) -> float:
    """Of the ranks plus one."""
    return float(group.sum(torch.full((3,), group.rank + 1.0)).sum())


def only_the_first(group: Group) -> str:
    """The other one is never told of the iteration."""
    if group.rank == 0:
        group.begin()
    return "ended"


def closes(members: Sequence[Group]) -> tuple[list[Any], float]:
    """One closes the group while the other one waits for it: what both get, and how soon."""
    began_s = time.monotonic()

    def work(group: Group) -> str:
        group.begin()
        if group.rank == 1:
            group.close()
            return "closed"
        return str(crossing(group))

    return at_once(work, members), time.monotonic() - began_s


def bindings() -> dict[str, Any]:
    """Whether NCCL's group has the methods that are called, as they are bound for all of torch's backends."""
    backend = distributed_c10d.Backend
    calls = {
        "_start_coalescing": "(self: torch._C._distributed_c10d.Backend) -> None",
        "_end_coalescing": "(self: torch._C._distributed_c10d.Backend) -> c10d::Work",
        "eager_connect_single_device": "arg0: torch.device) -> None",
        "abort": "(self: torch._C._distributed_c10d.Backend) -> None",
        "send": "tensors: collections.abc.Sequence[torch.Tensor], dstRank: typing.SupportsInt",
        "recv": "tensors: collections.abc.Sequence[torch.Tensor], srcRank: typing.SupportsInt",
        "allreduce": "tensors: collections.abc.Sequence[torch.Tensor], opts: torch._C._distributed_c10d.AllreduceOpt",
    }
    bound = []
    for name, signature in calls.items():
        method = getattr(backend, name)
        if getattr(dist.ProcessGroupNCCL, name) is method and signature in method.__doc__:
            bound.append(name)
    if hasattr(torch._C._CudaDeviceProperties, "uuid") and hasattr(torch._C._CUuuid, "bytes"):
        bound.append("uuid")
    try:
        dist.ProcessGroupNCCL(dist.HashStore(), 0, 2, dist.ProcessGroupNCCL.Options())
    except ValueError as error:
        constructor = str(error)
    else:
        constructor = "made"
    return {"bindings": [*calls, "uuid"], "bound": bound, "constructor": constructor}


def listening() -> dict[str, list[str]]:
    """Where NCCL listens, with the variables for an address (it needs no GPU for that), and a group over gloo."""
    os.environ.update(nccl_environment(ADDRESS))
    _, of_nccl = listening_since(torch.cuda.nccl.unique_id)
    members, of_group = listening_since(lambda: groups([None, None]))
    for member in members:
        member.close()
    return {"listening": of_nccl, "listening of a group and its store": of_group}


def listening_since(work: Callable[[], Any]) -> tuple[Any, list[str]]:
    """What ``work`` returns, and the addresses at which this process listens since then."""
    before = {each.laddr for each in psutil.Process().net_connections()}
    found = work()
    after = psutil.Process().net_connections()
    return found, [each.laddr.ip for each in after if each.laddr not in before and each.status == "LISTEN"]


def main() -> dict[str, Any]:
    """By what happens: what came of it."""
    torch.set_num_threads(1)
    first, second = StrictGpu(), StrictGpu()
    pair = groups([first, second])
    return {
        **listening(),
        **bindings(),
        "transports": {
            "gpu each": [each.transport for each in pair],
            "one gpu": [each.transport for each in groups([first, first])],
            "one without": [each.transport for each in groups([first, None])],
            "none": [each.transport for each in groups([None, None])],
            "one of an earlier version": [each.transport for each in groups([first, EARLIER])],
        },
        "watched": {
            "without a gpu": [each._watch is not None for each in groups([None, None])],
            "one of an earlier version": [each._watch is not None for each in groups([None, EARLIER])],
        },
        "crossing": at_once(crossing, pair),
        "sums": at_once(sums, pair),
        "hasty reader": at_once(hasty_reader, pair),
        "changer": at_once(changer, pair),
        "not coalesced": at_once(crossing, groups([HastyGpu(), HastyGpu()]), 1.0),
        "only the first": at_once(only_the_first, groups([StrictGpu(), StrictGpu()])),
        "closes": closes(groups([StrictGpu(), StrictGpu()])),
    }


if __name__ == "__main__":
    print(json.dumps(main()), flush=True)
    os._exit(0)  # threads still wait for what never comes
