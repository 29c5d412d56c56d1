"""An ElasticGroup in a cluster, through kubectl and its gateway: it grows, shrinks and ends, and no answer is lost."""

import asyncio
import json
import random
import statistics
import time
from collections.abc import AsyncIterator
from dataclasses import replace
from itertools import islice
from pathlib import Path

import pytest
import yaml

from engine.elastic.ties import ties_of_float32
from engine.product.elastic_service import Group
from pointsman.local.cluster import LocalCluster
from pointsman.local.traffic import (
    Endpoint,
    Mix,
    Record,
    closed_loop,
    compare,
    prompts,
    running_load,
)
from waiting import eventually

NAME = "long-chat"
MODEL_NAME = "tiny"
SLOTS = 3000
MIX = Mix(
    lengths=[range(1, 40), range(100, 400), range(1200, 2000)],
    max_tokens=range(16, 65),
    token_ids_share=0.3,
    vocabulary=range(94),  # printable: bytes that are no UTF-8 would make texts whose parts depend on their chunks
)


POINTS, SEED = 50, 20260101
REPLACED_AFTER = 5  # deaths: a kubelet waits longer before each start, up to five minutes


@pytest.mark.verify
@pytest.mark.verify_elastic
@pytest.mark.timeout(3600)
async def test_whatever_is_killed_when_every_answer_is_that_of_one_engine_and_nothing_leaks(
    group: Group, model: Path, plain: Endpoint, tmp_path: Path, findings: dict[str, object]
) -> None:
    rng, killed = random.Random(SEED), list[str]()
    url = group.cluster.gateway_url(NAME)
    assert url is not None
    each = 6
    asked = list(islice(prompts(MIX, seed=SEED), POINTS * each))
    served: list[Record] = []
    broken = 0
    async with Endpoint(url, MODEL_NAME, timeout_seconds=300, retries=20) as ours:
        for point in range(POINTS):
            part = asked[each * point : each * (point + 1)]
            answering = asyncio.create_task(closed_loop(ours, part, clients=4))
            await asyncio.sleep(rng.uniform(0.1, 2.5))
            killed.append(rng.choice(("0", "1", "manager", "operator")))
            before = group.starts(killed[-1])
            group.kill(killed[-1])
            records = await answering
            await started(group, killed[-1], other_than=before)
            if killed.count(killed[-1]) % REPLACED_AFTER == 0:
                before = group.starts(killed[-1])
                group.replace(killed[-1])
                await started(group, killed[-1], other_than=before)
            await eventually(lambda: group.ready(2), f"two instances work after the death of {killed[-1]}")
            # A request at whose answer two managers died is sent to no third one: its client asks again.
            again = [record.prompt for record in records if not record.served]
            assert not again or killed[-1] == "manager", (killed[-1], [record.error for record in records])
            broken += len(again)
            served += [record for record in records if record.served] + await closed_loop(ours, again, clients=4)
    comparison = compare(await closed_loop(plain, asked, clients=2), served)
    ties = ties_of_float32(group.cluster.environment, model, comparison, served, tmp_path)
    await eventually(lambda: group.get()["status"]["slots"] == {"total": 2 * SLOTS, "free": 2 * SLOTS}, "no slot leaks")
    findings.update(
        kills=len(killed), of={part: killed.count(part) for part in sorted(set(killed))}, answers=comparison.compared,
        different_from_one_server=len(comparison.differences), ties_of_float32=ties,
        streams_that_ended_with_their_manager=broken, seed=SEED,
    )  # fmt: skip


SCALING_SEED = 20260202
TRUE = {"Ready": "True", "Available": "True", "Progressing": "False", "Degraded": "False", "GatewayReady": "True"}


@pytest.mark.verify
@pytest.mark.verify_elastic
@pytest.mark.timeout(3600)
async def test_manager_and_operator_are_killed_while_the_group_scales_and_it_converges_and_no_answer_is_lost(
    group: Group, model: Path, plain: Endpoint, tmp_path: Path, findings: dict[str, object]
) -> None:
    rng, killed = random.Random(SCALING_SEED), list[str]()
    url = group.cluster.gateway_url(NAME)
    assert url is not None
    replicas, scaling = 2, 0
    converged_s: list[float] = []
    managers_died_s: list[float] = []
    async with Endpoint(url, MODEL_NAME, timeout_seconds=300, retries=20) as ours:
        async with running_load(ours, prompts(MIX, seed=SCALING_SEED), clients=3) as traffic:
            for _ in range(POINTS):
                replicas = rng.choice([count for count in (1, 2, 3) if count != replicas])
                group.kubectl("scale", "eg", NAME, f"--replicas={replicas}")
                await asyncio.sleep(rng.uniform(0.0, 2.5))
                killed.append(rng.choice(("manager", "operator")))
                scaling += not group.ready(replicas)
                before = group.starts(killed[-1])
                killed_s = time.monotonic()
                group.kill(killed[-1])
                if killed[-1] == "manager":
                    managers_died_s.append(killed_s)
                await started(group, killed[-1], other_than=before)
                await agreed(group, replicas)
                converged_s.append(time.monotonic() - killed_s)
                print(f"{killed_s:.1f} s: killed {killed[-1]} at {replicas} instances")
                if killed.count(killed[-1]) % REPLACED_AFTER == 0:
                    before = group.starts(killed[-1])
                    group.replace(killed[-1])
                    await started(group, killed[-1], other_than=before)
                    await agreed(group, replicas)
        print(*((record.started_s, record.total_seconds, record.error) for record in traffic.failed), sep="\n")
        # The gateway takes a request at whose answers two workers died for what kills them: its client asks again.
        for record in traffic.failed:
            assert "2 workers failed" in str(record.error), record.error
            ended_s = record.started_s + record.total_seconds
            assert sum(record.started_s < died_s < ended_s for died_s in managers_died_s) >= 2, record.error
        again = await closed_loop(ours, [record.prompt for record in traffic.failed], clients=2)
    served = [*(record for record in traffic.records if record.served), *again]
    alone = await closed_loop(plain, [record.prompt for record in served], clients=2)
    comparison = compare(alone, served)
    ties = ties_of_float32(group.cluster.environment, model, comparison, served, tmp_path)
    slots = replicas * SLOTS
    await eventually(lambda: group.get()["status"]["slots"] == {"total": slots, "free": slots}, "no slot leaks")
    assert "InstanceLost" not in group.events(), "no instance was killed"
    findings.update(
        kills=len(killed), of={part: killed.count(part) for part in sorted(set(killed))},
        kills_before_the_group_had_scaled=scaling, answers=comparison.compared,
        answers_that_two_deaths_ended=len(traffic.failed), different_from_one_server=len(comparison.differences),
        ties_of_float32=ties,
        seconds_to_converge={"median": round(statistics.median(converged_s), 1), "max": round(max(converged_s), 1)},
        seed=SCALING_SEED,
    )  # fmt: skip


async def agreed(group: Group, replicas: int) -> None:
    """Wait until pods, manager and status say that there are ``replicas`` instances, and the conditions are `TRUE`."""
    await eventually(lambda: agree(group, replicas), f"pods, manager and status have {replicas} instances")


async def agree(group: Group, replicas: int) -> bool:
    """Whether they do now."""
    found = group.get()
    status = found["status"]
    listed = group.kubectl("get", "pods", "-l", status["selector"], "-o", "json")
    ready = [
        all(each["ready"] for each in pod["status"].get("containerStatuses", [{"ready": False}]))
        and "deletionTimestamp" not in pod["metadata"]
        for pod in json.loads(listed)["items"]
    ]
    counts = {"desired": replicas, "existing": replicas, "ready": replicas, "joined": replicas, "draining": 0}
    conditions = {each["type"]: each["status"] for each in status["conditions"]}
    return (
        ready == [True] * replicas
        and status["observedGeneration"] == found["metadata"]["generation"]
        and status["instances"] == counts
        and status.get("slots", {}).get("total") == replicas * SLOTS
        and conditions == TRUE
        and await group.instances_of_manager() == replicas
    )


async def started(group: Group, part: str, *, other_than: dict[str, int]) -> None:
    """Wait until that part is ready in another container; the group's own status may still be that of before."""
    try:
        await eventually(lambda: group.starts(part) not in ({}, other_than), f"{part} is started again")
    except AssertionError:
        print(group.kubectl("get", "pods", "-o", "wide"), group.kubectl("get", "events"), sep="\n")
        print("the node's log:", group.cluster.node.log.read_text()[-3000:], sep="\n")
        print(group.kubectl("describe", "pods", "-l", f"pointsman.dev/service={group.name}"))
        for pod in group.kubectl("get", "pods", "-l", f"pointsman.dev/service={group.name}", "-o", "name").split():
            print(pod, group.kubectl("logs", pod, "--tail=30"), sep="\n")
        raise


@pytest.fixture
async def group(cluster: LocalCluster, model: Path) -> AsyncIterator[Group]:
    """A group of two instances, Ready."""
    manifest = yaml.safe_load((Path(__file__).parents[3] / "examples" / "elastic.yaml").read_text())
    manifest["metadata"]["name"] = NAME
    spec = manifest["spec"]
    spec["model"] = {"source": f"file://{model}", "servedName": MODEL_NAME}
    spec["engine"]["args"] = ["--dtype=float32", "--max-model-len=4096"]
    spec["instance"] = {"gpus": 0, "kvTokens": SLOTS}
    spec["instances"] = {"replicas": 2, "minReplicas": 1, "maxReplicas": 3}
    spec["parallelism"] = {"maxDegree": 3}
    spec["drain"] = {"timeoutSeconds": 60}
    running = Group(cluster, NAME)
    running.kubectl("apply", "-f", "-", stdin=yaml.safe_dump(manifest))
    await eventually(lambda: running.ready(2), "two instances work")
    yield running
    running.kubectl("delete", "eg", NAME, "--ignore-not-found", "--wait=false")
    await eventually(lambda: "No resources" in pods_in_words(running), "the group is gone")


def pods_in_words(group: Group) -> str:
    """What kubectl says of the group's pods."""
    listed = group.kubectl("get", "pods", "-l", f"pointsman.dev/service={group.name}", "--no-headers")
    return listed or "No resources found"


async def test_a_group_is_scaled_and_deleted_under_load_and_every_answer_is_that_of_one_engine(
    group: Group, model: Path, plain: Endpoint, tmp_path: Path
) -> None:
    *asked, one, two, three, four = islice(prompts(MIX, seed=5), 44)
    url = group.cluster.gateway_url(NAME)
    assert url is not None
    assert group.get()["status"]["endpoint"] == f"http://{NAME}-gateway.default.svc:8000/v1"

    async def scale() -> None:
        await asyncio.sleep(1)
        group.kubectl("scale", "eg", NAME, "--replicas=3")
        await eventually(lambda: group.ready(3), "a third instance works")
        group.kubectl("scale", "eg", NAME, "--replicas=1")
        await eventually(lambda: group.ready(1), "two instances have left")

    async with Endpoint(url, MODEL_NAME) as ours:
        served, _ = await asyncio.gather(closed_loop(ours, asked, clients=4), scale())
    alone = await closed_loop(plain, asked, clients=2)
    ties_of_float32(group.cluster.environment, model, compare(alone, served), served, tmp_path)
    # Events are written beside the status, so perhaps after it.
    await eventually(lambda: {"InstanceDrained", "InstanceJoined"} <= group.events().keys(), "it is told in Events")
    events = group.events()
    print(group.kubectl("get", "eg,pods"), events)
    assert events["InstanceDrained"].endswith("handed over its requests and stopped")
    assert "joined the manager" in events["InstanceJoined"]
    assert "InstanceLost" not in events
    assert group.restarts() == 0
    table = group.kubectl("get", "eg", NAME).splitlines()
    assert table[0].split() == ["NAME", "INSTANCES", "READY", "JOINED", "DEGREES", "FREE", "REASON", "AGE"]
    assert table[1].split()[:4] == [NAME, "1", "1", "1"]

    last = [replace(each, stream=True, max_tokens=400, ignore_eos=True) for each in (one, two, three, four)]
    begun = asyncio.Event()
    async with Endpoint(url, MODEL_NAME) as ours:
        serving = asyncio.gather(*(ours.send(each, on_token=begun.set) for each in last))
        async with asyncio.timeout(60):
            await begun.wait()
        group.kubectl("delete", "eg", NAME, "--wait=false")
        assert not serving.done()
        answers = await serving
        alone = await closed_loop(plain, last, clients=2)
    ties_of_float32(group.cluster.environment, model, compare(alone, answers), answers, tmp_path)
