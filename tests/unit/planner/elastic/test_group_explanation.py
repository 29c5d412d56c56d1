"""What ``pointsman explain`` says of an elastic group, from a look that was saved and read again."""

import asyncio
from dataclasses import replace
from datetime import UTC, datetime
from typing import Any

import pytest

from messages.style import faults
from pointsman.api.v1alpha1.plan import Plan
from pointsman.kube.resources import Resource
from pointsman.planner import group_memory, memory
from pointsman.planner.core.elastic.decide import GROUP_STATE_VERSION, GroupState, decide
from pointsman.planner.explain.group import GroupTold, group_explanation
from pointsman.planner.group_memory import GroupLast
from unit.planner.elastic.scenes import BOUNDS, HEAVY, POLICY, seen

OWNER = {"uid": "u"}


class Api:
    """The one ConfigMap."""

    def __init__(self) -> None:
        self.body: dict[str, Any] | None = None

    async def find(self, _: Resource, __: str, ___: str) -> dict[str, Any] | None:
        return self.body

    async def apply(self, _: Resource, body: dict[str, Any]) -> None:
        self.body = body


def told(last: GroupLast | None, after_s: float = 1.0, **more: Any) -> str:
    at_s = last.observation.seen.at_s if last is not None else 0.0
    now = datetime.fromtimestamp(at_s + after_s, UTC)
    plans: list[Plan] = []
    whole = GroupTold("long-chat", "models", "chat", POLICY, now, last, plans, None, "Not evaluated yet.")
    text = group_explanation(replace(whole, **more))
    assert [(line, fault) for line in text.splitlines() for fault in faults(line)] == []
    return text


def looked() -> tuple[GroupState, GroupLast]:
    observation = seen(1000.0, HEAVY, 1)
    state, decision = decide(GroupState(), observation, POLICY, BOUNDS, 1000.0)
    return state, GroupLast(observation, decision)


def test_what_was_seen_expected_considered_and_chosen_is_told() -> None:
    _, last = looked()
    text = told(last)
    assert text.startswith("models/long-chat: policy chat, mode Active; evaluated 1 s ago\n")
    assert "1 of 1 instance serves" in text
    assert "12.00 requests/s of 2000 prompt and 200 answer tokens" in text
    assert "0 requests wait; 80000 of 100000 KV slots are free" in text
    assert f"→ {last.decision.instances} instances  scale-out" in text
    assert f"change to {last.decision.instances} instances (InstancesShort)" in text
    assert "Problems" not in text
    assert "Inputs" not in text
    inputs = told(last, shows_inputs=True).split("Inputs, by the names in spec.inputs of a plan\n")[1]
    numbers = {
        name: (float(value), *unit) for name, value, *unit in map(str.split, inputs.split("\n\n")[0].split("\n"))
    }
    assert numbers["highRatePerSecond"] == (12.0, "requests/s")
    assert numbers["instancesNeeded"] == (float(last.decision.instances), "instances")
    assert len(numbers["expectedTokens"]) == 1, "a share of answers"
    assert "not saved an evaluation for 600 s" in told(last, after_s=600.0)


def test_without_a_look_it_is_said_why() -> None:
    assert "\n\nNot evaluated yet.\n\n" in told(None)


def test_state_and_last_look_survive_a_restart_also_where_nothing_was_ever_read() -> None:
    async def save_and_load() -> None:
        api, (state, last) = Api(), looked()
        never = replace(last.observation, seen=replace(last.observation.seen, age_s=float("inf")))
        await group_memory.save(api, OWNER, "models", "long-chat", state, 7, GroupLast(never, last.decision))  # type: ignore[arg-type]
        assert await group_memory.load(api, "models", "long-chat", "u") == (state, 7)  # type: ignore[arg-type]
        found = await group_memory.load_last(api, "models", "long-chat", "u")  # type: ignore[arg-type]
        assert isinstance(found, GroupLast)
        assert found.decision == last.decision
        assert found.observation.seen.age_s == memory.NEVER_S
        api.body = {"data": {"state.json": "{", "last.json": "{", "sequence": "7"}}
        assert await group_memory.load(api, "models", "long-chat", "u") == (GroupState(), 7)  # type: ignore[arg-type]
        assert await group_memory.load_last(api, "models", "long-chat", "u") == memory.UNREADABLE  # type: ignore[arg-type]

    asyncio.run(save_and_load())


def test_a_state_of_another_version_is_discarded_with_a_line_in_the_log_and_the_number_is_kept(
    caplog: pytest.LogCaptureFixture,
) -> None:
    async def save_and_load() -> None:
        api, (state, last) = Api(), looked()
        earlier = replace(state, version=GROUP_STATE_VERSION - 1)
        for saved, kept in ((state, state), (earlier, GroupState())):
            await group_memory.save(api, OWNER, "models", "long-chat", saved, 7, last)  # type: ignore[arg-type]
            assert await group_memory.load(api, "models", "long-chat", "u") == (kept, 7)  # type: ignore[arg-type]

    with caplog.at_level("INFO"):
        asyncio.run(save_and_load())
    (line,) = (record for record in caplog.records if record.name == "pointsman.planner.group_memory")
    assert line.getMessage() == "saved state of another version, it is discarded"
    found = {name: line.__dict__[name] for name in ("group", "version", "expected")}
    assert found == {"group": "models/long-chat", "version": 1, "expected": 2}
