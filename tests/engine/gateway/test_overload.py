"""A burst beyond what real engines can do: everybody is answered token for token, and more of them in time."""

from collections.abc import Iterator

import pytest
from bench.overload import Overload, Speed, outcome, overloaded, speed

from fixtures.engine_service import Service, running_service
from fixtures.engines import MODEL, Engines, PlainEngines
from pointsman.api.protocol.names import Role
from pointsman.local.traffic import Endpoint, Record, closed_loop, compare

LOAD = Overload(burst=16, followers=16, prompt_tokens=2400)


@pytest.fixture(scope="module")
def service(engines: Engines) -> Iterator[Service]:
    with running_service(engines, {"prefill-0": Role.PREFILL, "decode-0": Role.DECODE}) as running:
        yield running


async def test_a_burst_makes_late_only_what_must_be_late(service: Service, plain_engines: PlainEngines) -> None:
    async with Endpoint(service.openai_url, MODEL) as ours, Endpoint(plain_engines.one.openai_url, MODEL) as reference:
        at = await speed(ours, LOAD, "test")
        before = await overloaded(ours, LOAD, at, "without bounds")
        service.bound(LOAD.bounds)
        after = await overloaded(ours, LOAD, at, "with bounds")
        await exact(reference, after)
    report(at, before, after)
    without, bounded = outcome(before, at), outcome(after, at)
    assert bounded.in_time >= without.in_time + 0.2


async def exact(reference: Endpoint, records: list[Record]) -> None:
    """One plain engine answers the same."""
    expected = await closed_loop(reference, [record.prompt for record in records], clients=4)
    comparison = compare(expected, records)
    assert comparison.exact, comparison.differences


def report(at: Speed, before: list[Record], after: list[Record]) -> None:
    """For who reads the test's output."""
    print(f"a lone prompt {at.alone_s:.2f} s, each in a queue {at.prompt_s:.2f} s, in time {at.objective_s:.2f} s")
    for what, records in (("first in, first out", before), ("flow control", after)):
        found = outcome(records, at)
        print(
            f"{what}: {found.in_time:.0%} of {len(records)} in time, worst {max(found.ttft_s):.1f} s, "
            f"{[round(seconds, 1) for seconds in found.ttft_s]}"
        )
