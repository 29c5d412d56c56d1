"""Requests for a LoRA adapter: accepted by its name, sent with it, and never routed by the model's own blocks."""

import json
from pathlib import Path
from typing import Any

import pytest

from fixtures.plain_tokenizer import make_tokenizer
from pointsman.api.protocol.control import ModelInfo
from pointsman.gateway.core.requests import Endpoint, ValidatedRequest, read
from pointsman.gateway.errors import ModelNotFound, RequestInvalid
from pointsman.gateway.planning import RequestPlan, plan
from pointsman.gateway.processor import Model, TextProcessor

PROMPT = list(range(40))


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Model:
    folder: Path = tmp_path_factory.mktemp("model")
    make_tokenizer(folder)
    info = ModelInfo(served_name="m", max_model_len=400, block_size=8, files=(), digest="d", adapters=("sql",))
    return Model(info, TextProcessor.load(folder), text_verified=True, chat_verified=True)


def asked(name: str, endpoint: Endpoint = Endpoint.COMPLETIONS, **fields: Any) -> ValidatedRequest:
    content = {"messages": [{"role": "user", "content": "a"}]} if endpoint is Endpoint.CHAT else {"prompt": PROMPT}
    return read(endpoint, json.dumps({"model": name, **content, **fields}).encode(), "m", adapters=("sql", "cooking"))


async def planned(model: Model, name: str, endpoint: Endpoint = Endpoint.COMPLETIONS, **fields: Any) -> RequestPlan:
    return await plan(asked(name, endpoint, **fields), model, request_id="r", created=1)


@pytest.mark.parametrize("endpoint", Endpoint)
@pytest.mark.parametrize("fields", [{}, {"echo": True}, {"tools": [{"type": "function", "function": {"name": "f"}}]}])
async def test_an_adapter_is_asked_for_by_its_name_as_tokens_and_verbatim(
    model: Model, endpoint: Endpoint, fields: dict[str, Any]
) -> None:
    made = await planned(model, "sql", endpoint, **fields)
    assert made.identity.model == "sql"
    assert {json.loads(prompt.worker_request.body)["model"] for prompt in made.prompts} == {"sql"}


async def test_the_models_blocks_are_no_adapters_blocks(model: Model) -> None:
    of_model, of_adapter, of_other = [
        tuple((await planned(model, name)).prompts[0].worker_request.chain) for name in ("m", "sql", "cooking")
    ]
    assert of_model
    assert not set(of_model) & set(of_adapter)
    assert not set(of_adapter) & set(of_other)


def test_another_name_is_refused_with_the_names_that_are_served() -> None:
    with pytest.raises(
        ModelNotFound, match=r"'gpt' does not exist; this service serves 'm' and its adapters 'cooking'"
    ):
        asked("gpt")
    with pytest.raises(RequestInvalid, match=r"'model' is missing; this service serves 'm' and its adapters"):
        asked("")
