"""What a user sees first: a service that becomes ready, answers right, and explains itself."""

import json

from engine.product.served import MIX, Served, errors, some
from pointsman.api.protocol.names import Role
from pointsman.local.traffic import Endpoint, closed_loop, compare, summarise
from waiting import eventually


async def test_the_example_becomes_ready_and_says_so_in_words_a_newcomer_reads(chat: Served) -> None:
    header, row = chat.kubectl("get", "llms", "chat").splitlines()
    assert header.split() == ["NAME", "WORKERS", "READY", "REASON", "ENDPOINT", "AGE"]
    assert row.split()[:4] == ["chat", "1P2D", "True", "AsDesired"]
    pools = {line.split()[0]: line.split()[1:7] for line in chat.kubectl("get", "wpool").splitlines()}
    assert pools["NAME"] == ["SERVICE", "ROLE", "DESIRED", "EXISTING", "READY", "ROUTABLE"]
    assert pools["chat-prefill"] == ["chat", "Prefill", "1", "1", "1", "1"]
    assert pools["chat-decode"] == ["chat", "Decode", "2", "2", "2", "2"]


async def test_events_tell_how_each_worker_came_to_serve(chat: Served) -> None:
    view = await chat.look()

    def untold() -> set[tuple[str, str]]:
        listed = json.loads(chat.kubectl("get", "events", "-o", "json"))["items"]
        notes = [(item["reason"], item["message"]) for item in listed if item["involvedObject"]["name"] == chat.name]
        return {
            (worker.name, reason)
            for worker in view.workers
            for reason in ("WorkerCreated", "RoleGiven", "WorkerRoutable")
            if not any(about == reason and worker.name in message for about, message in notes)
        }

    # Events are written beside the status, so perhaps after it.
    await eventually(lambda: not untold(), "each worker's way is told")


async def test_answers_are_token_exact_whether_the_prompt_was_computed_locally_or_remotely(
    chat: Served, plain: Endpoint
) -> None:
    asked = some(MIX, 32, seed=11)
    alone = await closed_loop(plain, asked, clients=1)
    together = await closed_loop(plain, asked, clients=8)
    assert compare(alone, together).exact, "the reference differs from itself: nothing could be proved with it"
    answers = await closed_loop(chat.endpoint, asked, clients=6)
    assert errors(answers) == []
    comparison = compare(alone, answers)
    assert comparison.exact, comparison.differences
    summary = summarise(answers)
    assert summary.remote_prefills >= 8
    assert summary.local_prefills >= 8
    prefill = {worker.name for worker in (await chat.look()).routable(Role.PREFILL)}
    assert set(summary.prefill_workers) == prefill, "prompts are computed remotely by prefill workers and no others"
