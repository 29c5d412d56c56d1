"""When the live loop saves its memory for ``explain``, and how long a gateway is new."""

from dataclasses import replace
from types import SimpleNamespace
from typing import Any, ClassVar, cast

import pytest
from aiohttp import web
from aiohttp.test_utils import TestServer

from pointsman.api.v1alpha1.plannerpolicy import PlannerPolicy
from pointsman.planner.cluster import Target
from pointsman.planner.core.metrics.observe import Reading
from pointsman.planner.core.state import State
from pointsman.planner.core.types import Decision, Layout, Reason, RoutingNumbers, WorkerCondition
from pointsman.planner.errors import PrometheusFailed
from pointsman.planner.memory import Last
from pointsman.planner.plan_writer import PlanWriter
from pointsman.planner.routing_publisher import RoutingPublisher
from pointsman.planner.scraper import Scraper
from pointsman.planner.service_record import ServiceRecord
from pointsman.planner.source import Source, Unread, ages_of_failed_s, exclude_ended_gateways
from pointsman.process.clock import SYSTEM_CLOCK
from unit.planner.plans import policy
from unit.planner.scenes import LONG, observed

NO_PLANS = cast(PlanWriter, SimpleNamespace())
NO_ROUTING = cast(RoutingPublisher, SimpleNamespace())
ROUTING = Decision(Reason.THRESHOLD, "320 tokens", 2, 3, RoutingNumbers(320, 32), routing_reason=Reason.THRESHOLD)


def asked_for_no_page() -> Source:
    parts: Any = {"scraper": Scraper(1.0), "secrets": None}
    return Source("", timeout_s=1.0, clock=SYSTEM_CLOCK, **parts)


def kept(decision: Decision, **seen: Any) -> ServiceRecord:
    source = asked_for_no_page()
    return ServiceRecord(
        "u", State(), source, NO_PLANS, NO_ROUTING, last=Last(replace(observed(0.0, LONG, 2, 3), **seen), decision)
    )


@pytest.mark.parametrize(
    ("after", "news"),
    [
        (kept(ROUTING), False),
        (kept(replace(ROUTING, reason=Reason.FLOW_CONTROL)), False),  # it comes in turn with the threshold
        (kept(replace(ROUTING, reason=Reason.STALE_METRICS)), True),
        (kept(replace(ROUTING, prefill=3)), True),
        (kept(ROUTING, awaiting_approval=Layout(3, 2)), True),
        (kept(ROUTING, plan_in_progress=True), True),
        (
            kept(
                ROUTING,
                workers=tuple(
                    replace(w, condition=WorkerCondition.UNREACHABLE) for w in observed(0.0, LONG, 2, 3).workers
                ),
            ),
            True,
        ),
    ],
)
def test_the_memory_is_saved_soon_where_an_explanation_would_tell_something_else(
    after: ServiceRecord, news: bool
) -> None:
    assert (after.summary() != kept(ROUTING).summary()) is news


def unread(source: Source, readings: dict[str, Reading | None], at_s: float, stale_after_s: float) -> Unread:
    """Of pages that are all new."""
    return source.unread(readings, at_s, stale_after_s, lost_s={})


def test_a_gateway_that_cannot_be_read_for_long_is_late_unless_none_can() -> None:
    read, source = Reading({}, None, 0.0), asked_for_no_page()
    both: dict[str, Reading | None] = {"a": read, "b": read}
    assert source.unread(both, 0.0, 15.0, lost_s={"b": 15.0}) == Unread()
    assert source.unread(both, 2.5, 15.0, lost_s={"b": 17.5}) == Unread(late=("b",))
    assert source.unread(both, 20.0, 15.0, lost_s={"a": 17.5, "b": 35.0}) == Unread()
    assert source.unread({**both, "m": read}, 20.0, 15.0, "m", lost_s={"a": 17.5, "b": 35.0}) == Unread()
    four: dict[str, Reading | None] = dict.fromkeys(("d", "c", "b", "a"), read)
    assert source.unread(four, 20.0, 15.0, lost_s={"b": 16.0, "c": 16.0, "d": 16.0}).late == ("d", "c", "b")


def test_a_gateway_that_is_not_ready_is_read_only_while_it_answers() -> None:
    """What it had is sent to the others now: its old pages would be counted beside theirs."""

    def target(is_ready: bool) -> Any:
        return SimpleNamespace(is_ready=is_ready)

    gateways = {"serves": target(True), "crashed": target(False), "drains": target(False), "old": target(False)}
    ages_s = {"serves": 100.0, "crashed": 2.5, "drains": 2.5, "old": 20.5}
    source: Any = SimpleNamespace(failed=lambda name: name in ("serves", "crashed"), age_s=ages_s.__getitem__)
    assert {*exclude_ended_gateways(gateways, source, 20.0)} == {"serves", "drains"}
    assert ages_of_failed_s(source, gateways) == {"serves": 100.0, "crashed": 2.5}


def test_a_gateway_is_new_for_no_longer_than_metrics_may_be_old() -> None:
    read, source = Reading({}, None, 0.0), asked_for_no_page()
    assert unread(source, {"a": None}, 0.0, 15.0) == Unread(first=("a",))
    assert unread(source, {"a": read, "b": None}, 10.0, 15.0) == Unread(first=("b",)), "not all were read yet"
    assert unread(source, {"a": read, "b": None}, 26.0, 15.0) == Unread(late=("b",)), "what never gets a second page"
    assert unread(source, {"a": read, "b": None, "c": None}, 30.0, 15.0) == Unread(new=("c",), late=("b",))
    assert unread(source, {"a": read, "b": read, "c": None}, 45.0, 15.0) == Unread(new=("c",))
    assert unread(source, {"a": read, "b": read, "c": None}, 46.0, 15.0) == Unread(late=("c",))
    assert unread(source, {"d": None}, 50.0, 15.0) == Unread(first=("d",), gone=3), "nothing is known of the load"
    assert unread(source, {"d": read}, 51.0, 15.0) == Unread()
    assert unread(source, {}, 52.0, 15.0) == Unread(gone=1)


async def test_an_address_that_is_not_allowed_is_not_asked_after_its_secret_could_not_be_read() -> None:
    """The policy names an address of the cluster and a Secret that is missing, then no Secret any more."""

    class Secrets:
        answers: ClassVar[list[PrometheusFailed | None]] = [PrometheusFailed("there is no Secret"), None]

        async def access(self, namespace: str, metrics: object) -> None:
            if (error := self.answers.pop(0)) is not None:
                raise error

    asked = []
    server = web.Application()

    async def answer(request: web.Request) -> web.Response:
        asked.append(request.path)
        return web.json_response({"status": "success", "data": {"resultType": "vector", "result": []}})

    server.router.add_route("*", "/{path:.*}", answer)
    async with TestServer(server) as internal:
        metrics = {"prometheusUrl": str(internal.make_url("")), "staleAfterSeconds": 40}
        named = cast(PlannerPolicy, SimpleNamespace(spec=policy(metrics=metrics)))
        parts: Any = {"scraper": Scraper(1.0), "secrets": Secrets()}
        source = Source("", timeout_s=1.0, clock=SYSTEM_CLOCK, prometheus_urls=["https://prometheus.example"], **parts)
        target = cast(Target, SimpleNamespace(pod=SimpleNamespace(metadata=SimpleNamespace(name="chat-gateway-1"))))
        for _ in range(2):
            assert (await source.read("default", named, {"gateway": target})).failed("gateway")
        source.close()
    assert asked == []
