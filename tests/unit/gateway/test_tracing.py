"""Trace headers go to the worker as they came, or not at all."""

import asyncio

import pytest

from pointsman.gateway.tracing import remember, to_worker, trace_context

PARENT = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"


def test_a_trace_context_is_passed_on_as_it_came() -> None:
    given = {"traceparent": PARENT, "tracestate": "vendor=a,other=b"}
    assert trace_context(given) == given
    assert trace_context({"traceparent": PARENT}) == {"traceparent": PARENT}


@pytest.mark.parametrize(
    "given",
    [
        {},
        {"tracestate": "vendor=a"},
        {"traceparent": "00-zz-b7ad6b7169203331-01"},
        {"traceparent": PARENT + "\r\nX-Pointsman-Verification: 1"},
        {"traceparent": ""},
    ],
)
def test_what_is_no_trace_context_is_not_passed_on(given: dict[str, str]) -> None:
    assert trace_context(given) == {}


def test_a_state_that_is_none_is_left_out() -> None:
    assert trace_context({"traceparent": PARENT, "tracestate": "a" * 513}) == {"traceparent": PARENT}


async def test_each_request_and_the_tasks_it_starts_have_their_own() -> None:
    async def request(parent: str | None) -> str | None:
        remember({"traceparent": parent} if parent else {})
        await asyncio.sleep(0)

        async def leg() -> str | None:
            return to_worker().get("traceparent")

        return await asyncio.create_task(leg())

    other = PARENT.replace("0af7", "1bf8")
    found = await asyncio.gather(request(PARENT), request(None), request(other))
    assert list(found) == [PARENT, None, other]
