"""Rendering and tokenising with real tokenizer files."""

import json
from pathlib import Path

import pytest

from fixtures.plain_tokenizer import make_tokenizer
from pointsman.gateway.errors import RequestInvalid
from pointsman.gateway.processor import PROBE_CHATS, PROBE_TEXTS, TextProcessor, TokenizerUnusable


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    made: Path = tmp_path_factory.mktemp("model")
    make_tokenizer(made)
    (made / "generation_config.json").write_text(json.dumps({"max_new_tokens": 77}))
    return made


def test_texts_and_chats_become_the_tokenizers_own_ids(folder: Path) -> None:
    from transformers import AutoTokenizer

    theirs = AutoTokenizer.from_pretrained(folder)
    ours = TextProcessor.load(folder)
    for text in PROBE_TEXTS:
        assert ours.encode(text) == theirs(text)["input_ids"]
        assert ours.encode(text, add_special_tokens=False) == ours.encode(text)[1:]
    for messages in PROBE_CHATS:
        expected = theirs.apply_chat_template(messages, add_generation_prompt=True, return_dict=False)
        assert ours.render(messages) == expected
    assert ours.has_chat_template
    assert ours.default_max_tokens == 77


def test_a_template_that_refuses_is_the_clients_mistake(tmp_path: Path) -> None:
    make_tokenizer(tmp_path, chat_template="{{ raise_exception('no system role') }}")
    with pytest.raises(RequestInvalid, match="chat template refuses 'messages': no system role"):
        TextProcessor.load(tmp_path).render([{"role": "system", "content": "x"}])


def test_a_template_cannot_reach_python(tmp_path: Path) -> None:
    make_tokenizer(tmp_path, chat_template="{{ messages.__class__.__mro__ }}")
    with pytest.raises(RequestInvalid):
        TextProcessor.load(tmp_path).render([{"role": "user", "content": "x"}])


def test_a_model_without_a_template_says_so(tmp_path: Path) -> None:
    make_tokenizer(tmp_path, chat_template=None)
    assert not TextProcessor.load(tmp_path).has_chat_template


def test_files_that_are_no_tokenizer_are_named_as_such(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text("{}")
    with pytest.raises(TokenizerUnusable):
        TextProcessor.load(tmp_path)
