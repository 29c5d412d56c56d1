"""The middleware and the control API over a small engine, without NATS."""

import hashlib
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from fixtures.asgi_engine import Call, answer_to, rendered
from fixtures.workers import AUTHORIZED, TOKEN, Worker, settings, worker
from pointsman.api.protocol import control
from pointsman.api.protocol.control import WorkerPhase
from pointsman.api.protocol.names import Role
from pointsman.workers.errors import ControlRefused
from pointsman.workers.types import EngineFacts
from waiting import eventually

PROMPT = list(range(1, 41))
EACH = {"include_usage": True, "continuous_usage_stats": True}


@pytest.fixture
async def fresh() -> AsyncIterator[Worker]:
    """A worker without a role whose engine is up."""
    async with worker(settings("worker-0")) as running:
        await eventually(lambda: running.state.phase is WorkerPhase.IDLE, "the engine is up")
        yield running


async def test_a_worker_without_a_role_sends_the_client_elsewhere(fresh: Worker) -> None:
    answer = await fresh.call({"prompt": PROMPT}).whole()
    assert answer.status == 503
    assert answer.headers["x-pointsman-retry"] == "no-role"
    assert answer.headers["retry-after"] == "1"
    assert answer.body["error"]["code"] == 503
    assert fresh.engine.seen == []


async def test_a_decode_worker_answers_and_says_how(fresh: Worker) -> None:
    await fresh.take_role(Role.DECODE)
    answer = await fresh.call({"prompt": PROMPT}).whole()
    assert answer.status == 200
    assert answer.token_ids == answer_to(PROMPT, 16)
    assert answer.headers["x-pointsman-prefill"] == "local"
    assert answer.headers["x-pointsman-prefill-reason"] == "queue-unknown"
    assert answer.headers["x-pointsman-worker"] == "worker-0"
    short = await fresh.call({"prompt": PROMPT[:4]}).whole()
    assert short.headers["x-pointsman-prefill-reason"] == "short"
    assert fresh.decisions("short") == 1


def prompts_told(told: Worker) -> tuple[float | None, ...]:
    """(prompt tokens, those that were not cached, requests) as the page shows them."""
    names = ("prompt_tokens_total", "uncached_prompt_tokens_sum", "uncached_prompt_tokens_count")
    return tuple(told.registry.get_sample_value(f"pointsman_worker_{name}") for name in names)


@pytest.mark.parametrize(
    ("prompt", "asked", "cached", "told"),
    [
        ("ten bytes.", {}, None, (10, 10, 1)),
        ("ten bytes.", {"stream": True, "stream_options": {"include_usage": True}}, None, (10, 10, 1)),
        ("ten bytes.", {"stream": True, "stream_options": EACH}, None, (10, 10, 1)),
        ("ten bytes.", {"stream": True}, None, (0, 0, 0)),
        ("a text of more than one block of tokens", {}, None, (0, 0, 0)),
        ("a text of more than one block of tokens", {}, 32, (39, 7, 1)),
        (PROMPT, {}, 32, (40, 40, 1)),
    ],
)
async def test_a_text_too_short_to_be_tokenised_here_is_counted_where_the_answer_says_how_long_it_was(
    fresh: Worker, prompt: Any, asked: dict[str, Any], cached: int | None, told: tuple[int, int, int]
) -> None:
    await fresh.take_role(Role.DECODE, max_local_prefill_tokens=100)
    fresh.engine.cached_tokens = cached
    answer = await fresh.call({"prompt": prompt, **asked}).whole()
    assert (answer.status, answer.headers["x-pointsman-prefill-reason"]) == (200, "short")
    assert prompts_told(fresh) == told


async def test_a_prompt_that_only_this_engine_can_prefill_is_not_counted_whatever_its_answer_says(
    fresh: Worker,
) -> None:
    await fresh.take_role(Role.DECODE)
    answer = await fresh.call({"prompt": "ten bytes.", "echo": True, "logprobs": 1}).whole()
    assert answer.headers["x-pointsman-prefill-reason"] == "prompt-logprobs"
    assert prompts_told(fresh) == (0, 0, 0)


def chat(content: Any, **more: Any) -> dict[str, Any]:
    """A chat of one message."""
    return {"messages": [{"role": "user", "content": content}], **more}


async def test_a_chat_is_rendered_once_by_the_engines_own_code(fresh: Worker) -> None:
    await fresh.take_role(Role.DECODE)
    body = chat("more than four tokens", tools=[{"type": "function"}], colour="blue", n=2)
    answer = await fresh.call(body, "/v1/chat/completions").whole()
    assert answer.headers["x-pointsman-prefill-reason"] == "queue-unknown", "decided by the same rule as any prompt"
    assert fresh.engine.rendered == 1
    ids = rendered(body)
    assert fresh.engine.seen[-1] == body | {"kv_transfer_params": {"prompt_token_ids": ids}}, (
        "the engine renders no more"
    )
    assert prompts_told(fresh) == (len(ids), len(ids), 1)


async def test_a_chat_shorter_than_the_threshold_is_not_rendered_here(fresh: Worker) -> None:
    await fresh.take_role(Role.DECODE, max_local_prefill_tokens=1000)
    answer = await fresh.call(chat("short"), "/v1/chat/completions").whole()
    assert answer.headers["x-pointsman-prefill-reason"] == "short"
    assert fresh.engine.rendered == 0


AUDIO = [{"type": "input_audio", "input_audio": {"data": "AAAA", "format": "wav"}}]


@pytest.mark.parametrize(
    ("body", "reason"),
    [
        (chat(AUDIO), "media"),
        (chat("more than four tokens", prompt_logprobs=1), "prompt-logprobs"),
        ({"messages": [5], "colour": "blue"}, "invalid"),
    ],
)
async def test_a_chat_that_only_this_engine_can_prefill_goes_to_it_as_it_came(
    fresh: Worker, body: dict[str, Any], reason: str
) -> None:
    await fresh.take_role(Role.DECODE)
    answer = await fresh.call(body, "/v1/chat/completions").whole()
    assert (answer.status, answer.headers["x-pointsman-prefill-reason"]) == (200, reason)
    assert fresh.engine.seen == [body]
    assert fresh.decisions(reason) == 1


@pytest.mark.parametrize("path", ["/v1/completions", "/v1/chat/completions", "/v1/responses"])
async def test_a_body_nested_too_deeply_is_the_clients_mistake(fresh: Worker, path: str) -> None:
    await fresh.take_role(Role.DECODE)
    for raw in (b"[" * 5000, b'{"prompt":' + b'{"a":' * 5000, b'{"kv_transfer_params":1,"x":' + b"[" * 5000):
        answer = await Call(fresh.app, path, raw).whole()
        assert answer.status == 400
        assert "nested too deeply" in answer.body["error"]["message"]
    assert fresh.engine.seen == []
    assert fresh.state.idle


async def test_token_ids_beyond_any_vocabulary_are_the_engines_to_refuse(fresh: Worker) -> None:
    await fresh.take_role(Role.DECODE)
    for body in ({"prompt": [2**40] * 40}, {"prompt": PROMPT, "cache_salt": 7}, {"prompt": PROMPT, "model": ["m"]}):
        answer = await fresh.call(body).whole()
        assert answer.headers["x-pointsman-prefill-reason"] == "invalid"
        assert fresh.engine.seen[-1] == body


async def test_a_draining_worker_finishes_what_it_has_and_takes_no_more(fresh: Worker) -> None:
    await fresh.take_role(Role.DECODE)
    fresh.engine.token_gate.clear()
    running = fresh.call({"prompt": PROMPT, "stream": True, "max_tokens": 4})
    await eventually(lambda: running.answer.chunks, "it streams")
    state = (await fresh.control("POST", control.DRAIN_PATH, {"reason": "a test"})).body
    assert (state["phase"], state["role"], state["inFlight"]) == ("Draining", "Decode", 1)
    refused = await fresh.call({"prompt": PROMPT}).whole()
    assert (refused.status, refused.headers["x-pointsman-retry"]) == (503, "draining")
    assert not fresh.state.idle
    fresh.engine.token_gate.set()
    assert (await running.whole()).token_ids == answer_to(PROMPT, 4)
    assert fresh.state.idle
    assert (await fresh.take_role(Role.DECODE)).phase is WorkerPhase.SERVING


async def test_a_client_that_hangs_up_aborts_its_request_in_the_engine(fresh: Worker) -> None:
    await fresh.take_role(Role.DECODE)
    fresh.engine.token_gate.clear()
    call = fresh.call({"prompt": PROMPT, "stream": True})
    await eventually(lambda: call.answer.chunks, "it streams")
    call.hang_up()
    await call.whole()
    assert fresh.engine.aborted == 1
    assert fresh.state.idle


@pytest.mark.parametrize("stream", [False, True])
async def test_an_aborted_answer_becomes_a_retry_and_the_worker_takes_no_more(fresh: Worker, stream: bool) -> None:
    await fresh.take_role(Role.DECODE)
    fresh.engine.aborts = True
    answer = await fresh.call({"prompt": PROMPT, "stream": stream}).whole()
    assert (answer.status, answer.headers["x-pointsman-retry"]) == (503, "engine-aborted")
    assert fresh.state.phase is WorkerPhase.DRAINING


async def test_a_worker_that_drained_itself_must_be_verified_again_in_the_role_it_had(fresh: Worker) -> None:
    await fresh.take_role(Role.DECODE)
    assert (await fresh.control("POST", control.VERIFY_PATH, {"role": "Decode"})).body["ok"]
    fresh.engine.aborts = True
    await fresh.call({"prompt": PROMPT}).whole()
    given = await fresh.take_role(Role.DECODE)
    assert (given.phase, given.verified) == (WorkerPhase.SERVING, None)
    assert not (await fresh.control("POST", control.VERIFY_PATH, {"role": "Decode"})).body["ok"]
    fresh.engine.aborts = False
    assert (await fresh.control("POST", control.VERIFY_PATH, {"role": "Decode"})).body["ok"]
    assert fresh.state.verified is Role.DECODE


async def test_a_part_that_ended_by_a_bug_drains_the_worker_and_runs_again_with_its_next_role(
    fresh: Worker, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Given its role back, the worker would else serve on without that part: here without a look at its engine."""

    def fail(*_: object) -> None:
        raise KeyError("no such gauge")

    await fresh.take_role(Role.DECODE)
    with monkeypatch.context() as broken:
        broken.setattr(fresh.sidecar.metrics, "show", fail)
        await eventually(lambda: fresh.state.phase is WorkerPhase.DRAINING, "the worker drains")
    assert (await fresh.take_role(Role.DECODE)).phase is WorkerPhase.SERVING
    fresh.engine.healthy = False
    await eventually(lambda: fresh.state.phase is WorkerPhase.FAILED, "it looks at its engine again")


async def test_a_dead_engine_is_a_failed_worker(fresh: Worker) -> None:
    await fresh.take_role(Role.DECODE)
    fresh.engine.healthy = False
    await eventually(lambda: fresh.state.phase is WorkerPhase.FAILED, "it notices")
    answer = await fresh.call({"prompt": PROMPT}).whole()
    assert (answer.status, answer.headers["x-pointsman-retry"]) == (503, "engine-failed")
    refused = await fresh.control("POST", control.ROLE_PATH, {"role": "Decode"})
    assert (refused.status, refused.body["reason"]) == (409, "EngineNotUp")


async def test_pages_pass_untouched(fresh: Worker) -> None:
    assert (await Call(fresh.app, "/health", method="GET").whole()).status == 200
    assert (await Call(fresh.app, "/v1/models", method="GET").whole()).status == 404


async def test_a_body_that_is_no_json_is_the_engines_to_refuse(fresh: Worker) -> None:
    await fresh.take_role(Role.DECODE)
    assert (await Call(fresh.app, "/v1/completions", b"{not json").whole()).status == 400
    assert fresh.state.idle


async def test_transfer_parameters_of_a_client_never_reach_the_engine(fresh: Worker) -> None:
    await fresh.take_role(Role.DECODE)
    body = {"prompt": PROMPT, "kv_transfer_params": {"do_remote_prefill": True, "handle": "mine"}}
    assert (await fresh.call(body).whole()).token_ids == answer_to(PROMPT, 16)
    assert fresh.engine.fabric.pulls == 0


@pytest.mark.parametrize("token", [{}, {"Authorization": "Bearer another"}])
async def test_a_verification_without_the_token_is_no_request_of_a_client(fresh: Worker, token: dict[str, str]) -> None:
    """Answered without its transfer parameters, it would prove that KV was pulled although nobody pulled it."""
    await fresh.take_role(Role.DECODE)
    body = {"prompt": PROMPT, "kv_transfer_params": {"do_remote_prefill": True, "handle": "mine"}}
    answer = await fresh.call(body, X_Pointsman_Verification="decode-leg", **token).whole()
    assert answer.status == 401
    assert fresh.engine.seen == []


async def test_a_verification_is_taken_in_any_role(fresh: Worker) -> None:
    headers = {**AUTHORIZED, "X-Pointsman-Verification": "decode-leg"}
    answer = await Call(fresh.app, "/v1/completions", {"prompt": PROMPT}, headers=headers).whole()
    assert answer.token_ids == answer_to(PROMPT, 16)


@pytest.mark.parametrize("given", [None, "", "Bearer", f"Bearer {TOKEN}x", f"Bearer {TOKEN[:-1]}", TOKEN, "Bearer ü"])
async def test_the_control_api_needs_the_token(fresh: Worker, given: str | None) -> None:
    headers = {} if given is None else {"Authorization": given}
    for method, path in (("GET", control.STATE_PATH), ("POST", control.ROLE_PATH), ("GET", "/pointsman/v1/nothing")):
        answer = await Call(fresh.app, path, {"role": "Decode"}, method=method, headers=headers).whole()
        assert (answer.status, answer.body["reason"]) == (401, "Unauthorized")
    assert fresh.state.role is None


async def test_the_control_api_says_what_is_wrong(fresh: Worker) -> None:
    answer = await fresh.control("POST", control.ROLE_PATH, {"role": "Embed"})
    assert (answer.status, answer.body["reason"]) == (400, "BadRequest")
    assert "'Prefill', 'Decode' or 'Encode'" in answer.body["message"]
    assert (await fresh.control("GET", "/pointsman/v1/nothing")).status == 404
    refused = await fresh.control("POST", control.ROLE_PATH, {"role": "Prefill"})
    assert (refused.status, refused.body["reason"]) == (409, "NoPrefillQueue")


async def test_the_state_leaves_out_what_is_not_known(fresh: Worker) -> None:
    state = (await fresh.control("GET", control.STATE_PATH)).body
    assert state == {
        "worker": "worker-0",
        "instance": fresh.sidecar.instance,
        "phase": "Idle",
        "inFlight": 0,
        "inFlightTokens": 0,
        "queuedPrefills": 0,
        "leases": 0,
        "blockSize": 16,
        "kvCompatibility": "same",
        "prefillTokenBudget": 8192,
    }


async def test_a_decode_role_is_verified_by_one_real_token(fresh: Worker) -> None:
    body = (await fresh.control("POST", control.VERIFY_PATH, {"role": "Decode"})).body
    assert (body["ok"], body["role"]) == (True, "Decode")
    assert fresh.state.verified is Role.DECODE
    fresh.engine.aborts = True
    body = (await fresh.control("POST", control.VERIFY_PATH, {"role": "Decode"})).body
    assert body["ok"] is False
    assert "abort" in body["detail"]
    assert fresh.state.verified is None


async def test_the_models_files_are_served_by_their_content(tmp_path: Path) -> None:
    tokenizer = b'{"tokenizer": 1}'
    (tmp_path / "tokenizer.json").write_bytes(tokenizer)
    (tmp_path / "model.safetensors").write_bytes(b"weights are nobody's business here")
    async with worker(settings("worker-0", model=str(tmp_path))) as running:
        sha256 = hashlib.sha256(tokenizer).hexdigest()
        answer = await running.control("GET", f"{control.MODEL_FILES_PATH}/{sha256}")
        assert b"".join(answer.chunks) == tokenizer
        weights = hashlib.sha256(b"weights are nobody's business here").hexdigest()
        for other in (weights, "../../etc/passwd", ""):
            assert (await running.control("GET", f"{control.MODEL_FILES_PATH}/{other}")).status == 404


async def test_metrics_show_how_many_sequences_the_engine_runs_and_not_0_where_it_does_not_say(fresh: Worker) -> None:
    def shown() -> float | None:
        return fresh.registry.get_sample_value("pointsman_worker_max_sequences")

    await eventually(lambda: shown() != 0, "it shows")
    unknown = shown()
    assert unknown is not None
    assert unknown != unknown, "an unknown limit is not 0"
    fresh.sidecar.metrics.show(fresh.state, None, EngineFacts(max_running_requests=16))
    assert shown() == 16


async def test_metrics_show_role_and_phase(fresh: Worker) -> None:
    await fresh.take_role(Role.DECODE)

    def sample(name: str, **labels: Any) -> float | None:
        return fresh.registry.get_sample_value(name, labels)

    await eventually(lambda: sample("pointsman_worker_role", role="Decode") == 1.0, "the role shows")
    assert sample("pointsman_worker_role", role="Prefill") == 0.0
    assert sample("pointsman_worker_phase", phase="Serving") == 1.0
    depth = sample("pointsman_worker_prefill_queue_depth")
    assert depth is not None
    assert depth != depth, "an unknown depth is not 0"


async def test_an_encode_worker_passes_images_to_its_engine_and_takes_no_other_role() -> None:
    image = {"type": "image_url", "image_url": {"url": "data:image/png;base64,AAAA"}}
    body = {"messages": [{"role": "user", "content": [image]}], "max_tokens": 1, "ec_transfer_params": {"hash": {}}}
    async with worker(settings("encode-0", embedding_role="ec_producer")) as encode:
        await eventually(lambda: encode.state.phase is WorkerPhase.IDLE, "the engine is up")
        await encode.take_role(Role.ENCODE)
        encode.engine.embeddings = {"hash": {"address": "10.0.0.7:5650"}}
        answer = await encode.call(body, "/v1/chat/completions").whole()
        assert answer.status == 200
        assert answer.headers["x-pointsman-worker"] == "encode-0"
        assert "x-pointsman-prefill" not in answer.headers
        assert encode.engine.rendered == 0
        assert encode.registry.get_sample_value("pointsman_worker_encode_seconds_count") == 1
        assert encode.state.leases == 1, "its embedding may be fetched now"
        for role in (Role.PREFILL, Role.DECODE):
            with pytest.raises(ControlRefused, match="this worker's engine was started for Encode"):
                encode.sidecar.assign(control.RoleRequest(role=role))
    async with worker(settings("decode-0")) as decode:
        await eventually(lambda: decode.state.phase is WorkerPhase.IDLE, "the engine is up")
        with pytest.raises(ControlRefused, match="this worker's engine was started for Prefill or Decode"):
            decode.sidecar.assign(control.RoleRequest(role=Role.ENCODE))


@pytest.mark.parametrize(
    ("path", "body", "status"),
    [
        ("/v1/chat/completions", {"messages": [{"role": "user", "content": '"ec_transfer_params":{"a":{}}'}]}, 200),
        ("/v1/chat/completions", {"messages": [], "prompt": {}}, 400),
        ("/v1/completions", {"prompt": PROMPT}, 200),
        ("/v1/embeddings", {"input": "text"}, 404),
    ],
)
async def test_only_a_chat_with_embeddings_in_its_answer_counts_as_encoded_and_holds_a_lease(
    path: str, body: dict[str, Any], status: int
) -> None:
    async with worker(settings("encode-0", embedding_role="ec_producer"), role=Role.ENCODE) as encode:
        assert (await encode.call(body, path).whole()).status == status
        assert encode.registry.get_sample_value("pointsman_worker_encode_seconds_count") == 0
        assert encode.state.leases == 0


async def test_a_chat_that_waits_for_its_prefill_is_given_to_who_proves_to_be_of_the_service(fresh: Worker) -> None:
    fresh.sidecar.remote._chats["a/b c"] = b'{"messages":[]}'
    credential = control.chat_credential(TOKEN, "a/b c")
    for authorization, path, status in (
        (f"Bearer {credential}", "a/b c", 200),
        (f"Bearer {TOKEN}", "a/b c", 401),
        (f"Bearer {credential}", "other", 401),
        (f"Bearer {control.chat_credential(TOKEN, 'other')}", "other", 404),
    ):
        call = Call(
            fresh.app, f"{control.PREFILL_CHATS_PATH}/{path}", method="GET", headers={"authorization": authorization}
        )
        answer = await call.whole()
        assert answer.status == status, path
