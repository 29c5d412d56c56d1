"""The inputs of an engine's steps go beside them: classes with vLLM's fields, real ranks."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from threading import Event
from typing import Any

import pytest

from pointsman.workers.multimodal.broadcast.entry_rank import EntryRank
from pointsman.workers.multimodal.broadcast.modes import Mode, Stamp
from pointsman.workers.multimodal.broadcast.other_rank import OtherRank
from pointsman.workers.multimodal.broadcast.settings import InputBroadcastSettings
from pointsman.workers.multimodal.broadcast.steps import EntrySteps, RankSteps
from waiting import eventually

IMAGE = bytes(200_000)
SECONDS = 20.0
MAX_PENDING_BYTES = 3 * len(IMAGE)


@dataclass
class Feature:
    """vLLM's ``MultiModalFeatureSpec``."""

    data: Any
    identifier: str = "hash"


@dataclass
class NewRequest:
    """vLLM's ``NewRequestData``."""

    req_id: str
    mm_features: list[Feature]


@dataclass
class Step:
    """vLLM's ``SchedulerOutput``."""

    scheduled_new_reqs: list[NewRequest] = field(default_factory=list)
    scheduled_encoder_inputs: dict[str, list[int]] = field(default_factory=dict)
    finished_req_ids: set[str] = field(default_factory=set)


def as_it_is(raw: object) -> object:
    return raw


def as_a_rank_gets_it(step: Step) -> Step:
    """Another process has objects of its own."""
    requests = [
        replace(each, mm_features=[replace(feature) for feature in each.mm_features])
        for each in step.scheduled_new_reqs
    ]
    return replace(step, scheduled_new_reqs=requests)


@asynccontextmanager
async def engine(
    folder: Path, *, at_once: bool = False, mode: Mode = Mode.ASYNC
) -> AsyncIterator[tuple[EntryRank, OtherRank, EntrySteps, RankSteps]]:
    settings = InputBroadcastSettings(input_broadcast_mode=mode, input_broadcast_max_pending_bytes=MAX_PENDING_BYTES)
    path = folder / "group.sock"
    joining = asyncio.to_thread(OtherRank.join, path, 1, 2, as_it_is, settings, private_copies=True)
    assembling = asyncio.to_thread(EntryRank.assemble, path, 2, as_it_is, settings, takes_inputs=False)
    entry, other = await asyncio.gather(assembling, joining)
    try:
        yield entry, other, EntrySteps(entry, at_once=at_once), RankSteps(other, at_once=at_once)
    finally:
        await asyncio.to_thread(entry.close, 5)
        await asyncio.to_thread(other.close)


async def test_inputs_are_placed_in_the_step_whose_encoder_needs_them(tmp_path: Path) -> None:
    async with engine(tmp_path) as (_, _, entry_steps, rank_steps):
        request = NewRequest("r", [Feature(IMAGE), Feature(None), Feature(b"second")])
        sent = entry_steps.with_stamps(Step([request, NewRequest("text", [])]))
        assert [feature.data for feature in request.mm_features] == [IMAGE, None, b"second"], "the scheduler's own"
        assert [type(feature.data) for feature in sent.scheduled_new_reqs[0].mm_features] == [Stamp, type(None), Stamp]

        first = as_a_rank_gets_it(sent)
        rank_steps.place(first)
        features = first.scheduled_new_reqs[0].mm_features
        assert isinstance(features[0].data, Stamp), "the encoder has not come to it"
        await asyncio.to_thread(rank_steps.place, Step(scheduled_encoder_inputs={"r": [0]}))
        assert [feature.data for feature in features] == [IMAGE, None, b"second"]
        assert rank_steps.placed == 1


async def test_a_model_that_reads_inputs_at_once_has_them_in_the_first_step(tmp_path: Path) -> None:
    async with engine(tmp_path, at_once=True) as (_, _, entry_steps, rank_steps):
        step = as_a_rank_gets_it(entry_steps.with_stamps(Step([NewRequest("r", [Feature(IMAGE)])])))
        await asyncio.to_thread(rank_steps.place, step)
        assert step.scheduled_new_reqs[0].mm_features[0].data == IMAGE


async def test_a_request_that_ends_before_its_encoder_leaves_nothing_pending(tmp_path: Path) -> None:
    async with engine(tmp_path) as (entry, _, entry_steps, rank_steps):
        for number in range(20):
            name = f"r{number}"
            sent = entry_steps.with_stamps(Step([NewRequest(name, [Feature(IMAGE)])]))
            assert isinstance(sent.scheduled_new_reqs[0].mm_features[0].data, Stamp)
            rank_steps.place(as_a_rank_gets_it(sent))
            rank_steps.place(entry_steps.with_stamps(Step(finished_req_ids={name})))
            await eventually(lambda: entry.pending_bytes == 0, "nothing is pending")
        assert rank_steps.placed == 0


@dataclass
class Slow:
    """An input whose packing goes on until ``go``."""

    go: Event

    def __reduce__(self) -> tuple[Any, ...]:
        assert self.go.wait(SECONDS)
        return bytes, (IMAGE,)


@pytest.mark.parametrize("mode", [Mode.ASYNC, Mode.COMBINED])
@pytest.mark.parametrize("at_once", [False, True])
async def test_an_abort_takes_no_inputs_from_a_step_that_was_sent(tmp_path: Path, mode: Mode, at_once: bool) -> None:
    async with engine(tmp_path, at_once=at_once, mode=mode) as (entry, _, entry_steps, rank_steps):
        packing = Event()
        sent = entry_steps.with_stamps(Step([NewRequest("r", [Feature(Slow(packing))])], {"r": [0]}))
        then = entry_steps.with_stamps(Step(finished_req_ids={"r"}))  # while the first step is executed
        packing.set()
        step = as_a_rank_gets_it(sent)
        await asyncio.to_thread(rank_steps.place, step)
        rank_steps.place(then)
        assert step.scheduled_new_reqs[0].mm_features[0].data == IMAGE
        await eventually(lambda: entry.pending_bytes == 0, "nothing is pending")


async def test_a_preempted_request_that_comes_again_gets_its_inputs_and_leaves_no_others(tmp_path: Path) -> None:
    async with engine(tmp_path, mode=Mode.DELAYED) as (entry, _, entry_steps, rank_steps):
        for _ in range(2):
            step = as_a_rank_gets_it(entry_steps.with_stamps(Step([NewRequest("r", [Feature(IMAGE)])])))
            rank_steps.place(step)
        await asyncio.to_thread(rank_steps.place, Step(scheduled_encoder_inputs={"r": [0]}))
        assert step.scheduled_new_reqs[0].mm_features[0].data == IMAGE
        assert rank_steps.placed == 1
        await eventually(lambda: entry.pending_bytes == 0, "nothing is pending")


@pytest.mark.parametrize("why", ["too much is pending", "the group has ended"])
async def test_inputs_that_are_not_accepted_stay_in_the_step(tmp_path: Path, why: str) -> None:
    async with engine(tmp_path) as (entry, other, entry_steps, rank_steps):
        image = bytes(MAX_PENDING_BYTES + 1)
        if why == "the group has ended":
            image = IMAGE
            await asyncio.to_thread(other.close)
            await eventually(lambda: entry.ended, "the entry rank has noticed")
        step = Step([NewRequest("r", [Feature(image)])], {"r": [0]})
        sent = entry_steps.with_stamps(step)
        rank_steps.place(as_a_rank_gets_it(sent))
        assert sent.scheduled_new_reqs[0].mm_features[0].data == image
