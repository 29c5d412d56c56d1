"""Inputs between real ranks: all end alike, with errors, aborts, late ranks, and after a rank was killed or stopped."""

import asyncio
import json
import os
import signal
import sys
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import asdict, dataclass, field
from itertools import product
from pathlib import Path
from pickle import PickleBuffer
from random import Random
from tempfile import TemporaryDirectory
from threading import Thread
from typing import Any

import pytest

from integration.workers.multimodal.broadcast_process import Run
from pointsman.workers.multimodal.broadcast.entry_rank import EntryRank
from pointsman.workers.multimodal.broadcast.errors import (
    GroupClosed,
    GroupNotJoined,
    InputsCancelled,
    NotMaterialised,
)
from pointsman.workers.multimodal.broadcast.links import Meeting, meet
from pointsman.workers.multimodal.broadcast.modes import Mode
from pointsman.workers.multimodal.broadcast.other_rank import OtherRank
from pointsman.workers.multimodal.broadcast.settings import InputBroadcastSettings
from waiting import eventually

PROCESS = Path(__file__).with_name("broadcast_process.py")
MODES = [Mode.SYNC, Mode.ASYNC, Mode.DELAYED, Mode.COMBINED, Mode.AUTO]
ALL_END_S = 150.0  # far less than the stall time of a rank that must be lost at once
KILLS, PARTS = 200, 4


@dataclass
class RankProcess:
    """A rank, and what it has printed."""

    rank: int
    child: asyncio.subprocess.Process
    ends: dict[str, tuple[str, str]] = field(default_factory=dict)
    closed: int | None = None
    killed: bool = False
    refused: str = ""


class Group:
    """The processes of one group. ``victim`` is killed once it has printed ``kill_after`` ends."""

    def __init__(self, run: Run, victim: int | None, kill_after: int, stop: bool) -> None:
        self.run = run
        self.victim = victim
        self.kill_after = kill_after
        self.stop = stop
        self.ranks: list[RankProcess] = []

    async def start(self, folder: Path, stall_s: float) -> None:
        pipes = [os.pipe() for _ in range(1, self.run.world_size)]
        for rank in range(self.run.world_size):
            own = [write for _, write in pipes] if rank == 0 else [pipes[rank - 1][0]]
            child = await asyncio.create_subprocess_exec(
                sys.executable, PROCESS, str(rank), json.dumps(asdict(self.run)), str(folder / "group.sock"),
                ",".join(map(str, own)), str(stall_s), stdout=asyncio.subprocess.PIPE, pass_fds=own,
            )  # fmt: skip
            self.ranks.append(RankProcess(rank, child))
        for each in pipes:
            for fd in each:
                os.close(fd)

    async def follow(self, rank: RankProcess) -> None:
        """Read what ``rank`` prints until it ends."""
        assert rank.child.stdout is not None
        async for line in rank.child.stdout:
            said = json.loads(line)
            if "request" in said:
                assert said["request"] not in rank.ends, "inputs end once"
                rank.ends[said["request"]] = (said["outcome"], said["message"])
            rank.refused = said.get("refused", rank.refused)
            if "closed" in said:
                rank.closed = said["closed"]
            if rank.rank == self.victim and not rank.killed and len(rank.ends) >= self.kill_after:
                rank.killed = True
                rank.child.send_signal(signal.SIGSTOP if self.stop else signal.SIGKILL)
        await rank.child.wait()

    async def end(self) -> None:
        """Wait until every rank that was not stopped has ended."""
        following = {rank.rank: asyncio.create_task(self.follow(rank)) for rank in self.ranks}
        async with asyncio.timeout(ALL_END_S):
            await asyncio.gather(*(task for rank, task in following.items() if not (self.stop and rank == self.victim)))


@asynccontextmanager
async def group_of(
    run: Run, victim: int | None = None, kill_after: int = 0, *, stop: bool = False, stall_s: float = 600
) -> AsyncIterator[Group]:
    """A group that ran to its end."""
    group = Group(run, victim, kill_after, stop)
    with TemporaryDirectory() as folder:
        try:
            await group.start(Path(folder), stall_s)
            await group.end()
            yield group
        finally:
            for rank in group.ranks:
                if rank.child.returncode is None:
                    rank.child.kill()
                    await rank.child.wait()


def check(group: Group) -> Counter[str]:
    """Every request ended alike on all survivors; returns how many ended how."""
    survivors = [rank for rank in group.ranks if rank.rank != group.victim]
    outcomes: Counter[str] = Counter()
    entry_survives = group.victim != 0
    for rank in survivors:
        assert rank.child.returncode == 0, f"rank {rank.rank} of {group.run} failed"
        assert rank.closed == 0, "nothing is pending at the end"
    for request in group.run.all_requests():
        ends = {rank.ends[request.request_id] for rank in survivors if request.request_id in rank.ends}
        if entry_survives:
            # The request reached the ranks that the entry rank could still tell of it.
            assert len(ends) <= 1, f"{group.run}, {request}: {ends}"
        else:
            assert len({end for end in ends if end[0] != "RankLost"}) <= 1, f"{group.run}, {request}: {ends}"
        for outcome, _ in ends:
            assert outcome in ("delivered", "NotMaterialised", "InputsCancelled", "RankLost")
            assert group.victim is not None or outcome != "RankLost"
            outcomes[outcome] += 1
        if group.victim is None:
            assert all(request.request_id in rank.ends for rank in survivors), f"{request} ended on every rank"
    return outcomes


@pytest.mark.parametrize(
    ("mode", "ranks"),
    [(Mode.SYNC, 4), (Mode.ASYNC, 2), (Mode.ASYNC, 4), (Mode.DELAYED, 4), (Mode.COMBINED, 4), (Mode.AUTO, 2)],
)
async def test_with_errors_aborts_and_late_ranks_all_requests_end_alike(mode: Mode, ranks: int) -> None:
    async with group_of(Run(seed=1, mode=mode, world_size=ranks, requests=60)) as group:
        outcomes = check(group)
        assert outcomes["delivered"] >= 30 and outcomes["NotMaterialised"] >= 1, outcomes


@pytest.mark.parametrize(
    ("mode", "ranks", "victim"),
    [(Mode.SYNC, 2, 1), (Mode.COMBINED, 4, 0), (Mode.ASYNC, 4, 2), (Mode.ASYNC, 4, 0), (Mode.DELAYED, 2, 1)],
)
async def test_after_a_kill_the_other_ranks_end_everything_alike_and_at_once(
    mode: Mode, ranks: int, victim: int
) -> None:
    async with group_of(Run(seed=2, mode=mode, world_size=ranks, requests=60), victim, kill_after=20) as group:
        check(group)


@pytest.mark.parametrize("mode", [Mode.SYNC, Mode.COMBINED])
async def test_a_rank_that_stands_still_is_lost_after_the_stall_time(mode: Mode) -> None:
    run = Run(seed=3, mode=mode, world_size=4, requests=400)
    async with group_of(run, victim=2, kill_after=5, stop=True, stall_s=3) as group:
        check(group)
        ends = [message for rank in group.ranks for _, message in rank.ends.values()]
        assert any("rank 2 of the group is lost: it " in each for each in (*ends, group.ranks[0].refused))


@pytest.mark.verify
@pytest.mark.verify_multimodal
@pytest.mark.parametrize("part", range(PARTS))
async def test_with_200_kills_no_group_hangs_and_none_ends_differently(findings: dict[str, object], part: int) -> None:
    outcomes: Counter[str] = Counter()
    victims: Counter[str] = Counter()
    cases = list(product(MODES, (2, 4)))
    for seed in range(part, KILLS, PARTS):
        rng = Random(seed)
        mode, ranks = cases[seed % len(cases)]
        run = Run(seed=seed, mode=mode, world_size=ranks, requests=50)
        victim = rng.randrange(ranks)
        async with group_of(run, victim, kill_after=rng.randrange(45)) as group:
            outcomes += check(group)
            assert group.ranks[victim].killed
            victims["entry rank" if victim == 0 else "other rank"] += 1
    findings.update(
        {
            "kills": dict(victims),
            "requests_that_ended_on_survivors": outcomes.total(),
            "outcomes": dict(outcomes),
            "ranks": [2, 4],
            "requests_that_ended_differently": 0,
            "hangs": 0,
        }
    )


def materialise(raw: object) -> object:
    assert isinstance(raw, dict)
    if "error" in raw:
        raise ValueError(raw["error"])
    return raw["value"]


@asynccontextmanager
async def ranks_in_one_process(folder: Path, mode: Mode, **more: object) -> AsyncIterator[tuple[EntryRank, OtherRank]]:
    """Two ranks, each with its threads, in this process."""
    settings = InputBroadcastSettings(input_broadcast_mode=mode, **more)  # type: ignore[arg-type]
    path = folder / "group.sock"
    joining = asyncio.to_thread(OtherRank.join, path, 1, 2, materialise, settings)
    assembling = asyncio.to_thread(EntryRank.assemble, path, 2, materialise, settings)
    entry, other = await asyncio.gather(assembling, joining)
    try:
        yield entry, other
    finally:
        await asyncio.to_thread(entry.close, 5)
        await asyncio.to_thread(other.close)


@pytest.mark.parametrize("mode", MODES)
async def test_inputs_of_a_world_of_one_need_no_other_rank(tmp_path: Path, mode: Mode) -> None:
    settings = InputBroadcastSettings(input_broadcast_mode=mode)
    entry = EntryRank.assemble(tmp_path / "group.sock", 1, materialise, settings)
    assert entry.submit("a", {"value": 7}).get_inputs() == 7
    assert entry.submit("b", None).get_inputs() is None
    with pytest.raises(NotMaterialised, match="request c cannot be materialised on rank 0: ValueError: no picture"):
        entry.submit("c", {"error": "no picture"}).get_inputs()
    entry.close()
    assert entry.pending_bytes == 0
    with pytest.raises(GroupClosed):
        entry.submit("d", {"value": 7})


@pytest.mark.parametrize("mode", MODES)
async def test_a_request_without_inputs_sends_nothing(tmp_path: Path, mode: Mode) -> None:
    async with ranks_in_one_process(tmp_path, mode) as (entry, other):
        inputs = entry.submit("a", None)
        assert inputs.stamp.mode is Mode.NONE
        assert inputs.get_inputs() is None
        assert other.expect(inputs.stamp).get_inputs() is None


@dataclass
class Array:
    """A large buffer that travels apart, as an array does."""

    buffer: memoryview | PickleBuffer

    def __reduce__(self) -> tuple[Any, ...]:
        return Array, (PickleBuffer(self.buffer),)


async def test_what_a_rank_keeps_stays_as_it_is_while_later_inputs_use_shared_memory(tmp_path: Path) -> None:
    size = 1 << 20
    async with ranks_in_one_process(tmp_path, Mode.ASYNC) as (entry, other):
        retained = []
        for number in range(30):
            inputs = entry.submit(f"r{number}", {"value": Array(memoryview(bytes([number]) * size))})
            received = await asyncio.to_thread(other.expect(inputs.stamp).get_inputs, 20)
            assert isinstance(received, Array)
            view = memoryview(received.buffer)
            assert view.readonly and bytes(view) == bytes([number]) * size
            if number % 7 == 0:
                retained.append((number, view))
        assert all(bytes(view) == bytes([number]) * size for number, view in retained)
        assert entry.pending_bytes >= len(retained) * size
        del retained, received, view, inputs
        await eventually(lambda: entry.pending_bytes == 0, "nothing is pending")


@pytest.mark.parametrize("mode", [Mode.ASYNC, Mode.COMBINED, Mode.DELAYED])
async def test_a_cancelled_request_ends_with_the_same_error_on_every_rank(tmp_path: Path, mode: Mode) -> None:
    async with ranks_in_one_process(tmp_path, mode, input_broadcast_threads=1) as (entry, other):
        first = [entry.submit(f"busy{number}", {"value": bytes(1 << 20)}) for number in range(8)]
        inputs = entry.submit("aborted", {"value": 7})
        elsewhere = other.expect(inputs.stamp)
        inputs.cancel()
        ends = []
        for each in (inputs, elsewhere):
            try:
                ends.append(await asyncio.to_thread(each.get_inputs, 20))
            except InputsCancelled as error:
                ends.append(str(error))
        assert ends[0] == ends[1]
        for each in first:
            other_inputs = other.expect(each.stamp)
            waiting = asyncio.to_thread(other_inputs.get_inputs, 20)
            assert (await asyncio.gather(waiting, asyncio.to_thread(each.get_inputs, 20)))[0] == bytes(1 << 20)


async def test_a_rank_that_cannot_join_is_told_why(tmp_path: Path) -> None:
    path = tmp_path / "group.sock"

    def assemble() -> None:
        with pytest.raises(GroupNotJoined, match="world_size is 5 on rank 1: it must be 2"):
            Meeting(path).assemble(2, 20)

    thread = Thread(target=assemble)
    thread.start()
    with pytest.raises(GroupNotJoined, match="rank 1 was refused: world_size is 5 on rank 1: it must be 2"):
        await asyncio.to_thread(meet, path, 1, 5, 20)
    await asyncio.to_thread(thread.join)
    with pytest.raises(GroupNotJoined, match=r"ranks \[1\] of 2 did not join the group in time"):
        Meeting(path).assemble(2, 0.01)
