"""Role switches of live workers under load: quick, lossless, token-exact, and right after every one."""

import asyncio
import time
from collections.abc import AsyncIterator
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Any

import pytest

from engine.product.served import MIX, PREFILL_HEAVY, Served, errors, some, stream_of
from fixtures.kube_calls import WatchedMirror
from pointsman.api.protocol.names import LANGUAGE_ROLES, Role
from pointsman.api.v1alpha1.roleswitch import RoleSwitch, SwitchPhase, SwitchReason
from pointsman.kube.client import Kube
from pointsman.kube.resources import ROLE_SWITCHES
from pointsman.local.observation import ServiceView
from pointsman.local.traffic import Endpoint, closed_loop, compare, prompts, running_load

EXAMPLE = Path(__file__).parents[3] / "examples" / "role-switch.yaml"
DEADLINE_SECONDS = 120.0
LONG_ANSWER_TOKENS = 1_500
BY_LABEL = {Role.PREFILL: Role.DECODE, Role.DECODE: Role.PREFILL}


@dataclass
class Switches:
    """RoleSwitch objects of the namespace default, made and awaited as a user would."""

    kube: Kube
    seen: WatchedMirror[RoleSwitch]

    async def create(self, source: Role, **fields: Any) -> str:
        """``kubectl create -f examples/role-switch.yaml`` in other words; returns the name."""
        body = {
            "apiVersion": "pointsman.dev/v1alpha1",
            "kind": "RoleSwitch",
            "metadata": {"generateName": "by-hand-", "namespace": "default"},
            "spec": {"serviceRef": {"name": "chat"}, "from": source, "to": BY_LABEL[source], **fields},
        }
        made = await self.kube.create(ROLE_SWITCHES, body)
        name: str = made["metadata"]["name"]
        return name

    async def ended(self, name: str) -> RoleSwitch:
        """The switch, once it has ended."""

        def has_ended() -> bool:
            found = self.seen.get(name, "default")
            return found is not None and found.status.phase is not None and found.status.phase.ended

        async with asyncio.timeout(DEADLINE_SECONDS):
            await self.seen.until(has_ended)
        found = self.seen.get(name, "default")
        assert found is not None
        return found

    async def run(self, source: Role, **fields: Any) -> tuple[RoleSwitch, float]:
        """Create one and await its end; with the seconds that took for whoever waits outside."""
        began = time.monotonic()
        ended = await self.ended(await self.create(source, **fields))
        return ended, time.monotonic() - began


@pytest.fixture
async def switches(chat: Served) -> AsyncIterator[Switches]:
    async with await Kube.connect(chat.cluster.kubeconfig, field_manager="pointsman-tests") as kube:
        seen = WatchedMirror(kube, ROLE_SWITCHES, RoleSwitch, namespace="default")
        watching = asyncio.create_task(seen.run())
        await seen.synced.wait()
        yield Switches(kube, seen)
        watching.cancel()
        await asyncio.gather(watching, return_exceptions=True)


async def counts(chat: Served) -> tuple[int, int]:
    pools = {pool.spec.role: pool.spec.replicas for pool in (await chat.look()).pools}
    return pools[Role.PREFILL], pools[Role.DECODE]


async def series(chat: Served, switches: Switches, plain: Endpoint, number: int) -> dict[str, object]:
    """So many switches in a row, there and back, under a load of short answers; what was found."""
    asked = some(MIX, 200, seed=81)
    pods = {worker.pod.metadata.uid for worker in (await chat.look()).workers}
    took = []
    async with running_load(chat.endpoint, prompts(MIX, seed=81), clients=4) as traffic:
        await traffic.answered(4, timeout_seconds=DEADLINE_SECONDS)
        for step in range(number):
            source = Role.DECODE if step % 2 == 0 else Role.PREFILL
            ended, seconds = await switches.run(source)
            assert ended.status.phase is SwitchPhase.COMPLETED, ended.status
            assert await counts(chat) == ((2, 1) if source is Role.DECODE else (1, 2))
            took.append((ended.status.seconds, round(seconds, 2)))
        await traffic.answered(4, timeout_seconds=DEADLINE_SECONDS)
    print(f"switches took (status.seconds, outside): {took}")
    assert errors(traffic.records) == []
    answered = {record.prompt.index: record for record in traffic.records}
    expected = await closed_loop(plain, [prompt for prompt in asked if prompt.index in answered][:40], clients=4)
    found = [answered[record.prompt.index] for record in expected]
    assert compare(expected, found).exact, compare(expected, found).differences
    assert {worker.pod.metadata.uid for worker in (await chat.look()).workers} == pods, "no pod was replaced"
    outside = [seconds for _, seconds in took]
    return {
        "switches": number,
        "requests": len(traffic.records),
        "failed_requests": len(traffic.failed),
        "compared_with_one_engine": len(expected),
        "median_seconds_from_outside": median(outside),
        "slowest_seconds_from_outside": max(outside),
    }


async def test_four_switches_in_a_row_under_load_lose_no_request_and_no_token(
    chat: Served, switches: Switches, plain: Endpoint
) -> None:
    await series(chat, switches, plain, 4)


@pytest.mark.verify
async def test_twenty_switches_in_a_row_under_load_lose_no_request_and_no_token(
    chat: Served, switches: Switches, plain: Endpoint, findings: dict[str, object]
) -> None:
    findings.update(await series(chat, switches, plain, 20))


@pytest.mark.parametrize("drain_first", [True, False])
async def test_long_streams_finish_whether_they_are_awaited_or_not(
    chat: Served, switches: Switches, drain_first: bool
) -> None:
    begun = [asyncio.Event() for _ in range(4)]
    async with asyncio.TaskGroup() as group:
        streams = [
            group.create_task(chat.endpoint.send(stream_of(LONG_ANSWER_TOKENS, 90 + number), on_token=event.set))
            for number, event in enumerate(begun)
        ]
        async with asyncio.timeout(DEADLINE_SECONDS):
            await asyncio.gather(*(event.wait() for event in begun))
        ended, _ = await switches.run(Role.DECODE, drainFirst=drain_first)
        running = sum(not stream.done() for stream in streams)
    assert ended.status.phase is SwitchPhase.COMPLETED, ended.status
    answers = [stream.result() for stream in streams]
    assert errors(answers) == []
    assert [len(answer.token_ids or ()) for answer in answers] == [LONG_ANSWER_TOKENS] * 4
    if not drain_first:
        on_it = [answer for answer in answers if answer.worker == ended.status.worker]
        assert running or not on_it, "the switch did not wait for the old streams"
    back, _ = await switches.run(Role.PREFILL, workerName=ended.status.worker)
    assert back.status.phase is SwitchPhase.COMPLETED, back.status


@pytest.mark.verify
@pytest.mark.parametrize("drain_first", [True, False])
async def test_a_switch_takes_at_most_three_seconds_beyond_the_longest_stream_it_waits_for(
    chat: Served, switches: Switches, drain_first: bool, findings: dict[str, object]
) -> None:
    beyond: dict[str, list[float]] = {role.label: [] for role in LANGUAGE_ROLES}
    for step in range(6):
        source = Role.DECODE if step % 2 == 0 else Role.PREFILL
        begun = [asyncio.Event() for _ in range(4)]
        async with running_load(chat.endpoint, prompts(PREFILL_HEAVY, seed=95 + step), clients=2) as traffic:
            streams = [
                asyncio.create_task(chat.endpoint.send(stream_of(LONG_ANSWER_TOKENS, number), on_token=event.set))
                for number, event in enumerate(begun)
            ]
            async with asyncio.timeout(DEADLINE_SECONDS):
                await asyncio.gather(*(event.wait() for event in begun))
            created_s = time.monotonic()
            ended, seconds = await switches.run(source, drainFirst=drain_first)
            answers = [await stream for stream in streams]
        assert ended.status.phase is SwitchPhase.COMPLETED, ended.status
        assert errors([*answers, *traffic.records]) == []
        on_it = [a.started_s + a.total_seconds for a in answers if a.worker == ended.status.worker]
        waited_s = max([created_s, *on_it]) - created_s if drain_first else 0.0
        beyond[source.label].append(round(seconds - waited_s, 2))
        assert seconds - waited_s <= 3.0, (ended.status, waited_s)
    findings.update(seconds_beyond_by_role_left=beyond, drain_first=drain_first)


async def test_a_container_that_dies_after_a_switch_by_hand_comes_back_in_its_new_role(
    chat: Served, switches: Switches
) -> None:
    made = chat.kubectl("create", "-f", str(EXAMPLE), "-o", "name").strip()
    chat.kubectl("wait", "--for=condition=Complete", made, "--timeout=60s")
    header, row = chat.kubectl("get", made).splitlines()
    assert header.split() == ["NAME", "SERVICE", "WORKER", "FROM", "TO", "PHASE", "SECONDS", "REASON", "AGE"]
    assert row.split()[3:6] == ["Decode", "Prefill", "Completed"]
    ended = await switches.ended(made.partition("/")[2])
    assert ended.status.worker is not None
    before = chat.kill(ended.status.worker)  # it may have been killed by an earlier test too

    def serves_again(view: ServiceView) -> bool:
        worker = next(worker for worker in view.workers if worker.name == ended.status.worker)
        engine = worker.pod.container("engine")
        restarted = engine is not None and engine.restart_count > before
        return restarted and worker.routable and worker.state is not None and worker.state.role is Role.PREFILL

    view = await chat.until("the restarted worker prefills", serves_again)
    assert len(view.routable(Role.PREFILL)) == 2
    back, _ = await switches.run(Role.PREFILL)
    assert back.status.phase is SwitchPhase.COMPLETED, back.status


async def test_the_last_routable_worker_of_a_role_is_refused_with_a_sentence(chat: Served, switches: Switches) -> None:
    ended, _ = await switches.run(Role.PREFILL)
    assert ended.status.phase is SwitchPhase.FAILED
    assert ended.status.reason in (SwitchReason.BELOW_MINIMUM, SwitchReason.LAST_ROUTABLE_WORKER)
    assert await counts(chat) == (1, 2)


async def test_a_switch_outlives_the_operator_that_began_it(chat: Served, switches: Switches) -> None:
    async with running_load(chat.endpoint, prompts(MIX, seed=85), clients=3) as traffic:
        await traffic.answered(3, timeout_seconds=DEADLINE_SECONDS)
        name = await switches.create(Role.DECODE)

        def begun() -> bool:
            found = switches.seen.get(name, "default")
            return found is not None and found.status.phase is not None

        async with asyncio.timeout(DEADLINE_SECONDS):
            await switches.seen.until(begun)
        chat.kill_part("operator")
        ended = await switches.ended(name)
        assert ended.status.phase is SwitchPhase.COMPLETED, ended.status
    assert errors(traffic.records) == []
    assert await counts(chat) == (2, 1)
    back, _ = await switches.run(Role.PREFILL)
    assert back.status.phase is SwitchPhase.COMPLETED, back.status
