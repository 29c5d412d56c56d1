"""From start to exit: what stops a process, and in which order its parts end."""

import asyncio
import logging
import os
import signal

import pytest

from pointsman.process.lifetime import ExitStatus, Lifetime


async def forever(ended: list[str], name: str) -> None:
    try:
        await asyncio.get_running_loop().create_future()
    finally:
        ended.append(name)


async def test_sigterm_ends_the_parts_in_reverse_order_and_the_status_says_stopped() -> None:
    ended: list[str] = []
    async with asyncio.timeout(30), Lifetime() as life:
        life.start(forever(ended, "election"), "election")
        life.start(forever(ended, "events"), "events")

        async def flush() -> None:
            ended.append("flush")

        life.push_async_callback(flush)
        life.start(forever(ended, "work"), "work")
        assert await life.reach(asyncio.sleep(0))
        os.kill(os.getpid(), signal.SIGTERM)
        assert not await life.reach(forever([], "what never comes"))
    assert ended == ["work", "flush", "events", "election"]
    assert life.status is ExitStatus.STOPPED


async def test_a_part_that_fails_stops_the_process_and_is_named(caplog: pytest.LogCaptureFixture) -> None:
    async def broken() -> None:
        raise RuntimeError("a bug")

    ended: list[str] = []
    async with asyncio.timeout(30), Lifetime() as life:
        life.start(forever(ended, "other"), "other")
        life.start(broken(), "the broken part")
        await life.stopping.wait()
    assert life.status is ExitStatus.FAILED
    assert ended == ["other"]
    assert [each.__dict__["part"] for each in caplog.records] == ["the broken part"]
    assert "a bug" in caplog.text


async def test_a_part_that_returns_stops_the_process_too() -> None:
    async with asyncio.timeout(30), Lifetime() as life:
        life.start(asyncio.sleep(0), "short")
        await life.stopping.wait()
    assert life.status is ExitStatus.FAILED


async def test_the_lost_lease_is_the_status_also_when_the_election_returns(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "_exit", lambda status: None)
    async with asyncio.timeout(30), Lifetime() as life:

        async def election() -> None:
            life.lease_lost()

        life.start(election(), "election")
        await life.stopping.wait()
        life.stop(ExitStatus.FAILED)
    assert life.status is ExitStatus.LOST_LEASE


async def test_an_error_of_the_body_goes_through_and_blames_no_part(caplog: pytest.LogCaptureFixture) -> None:
    ended: list[str] = []
    with caplog.at_level(logging.ERROR), pytest.raises(LookupError):
        async with asyncio.timeout(30), Lifetime() as life:
            life.start(forever(ended, "part"), "part")
            await life.reach(asyncio.sleep(0))
            raise LookupError
    assert ended == ["part"]
    assert caplog.text == ""


async def test_what_goes_wrong_in_what_is_waited_for_is_raised() -> None:
    async def broken() -> None:
        raise LookupError

    with pytest.raises(LookupError):
        async with asyncio.timeout(30), Lifetime() as life:
            await life.reach(broken())
