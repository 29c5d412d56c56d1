"""The gateway in front of real vLLM: token for token what the engine's own endpoints answer, and the right worker."""

import asyncio
import os
import random
import signal
from collections.abc import Awaitable
from typing import Any

import openai
import pytest
from openai.types import Completion
from openai.types.chat import ChatCompletionMessageParam
from openai.types.completion_choice import Logprobs

from engine.gateway.conftest import TOKEN, Stage, entry, give_role, running_decode_workers
from fixtures.engines import MODEL, Engines, RunningEngine
from fixtures.gateways import Gateway, connected, gateway_process
from pointsman.api.protocol.names import Role
from waiting import eventually

SEED = 20261121
GREEDY: dict[str, Any] = {"temperature": 0.0, "seed": 1}
SAMPLED: dict[str, Any] = {"temperature": 0.9, "top_p": 0.9, "seed": 7}


def words(rng: random.Random, count: int) -> str:
    """A text nobody has asked before."""
    return " ".join(
        rng.choice(("switch", "track", "signal", "Gleis", "线路", "🚉", "points", "7")) for _ in range(count)
    )


def conversations() -> list[list[ChatCompletionMessageParam]]:
    """Shapes of chats: one turn, system message, several turns, blanks and text beyond ASCII."""
    rng = random.Random(SEED)
    return [
        [{"role": "user", "content": words(rng, 3)}],
        [{"role": "system", "content": "  Be brief.\n"}, {"role": "user", "content": words(rng, 40)}],
        [
            {"role": "user", "content": words(rng, 20)},
            {"role": "assistant", "content": words(rng, 20)},
            {"role": "user", "content": words(rng, 60), "name": "anna"},
        ],
    ]


async def test_chats_are_token_exact_with_the_engines_own_endpoint(stage: Stage) -> None:
    assert all(line["chat_tokens"] for line in stage.gateway.logs if line["message"] == "model known")
    for messages in conversations():
        for sampling in (GREEDY, SAMPLED):
            ask: dict[str, Any] = {"model": MODEL, "messages": messages, "max_tokens": 24, **sampling}
            ids = {"return_token_ids": True}
            theirs = await stage.reference.chat.completions.create(**ask, extra_body=ids)
            ours = await stage.gateway.client.chat.completions.create(**ask, extra_body=ids)
            stream = await stage.gateway.client.chat.completions.create(
                **ask, stream=True, stream_options={"include_usage": True}, extra_body=ids
            )
            text, usage = "", None
            token_ids: list[int] = []
            reasons: list[str | None] = []
            async for chunk in stream:
                for choice in chunk.choices:
                    text += choice.delta.content or ""
                    token_ids += choice.model_extra.get("token_ids") or []
                    reasons.append(choice.finish_reason)
                usage = chunk.usage or usage
            expected = theirs.choices[0]
            for answer in (ours.choices[0],):
                assert answer.message.content == expected.message.content
                assert answer.model_extra["token_ids"] == expected.model_extra["token_ids"]
                assert answer.finish_reason == expected.finish_reason
            assert ours.model_extra["prompt_token_ids"] == theirs.model_extra["prompt_token_ids"]
            assert (text, token_ids) == (expected.message.content, expected.model_extra["token_ids"])
            assert [reason for reason in reasons if reason] == [expected.finish_reason]
            for mine in (ours.usage, usage):
                assert mine is not None
                assert theirs.usage is not None
                assert mine.prompt_tokens == theirs.usage.prompt_tokens
                assert mine.completion_tokens == theirs.usage.completion_tokens


async def test_completions_are_token_exact_streaming_and_not(stage: Stage) -> None:
    rng = random.Random(SEED + 1)
    for prompt in (words(rng, 2), words(rng, 150), list(range(10, 250)) * 2):
        ask: dict[str, Any] = {"model": MODEL, "prompt": prompt, "max_tokens": 24, "logprobs": 2, **GREEDY}
        theirs = await stage.reference.completions.create(**ask)
        ours = await stage.gateway.client.completions.create(**ask)
        chunks = [chunk async for chunk in await stage.gateway.client.completions.create(**ask, stream=True)]
        assert ours.choices[0].text == theirs.choices[0].text
        assert ours.choices[0].logprobs == theirs.choices[0].logprobs
        assert ours.usage == theirs.usage
        assert "".join(chunk.choices[0].text for chunk in chunks) == theirs.choices[0].text
        tokens = [token for chunk in chunks for token in (chunk.choices[0].logprobs.tokens or [])]
        assert theirs.choices[0].logprobs is not None
        assert tokens == theirs.choices[0].logprobs.tokens


async def test_an_evaluation_harness_has_its_prompts_back_with_their_log_probabilities(stage: Stage) -> None:
    """Whole answers only: vLLM ends a stream of echo with log-probabilities with an error."""
    rng = random.Random(SEED + 4)
    prompts = [list(range(10, 200)), [rng.randrange(10, 250) for _ in range(300)], words(rng, 30), words(rng, 150)]
    several: dict[str, Any] = {"max_tokens": 8, "n": 2, "temperature": 1, "extra_body": {"top_k": 1}}
    for prompt in (prompts[1], prompts[3], prompts[:2], prompts[2:]):
        for more in ({"max_tokens": 1, "temperature": 0}, several):  # what lm-eval sends, and more
            ask: dict[str, Any] = {"model": MODEL, "prompt": prompt, "echo": True, "logprobs": 1, **more}
            theirs = (await stage.reference.completions.create(**ask)).choices
            ours = (await stage.gateway.client.completions.create(**ask)).choices
            assert len(ours) == len(theirs) == (2 if prompt in (prompts[:2], prompts[2:]) else 1) * more.get("n", 1)
            for mine, other in zip(ours, theirs, strict=True):
                assert (mine.index, mine.text) == (other.index, other.text)
                assert mine.logprobs is not None
                assert other.logprobs is not None
                assert mine.logprobs.tokens == other.logprobs.tokens
                assert mine.logprobs.text_offset == other.logprobs.text_offset
                assert _numbers(mine.logprobs) == pytest.approx(_numbers(other.logprobs), abs=1e-3)
                assert len(_numbers(mine.logprobs)) > 50, "of the prompt too"


def _numbers(logprobs: Logprobs) -> list[float]:
    """A number for each token; the first token of a prompt has none."""
    return [0.0 if value is None else value for value in logprobs.token_logprobs or []]


async def test_what_needs_the_engine_is_answered_by_its_own_chat_endpoint(stage: Stage) -> None:
    ask: dict[str, Any] = {
        "model": MODEL,
        "messages": conversations()[0],
        "max_tokens": 8,
        "logprobs": True,
        "top_logprobs": 2,
        **GREEDY,
    }
    theirs = await stage.reference.chat.completions.create(**ask)
    ours = await stage.gateway.client.chat.completions.create(**ask)
    assert ours.choices[0].logprobs == theirs.choices[0].logprobs
    assert ours.choices[0].message == theirs.choices[0].message


async def test_structured_output_holds_through_the_gateway(stage: Stage) -> None:
    answer = await stage.gateway.client.chat.completions.create(
        model=MODEL,
        messages=conversations()[0],
        max_tokens=16,
        extra_body={"structured_outputs": {"choice": ["left", "right"]}},
        **GREEDY,
    )
    assert answer.choices[0].message.content in ("left", "right")


async def test_the_engines_refusal_of_a_value_reaches_the_client(stage: Stage) -> None:
    with pytest.raises(openai.BadRequestError, match="top_p"):
        await stage.gateway.client.completions.create(model=MODEL, prompt="x", top_p=7)


async def test_a_known_prefix_goes_to_the_worker_that_holds_it(stage: Stage) -> None:
    rng = random.Random(SEED + 2)
    await eventually(
        lambda: len({line["worker"] for line in stage.gateway.logs if line["message"] == "kv events followed"}) == 2,
        "KV events of both workers are followed",
    )
    for _ in range(4):
        prompt = [rng.randrange(10, 250) for _ in range(640)]
        ask: dict[str, Any] = {"model": MODEL, "prompt": prompt, "max_tokens": 2, **GREEDY}
        first = (await stage.gateway.client.completions.with_raw_response.create(**ask)).headers["X-Pointsman-Worker"]

        async def hits(ask: dict[str, Any] = ask) -> bool:
            answer = await stage.gateway.client.completions.with_raw_response.create(**ask)
            chosen = (await stage.gateway.logged("worker chosen", request_id=answer.headers["X-Request-Id"]))[-1]
            return bool(chosen["overlap_tokens"] >= 512)

        await eventually(hits, "the index knows the blocks of the prompt")
        again = [
            (await stage.gateway.client.completions.with_raw_response.create(**ask)).headers["X-Pointsman-Worker"]
            for _ in range(4)
        ]
        assert set(again) == {first}


async def test_killed_workers_lose_no_request_before_its_first_token(engines: Engines, tmp_path_factory: Any) -> None:
    rng = random.Random(SEED + 3)
    prompts = [[rng.randrange(10, 250) for _ in range(3500)] for _ in range(8)]
    with running_decode_workers(engines, "killed", "survivor") as workers:
        for engine in workers:
            await give_role(engine, Role.DECODE)
        with gateway_process(tmp_path_factory.mktemp("gateway"), token=TOKEN, router="round-robin") as process:
            async with connected(process) as gateway:
                answers, metrics, expected = await _kill_one_of(workers, gateway, prompts)
    assert [answer.choices[0].text for answer in answers] == [answer.choices[0].text for answer in expected]
    assert sum(value for key, value in metrics.items() if key.startswith("pointsman_gateway_retries_total{")) >= 1
    assert not [key for key in metrics if key.startswith("pointsman_gateway_failures_total{") and metrics[key] > 0]


async def _kill_one_of(
    workers: list[RunningEngine], gateway: Gateway, prompts: list[list[int]]
) -> tuple[list[Completion], dict[str, float], list[Completion]]:
    """Answers asked before the first worker is killed, the metrics then, and answers asked afterwards."""
    gateway.write_endpoints([entry(engine) for engine in workers])
    await gateway.knows(*workers)

    def ask(prompt: list[int]) -> Awaitable[Completion]:
        return gateway.client.completions.create(model=MODEL, prompt=prompt, max_tokens=4, temperature=0)

    asked = [asyncio.ensure_future(ask(prompt)) for prompt in prompts]
    await eventually(
        lambda: len(gateway.of.logged("worker chosen", worker="killed")) >= len(prompts) // 2,
        "half of the requests are at the worker that will die",
    )
    for pid in workers[0].processes():
        os.kill(pid, signal.SIGKILL)
    answers = await asyncio.gather(*asked)
    metrics = await gateway.metrics()
    return answers, metrics, [await ask(prompt) for prompt in prompts]
