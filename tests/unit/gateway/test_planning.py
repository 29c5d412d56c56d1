"""From a checked request to legs: what is sent, what the router knows of it."""

import json
from pathlib import Path
from typing import Any

import pytest

from fixtures.plain_tokenizer import make_tokenizer
from pointsman.api.protocol.control import ModelInfo
from pointsman.gateway.core.requests import Endpoint, read
from pointsman.gateway.errors import RequestInvalid
from pointsman.gateway.planning import Plan, plan
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
    return Model(info, processor, text_proved=proved, chat_proved=proved, doubt="" if proved else "a doubt")


async def planned(of: Model, endpoint: Endpoint = Endpoint.CHAT, **body: Any) -> Plan:
    default = {"messages": [{"role": "user", "content": "Which track?"}]} if endpoint is Endpoint.CHAT else {}
    ask = read(endpoint, json.dumps({"model": "m", **default, **body}).encode(), "m")
    return await plan(ask, of, request_id="r1", created=1)


async def test_a_plain_chat_is_sent_as_ids_with_its_blocks(processor: TextProcessor) -> None:
    made = await planned(model(processor))
    (job,) = made.jobs
    ids = processor.render([{"role": "user", "content": "Which track?"}])
    assert made.verbatim is None
    assert job.leg.path == "/v1/completions"
    assert json.loads(job.leg.body)["prompt"] == ids
    assert job.leg.chain == chained_block_hashes(ids, BLOCK_SIZE)
    assert job.leg.digest == model(processor).digest


async def test_a_chat_with_tools_is_sent_as_it_is_and_routed_by_what_it_will_probably_become(
    processor: TextProcessor,
) -> None:
    made = await planned(model(processor), tools=TOOLS)
    (job,) = made.jobs
    likely = processor.render([{"role": "user", "content": "Which track?"}], tools=TOOLS)
    assert made.verbatim == "tools"
    assert json.loads(job.leg.body)["tools"] == TOOLS
    assert (job.leg.prompt_tokens, job.leg.digest) == (len(likely), None)
    assert job.leg.chain == chained_block_hashes(likely, BLOCK_SIZE)
    assert len(likely) > len(processor.render([{"role": "user", "content": "Which track?"}]))


async def test_unproved_rendering_leaves_chats_and_texts_to_the_engine_but_not_ids(processor: TextProcessor) -> None:
    doubted = model(processor, proved=False)
    assert (await planned(doubted)).verbatim == "a doubt"
    assert (await planned(doubted, Endpoint.COMPLETIONS, prompt="text")).verbatim == "a doubt"
    assert (await planned(doubted, Endpoint.COMPLETIONS, prompt=[7, 8])).verbatim is None


async def test_without_a_tokenizer_the_engine_does_everything() -> None:
    made = await planned(model(None, proved=False))
    (job,) = made.jobs
    assert (list(job.leg.chain), job.leg.prompt_tokens > 0) == ([], True)


async def test_salted_prompts_are_kept_out_of_the_index(processor: TextProcessor) -> None:
    made = await planned(model(processor), cache_salt="tenant-a")
    assert list(made.jobs[0].leg.chain) == []
    assert json.loads(made.jobs[0].leg.body)["cache_salt"] == "tenant-a"


async def test_several_answers_cannot_be_had_of_a_body_that_goes_as_it_is(processor: TextProcessor) -> None:
    with pytest.raises(RequestInvalid, match="cannot be combined with tools"):
        await planned(model(processor), tools=TOOLS, n=2)


async def test_prompt_tokens_count_each_prompt_once(processor: TextProcessor) -> None:
    made = await planned(model(processor), Endpoint.COMPLETIONS, prompt=[[1, 2, 3], [4, 5]], n=3)
    assert len(made.jobs) == 6
    assert made.prompt_tokens == 5
    assert [job.leg.request_id for job in made.jobs] == ["r1", "r1-1", "r1-2", "r1-3", "r1-4", "r1-5"]
