"""The engine as an ASGI application: whole answers, cancellation, and the gauges in the registry."""

import asyncio
from collections.abc import AsyncIterator
from types import SimpleNamespace
from typing import Any

import pytest
from prometheus_client import CollectorRegistry, Counter, Gauge

from fixtures.asgi_engine import Fabric, SmallEngine, answer_to
from pointsman.workers import answer_times
from pointsman.workers.core.prompts import COMPLETIONS_PATH, prefill_leg
from pointsman.workers.engine import AsgiEngine, Receive, Scope, Send
from pointsman.workers.errors import EngineUnavailable
from pointsman.workers.types import EngineFacts, EngineLoad
from waiting import eventually


def over(app: SmallEngine, **parts: Any) -> AsgiEngine:
    return AsgiEngine(app, **{"registry": CollectorRegistry(), **parts})


async def test_a_request_is_a_call_and_its_answer_whole() -> None:
    app = SmallEngine("e", Fabric())
    answer = await over(app).post(COMPLETIONS_PATH, {"prompt": [1, 2], "max_tokens": 3}, request_id="r")
    assert (answer.status, answer.finish_reason) == (200, "length")
    assert answer.body["choices"][0]["token_ids"] == answer_to([1, 2], 3)


async def test_a_cancelled_call_aborts_the_request_in_the_engine() -> None:
    app = SmallEngine("e", Fabric())
    app.gate.clear()
    call = asyncio.create_task(over(app).post(COMPLETIONS_PATH, prefill_leg("m", [1, 2], None), request_id="r"))
    await eventually(lambda: app.prefilling, "it began")
    call.cancel()
    with pytest.raises(asyncio.CancelledError):
        await call
    assert (app.aborted, app.prefilling) == (1, [])


async def test_health_is_what_the_server_says() -> None:
    app = SmallEngine("e", Fabric())
    engine = over(app)
    assert await engine.healthy()
    app.healthy = False
    assert not await engine.healthy()


async def test_an_application_that_raises_or_says_nothing_is_unavailable() -> None:
    async def broken(scope: Scope, receive: Receive, send: Send) -> None:
        raise RuntimeError("engine core died")

    async def silent(scope: Scope, receive: Receive, send: Send) -> None:
        await receive()

    async def no_json(scope: Scope, receive: Receive, send: Send) -> None:
        await send({"type": "http.response.start", "status": 500, "headers": []})
        await send({"type": "http.response.body", "body": b"<html>"})

    for app, said in ((broken, "engine core died"), (silent, "no response"), (no_json, "HTTP 500")):
        engine = AsgiEngine(app, registry=CollectorRegistry())
        with pytest.raises(EngineUnavailable, match=said):
            await engine.post("/x", {}, request_id="r")
        assert not await engine.healthy()


def test_load_is_read_from_the_registry_and_what_is_missing_is_unknown() -> None:
    registry = CollectorRegistry()
    engine = AsgiEngine(SmallEngine("e", Fabric()), registry=registry)
    assert engine.load() == EngineLoad()
    labels = ["model_name", "engine"]
    for name, value in (("num_requests_running", 3), ("num_requests_waiting", 2), ("kv_cache_usage_perc", 0.25)):
        Gauge(f"vllm:{name}", "of vLLM", labels, registry=registry).labels("m", "0").set(value)
    queries = Counter("vllm:prefix_cache_queries", "tokens", labels, registry=registry).labels("m", "0")
    hits = Counter("vllm:prefix_cache_hits", "tokens", labels, registry=registry).labels("m", "0")
    assert engine.load() == EngineLoad(running=3, waiting=2, kv_usage=0.25, prefix_hit_rate=None)
    queries.inc(200)
    hits.inc(50)
    assert engine.load().prefix_hit_rate == 0.25


def test_facts_are_those_of_the_servers_own_configuration() -> None:
    config = SimpleNamespace(
        model_config=SimpleNamespace(max_model_len=4096, model="/model", tokenizer=None, tokenizer_revision=None),
        cache_config=SimpleNamespace(block_size=128, num_gpu_blocks=500),
        scheduler_config=SimpleNamespace(max_num_seqs=16),
    )
    host = SimpleNamespace(state=SimpleNamespace(vllm_config=config))
    assert over(SmallEngine("e", Fabric()), host=host).facts == EngineFacts(4096, 128, 16, 500, "/model")
    assert over(SmallEngine("e", Fabric())).facts == EngineFacts()
    for defaults, tokens in (({}, 4096), ({"temperature": 0.5}, 4096), ({"max_tokens": 300}, 300)):
        host.state.openai_serving_chat = SimpleNamespace(default_sampling_params=defaults)
        assert over(SmallEngine("e", Fabric()), host=host).facts.chat_max_tokens == tokens, defaults


async def test_kv_nobody_wants_is_freed_by_the_engines_own_call_if_it_has_one() -> None:
    freed: list[tuple[str, dict[str, object]]] = []

    async def notify(request_id: str, params: dict[str, object]) -> None:
        freed.append((request_id, params))

    client = SimpleNamespace(notify_kv_transfer_request_rejected=notify)
    app = SmallEngine("e", Fabric({"h": (1, 2)}))
    with_call = over(app, host=SimpleNamespace(state=SimpleNamespace(engine_client=client)))
    await with_call.release({"handle": "h"}, model="m", request_id="r")
    assert (freed, app.seen) == ([("r", {"handle": "h"})], [])
    await over(app).release({"do_remote_prefill": True, "handle": "h"}, model="m", request_id="r")
    assert app.fabric.held == {}


async def test_of_a_whole_answer_the_time_from_its_first_to_its_last_token_is_noted() -> None:
    def output(first_s: float, last_s: float, finished: bool = True) -> SimpleNamespace:
        return SimpleNamespace(metrics=SimpleNamespace(first_token_ts=first_s, last_token_ts=last_s), finished=finished)

    async def generate(prompt: Any, params: Any, request_id: str) -> AsyncIterator[SimpleNamespace]:
        for each in prompt:
            yield each

    client = SimpleNamespace(generate=generate)
    assert answer_times.teach(client)
    whole = SimpleNamespace(output_kind=SimpleNamespace(name="FINAL_ONLY"))
    stream = SimpleNamespace(output_kind=SimpleNamespace(name="DELTA"))

    async def asked(params: Any, *prompts: list[SimpleNamespace]) -> float | None:
        with answer_times.timed() as time:
            for prompt in prompts:
                assert [each async for each in client.generate(prompt, params, "r")] == prompt
        return time.decode_s

    assert await asked(whole, [output(10.0, 10.5)]) == 0.5
    assert await asked(whole, [output(10.0, 10.5)], [output(11.0, 13.0)]) == 2.0, "of several prompts the longest"
    assert await asked(whole, [output(10.0, 10.5, finished=False)]) is None
    assert await asked(whole, [SimpleNamespace(metrics=None, finished=True)]) is None, "vLLM keeps no statistics"
    assert await asked(stream, [output(10.0, 10.5)]) is None
    assert [each async for each in client.generate([1], whole, "r")] == [1], "nobody asks for the time"
    assert not answer_times.teach(SimpleNamespace()), "another server"
