"""In which order the API server gets what one pass decided of pods."""

import asyncio
from typing import Any, cast

from fakes.clock import FakeClock
from pointsman.api.protocol.names import ROUTABLE_LABEL, Role
from pointsman.kube.client import Kube
from pointsman.kube.events import EventRecorder
from pointsman.kube.resources import Resource
from pointsman.operator.announce import Announcer
from pointsman.operator.apply import Writer
from pointsman.operator.core.pod_changes import add_to_routing, begin_drain, claim_worker, release
from pointsman.operator.core.snapshot import DrainReason, SwitchClaim
from pointsman.operator.execute import Executor
from pointsman.operator.expectations import Expectations
from pointsman.operator.metrics import OperatorMetrics
from unit.operator.scenes import snapshot, worker


class SlowApiServer:
    """Takes patches of pods, and answers when a test says so."""

    def __init__(self) -> None:
        self.patches: list[tuple[str, dict[str, Any]]] = []
        self.answers = asyncio.Event()

    async def patch(self, _: Resource, name: str, __: str, body: dict[str, Any], *, uid: str) -> dict[str, Any]:
        self.patches.append((name, body["metadata"]))
        await self.answers.wait()
        return {"metadata": {"name": name, "uid": uid}}


def executor(server: SlowApiServer) -> Executor:
    kube, none = cast(Kube, server), cast(Any, None)
    metrics = OperatorMetrics()
    announcer = Announcer(EventRecorder(kube, controller="tests", instance="0"), metrics)
    return Executor(Writer(kube, Expectations(), none, lambda: True), none, none, none, announcer, metrics, none)


async def test_changes_of_one_pod_are_written_in_turn_and_those_of_others_beside_them() -> None:
    server, first, second = SlowApiServer(), worker("a"), worker("b")
    claim = SwitchClaim(uid="s", source=Role.DECODE, target=Role.PREFILL)
    actions = [
        add_to_routing(first, None, "it is verified"),
        release(second, "the switch ended"),
        begin_drain(first, DrainReason.SCALE_DOWN, 100.0, "one worker too many"),
        claim_worker(second, claim, "another switch takes it"),
    ]
    passed = asyncio.create_task(executor(server).execute({}, snapshot(first, second), actions, "token"))
    await FakeClock().settle()
    assert [name for name, _ in server.patches] == ["a", "b"], "the later change of each waits for the earlier one"
    server.answers.set()
    assert (await passed).done == 4
    assert [body["labels"].get(ROUTABLE_LABEL) for name, body in server.patches if name == "a"] == ["true", "false"]
    marks = [list(body["annotations"].values()) for name, body in server.patches if name == "b"]
    assert marks == [[None], [str(claim)]]
