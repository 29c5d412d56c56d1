"""From a checked request to legs: what is sent, what the router knows of it."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from fixtures.plain_tokenizer import make_tokenizer
from pointsman.api.protocol.control import ModelInfo
from pointsman.gateway.core.moves import RequestMoves
from pointsman.gateway.core.requests import Endpoint, Verbatim, VerbatimReason, read
from pointsman.gateway.core.resume import Resumption
from pointsman.gateway.errors import ContextLengthExceeded
from pointsman.gateway.forward import WorkerRequest
from pointsman.gateway.images.loading import Image
from pointsman.gateway.images.request_images import RequestImages
from pointsman.gateway.planning import RequestPlan, plan
from pointsman.gateway.processor import Model, TextProcessor
from pointsman.serving.block_hashes import chained_block_hashes

BLOCK_SIZE = 8
TOOLS = [{"type": "function", "function": {"name": "set_switch"}}]
TEMPLATE = "{% if tools %}{{ tools | tojson }}{% endif %}{% for m in messages %}[{{ m['content'] }}]{% endfor %}"


@pytest.fixture(scope="module")
def processor(tmp_path_factory: pytest.TempPathFactory) -> TextProcessor:
    folder: Path = tmp_path_factory.mktemp("model")
    make_tokenizer(folder, chat_template=TEMPLATE)
    return TextProcessor.load(folder)


def model(processor: TextProcessor | None, *, proved: bool = True) -> Model:
    info = ModelInfo(served_name="m", max_model_len=400, block_size=BLOCK_SIZE, files=(), digest="d")
    return Model(info, processor, text_verified=proved, chat_verified=proved, doubt="" if proved else "a doubt")


async def planned(of: Model, endpoint: Endpoint = Endpoint.CHAT, **body: Any) -> RequestPlan:
    default = {"messages": [{"role": "user", "content": "Which track?"}]} if endpoint is Endpoint.CHAT else {}
    ask = read(endpoint, json.dumps({"model": "m", **default, **body}).encode(), "m")
    return await plan(ask, of, request_id="r1", created=1)


async def test_a_plain_chat_is_sent_as_ids_with_its_blocks(processor: TextProcessor) -> None:
    made = await planned(model(processor))
    (prompt,) = made.prompts
    ids = processor.render([{"role": "user", "content": "Which track?"}])
    assert made.verbatim is None
    assert prompt.worker_request.path == "/v1/completions"
    assert json.loads(prompt.worker_request.body)["prompt"] == ids
    assert prompt.worker_request.chain == chained_block_hashes(ids, BLOCK_SIZE)
    assert prompt.worker_request.digest == model(processor).digest


async def test_a_chat_with_tools_is_sent_as_it_is_and_routed_by_what_it_will_probably_become(
    processor: TextProcessor,
) -> None:
    made = await planned(model(processor), tools=TOOLS)
    (prompt,) = made.prompts
    likely = processor.render([{"role": "user", "content": "Which track?"}], tools=TOOLS)
    assert made.verbatim == Verbatim(VerbatimReason.TOOLS, "tools")
    assert json.loads(prompt.worker_request.body)["tools"] == TOOLS
    assert (prompt.worker_request.prompt_tokens, prompt.worker_request.digest) == (len(likely), None)
    assert prompt.worker_request.chain == chained_block_hashes(likely, BLOCK_SIZE)
    assert len(likely) > len(processor.render([{"role": "user", "content": "Which track?"}]))


async def test_unproved_rendering_leaves_chats_and_texts_to_the_engine_but_not_ids(processor: TextProcessor) -> None:
    doubted = model(processor, proved=False)
    assert (await planned(doubted)).verbatim == Verbatim(VerbatimReason.TEMPLATE, "a doubt")
    of_text = await planned(doubted, Endpoint.COMPLETIONS, prompt="text")
    assert of_text.verbatim == Verbatim(VerbatimReason.TOKENIZER, "a doubt")
    assert (await planned(doubted, Endpoint.COMPLETIONS, prompt=[7, 8])).verbatim is None


async def test_without_a_tokenizer_the_engine_does_everything() -> None:
    made = await planned(model(None, proved=False))
    (prompt,) = made.prompts
    assert (list(prompt.worker_request.chain), prompt.worker_request.prompt_tokens > 0) == ([], True)


@pytest.mark.parametrize("more", [{}, {"tools": TOOLS}])
async def test_each_tenant_has_prefixes_of_its_own(processor: TextProcessor, more: dict[str, Any]) -> None:
    chains = []
    for salt in (None, "tenant-a", "tenant-b"):
        salted: dict[str, Any] = {"cache_salt": salt} if salt else {}
        made = await planned(model(processor), **salted, **more)
        chains.append(tuple(made.prompts[0].worker_request.chain))
        assert json.loads(made.prompts[0].worker_request.body).get("cache_salt") == salt
    assert len(set(chains)) == 3
    assert len({len(chain) for chain in chains}) == 1
    assert all(chains)


async def test_several_answers_of_a_body_that_goes_as_it_is_are_one_request(processor: TextProcessor) -> None:
    made = await planned(model(processor), tools=TOOLS, n=2, best_of=2, stream=True)
    (prompt,) = made.prompts
    sent = json.loads(prompt.worker_request.body)
    assert (sent["n"], sent["return_token_ids"], made.choices) == (2, True, 2)
    assert "best_of" not in sent


async def test_an_evaluation_harness_gets_several_prompts_with_echo_from_the_engine(processor: TextProcessor) -> None:
    harness = {"prompt": [[1, 2, 3], [4, 5, 6]], "echo": True, "logprobs": 1, "max_tokens": 0, "stream": True}
    made = await planned(model(processor), Endpoint.COMPLETIONS, **harness)
    (prompt,) = made.prompts
    assert json.loads(prompt.worker_request.body) == harness | {"model": "m"}
    assert (made.choices, prompt.worker_request.resumption) == (2, None)


async def test_the_answers_to_one_prompt_are_one_request_and_each_prompt_counts_once(processor: TextProcessor) -> None:
    made = await planned(model(processor), Endpoint.COMPLETIONS, prompt=[[1, 2, 3], [4, 5]], n=3, seed=2**63 - 1)
    assert [json.loads(prompt.worker_request.body)["n"] for prompt in made.prompts] == [3, 3]
    assert {json.loads(prompt.worker_request.body)["seed"] for prompt in made.prompts} == {2**63 - 1}
    assert (made.prompt_tokens, made.choices) == (5, 6)
    assert [prompt.worker_request.request_id for prompt in made.prompts] == ["r1", "r1-1"]


@pytest.mark.parametrize(
    ("body", "resumption"),
    [
        ({}, Resumption.PROMPT),
        ({"stop": ["\n"]}, Resumption.REPEAT),
        ({"n": 2}, Resumption.REPEAT),
        ({"tools": TOOLS}, Resumption.REPEAT),
        ({"tools": TOOLS, "tool_choice": "required"}, Resumption.REPEAT),
        ({"logprobs": True, "n": 2}, Resumption.REPEAT),
        ({"bad_words": ["no way"]}, None),
        ({"response_format": {"type": "json_object"}}, Resumption.REPEAT),
        ({"response_format": {"type": "text"}}, Resumption.PROMPT),
    ],
)
async def test_how_a_broken_stream_is_resumed_depends_on_what_was_asked(
    processor: TextProcessor, body: dict[str, Any], resumption: Resumption | None
) -> None:
    made = await planned(model(processor), stream=True, **body)
    assert made.prompts[0].worker_request.resumption is resumption


def parts(*parts: Any) -> list[dict[str, Any]]:
    return [{"role": "user", "content": list(parts)}]


async def test_a_list_of_texts_is_routed_as_the_text_it_becomes_and_media_are_never_tokenised(
    processor: TextProcessor,
) -> None:
    image = {"type": "image_url", "image_url": {"url": "data:image/png;base64," + "A" * 3_000_000}}
    text = [{"type": "text", "text": "Which"}, {"type": "text", "text": "track?"}]
    made = await planned(model(processor), messages=parts(*text, image))
    likely = processor.render([{"role": "user", "content": "Which\ntrack?"}])
    assert made.prompts[0].worker_request.prompt_tokens == len(likely)
    assert json.loads(made.prompts[0].worker_request.body)["messages"] == parts(*text, image)


async def test_a_text_that_cannot_fit_is_refused_before_it_is_tokenised(
    processor: TextProcessor, monkeypatch: pytest.MonkeyPatch
) -> None:
    tokenised: list[int] = []
    encode = processor.encode

    def counting(text: str, *, add_special_tokens: bool = True) -> list[int]:
        tokenised.append(len(text))
        return encode(text, add_special_tokens=add_special_tokens)

    monkeypatch.setattr(processor, "encode", counting)
    huge = "tracks and signals " * 200_000
    for endpoint, body in (
        (Endpoint.CHAT, {"messages": [{"role": "user", "content": huge}]}),
        (Endpoint.COMPLETIONS, {"prompt": huge}),
        (Endpoint.COMPLETIONS, {"prompt": ["fits", huge]}),
    ):
        with pytest.raises(ContextLengthExceeded, match="maximum context length is 400 tokens"):
            await planned(model(processor), endpoint, **body)
    assert sum(tokenised) < len(huge) / 10


async def test_a_body_that_is_nested_deeply_is_the_engines_to_judge(processor: TextProcessor) -> None:
    parameters: dict[str, Any] = {}
    for _ in range(300):
        parameters = {"properties": {"a": parameters}}
    deep = [{"type": "function", "function": {"name": "f", "parameters": parameters}}]
    made = await planned(model(processor), tools=deep)
    assert json.loads(made.prompts[0].worker_request.body)["tools"] == deep


async def test_the_workers_word_on_the_length_of_answers_beats_the_models_files(processor: TextProcessor) -> None:
    of = model(processor)
    told = replace(of, info=of.info.model_copy(update={"chat_max_tokens": 400}))
    limited = TextProcessor(processor._tokenizer, default_max_tokens=5)
    for served, limit in ((replace(of, processor=limited), 5), (replace(told, processor=limited), 400)):
        worker_request = (await planned(served)).prompts[0].worker_request
        assert json.loads(worker_request.body)["max_tokens"] == min(limit, 400 - worker_request.prompt_tokens)


# --- images ---

PARTS_TEMPLATE = (
    "{% for m in messages %}<{{ m['role'] }}>{% if m['content'] is string %}{{ m['content'] }}{% else %}"
    "{% for part in m['content'] %}{{ part['text'] }}{% endfor %}{% endif %}{% endfor %}"
)


@pytest.fixture(scope="module", params=[TEMPLATE, PARTS_TEMPLATE], ids=["texts", "parts"])
def any_processor(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> TextProcessor:
    folder: Path = tmp_path_factory.mktemp("model")
    make_tokenizer(folder, chat_template=request.param)
    return TextProcessor.load(folder)


def picture(name: str, tokens: int = 40) -> Image:
    return Image(name * 64, f"data:image/png;base64,{name}".encode(), 9, tokens)


def user(*parts: Any) -> dict[str, Any]:
    return {"role": "user", "content": list(parts)}


def image_part(name: str) -> dict[str, Any]:
    return {"type": "image_url", "image_url": {"url": f"https://example.com/{name}", "detail": "low"}, "uuid": "client"}


async def planned_with_images(of: Model, messages: list[dict[str, Any]], *images: Image, **body: Any) -> WorkerRequest:
    async def encode(_images: RequestImages, _moves: RequestMoves) -> bytes:
        return b""

    ask = read(Endpoint.CHAT, json.dumps({"model": "m", "messages": messages, **body}).encode(), "m")
    loaded = RequestImages(ask.images, images, encode, lambda _: None, 0.0)
    made = await plan(ask, of, request_id="r1", created=1, images=loaded)
    assert made.verbatim is not None and made.verbatim.reason is VerbatimReason.IMAGES
    (prompt,) = made.prompts
    return prompt.worker_request


async def test_images_are_put_into_the_body_and_counted(any_processor: TextProcessor) -> None:
    cat, dog = picture("c"), picture("d", 30)
    text = {"type": "text", "text": "5; which of the two is the pointsman's?"}
    messages = [user(image_part("cat"), text, image_part("dog"))]
    worker_request = await planned_with_images(model(any_processor), messages, cat, dog, temperature=0)
    body = json.loads(worker_request.body)
    assert body["messages"][0]["content"] == [
        {"type": "image_url", "image_url": {"url": "data:image/png;base64,c"}, "uuid": "c" * 64},
        text,
        {"type": "image_url", "image_url": {"url": "data:image/png;base64,d"}, "uuid": "d" * 64},
    ]
    assert (worker_request.path, body["temperature"]) == ("/v1/chat/completions", 0)
    assert 70 < worker_request.prompt_tokens < 70 + 60
    assert worker_request.embeddings is not None


async def test_blocks_before_the_first_image_are_the_engines_and_those_behind_depend_on_it(
    any_processor: TextProcessor,
) -> None:
    system = {"role": "system", "content": "You are a pointsman, and these are your rules. " * 3}
    texts = model(any_processor)
    plain = (
        (await planned(texts, messages=[system, {"role": "user", "content": "What is this?"}]))
        .prompts[0]
        .worker_request
    )
    question = [{"type": "text", "text": "What is this?"}, image_part("cat")]
    of_cat = await planned_with_images(texts, [system, user(*question)], picture("c"))
    of_dog = await planned_with_images(texts, [system, user(*question)], picture("d"))
    assert of_cat.chain and list(of_cat.chain) == list(plain.chain)[: len(of_cat.chain)]
    assert of_dog.chain == of_cat.chain
    shared = sum(a == b for a, b in zip(of_cat.image_chain, of_dog.image_chain, strict=True))
    assert len(of_cat.chain) <= shared < len(of_cat.image_chain)
    turns = [system, user(*question), {"role": "assistant", "content": "A cat."}, {"role": "user", "content": "Sure?"}]
    later = await planned_with_images(texts, turns, picture("c"))
    common = len(of_cat.image_chain) - 2
    assert list(later.image_chain)[:common] == list(of_cat.image_chain)[:common], "a later turn has the same prefix"


async def test_tenants_and_adapters_share_no_images(any_processor: TextProcessor) -> None:
    legs = [
        await planned_with_images(model(any_processor), [user(image_part("cat"))], picture("c"), **salt)
        for salt in ({}, {"cache_salt": "one"}, {"cache_salt": "two"})
    ]
    assert len({tuple(worker_request.image_chain) for worker_request in legs}) == 3


async def test_without_a_tokenizer_images_are_counted_too() -> None:
    worker_request = await planned_with_images(model(None, proved=False), [user(image_part("cat"))], picture("c", 100))
    assert worker_request.prompt_tokens > 100
    assert (list(worker_request.chain), list(worker_request.image_chain)) == ([], [])
    huge = await planned_with_images(model(None, proved=False), [user(image_part("cat"))], picture("c", 5000))
    assert huge.prompt_tokens == 400, "no prompt is longer than the context"
