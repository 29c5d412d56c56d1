"""From messages to token ids, exactly as the engine would: the model's own tokenizer and chat template.

The gateway mounts no model. Tokenizer and template files come from a worker, named by content hash, and are checked
against it. That the gateway's rendering equals the engine's is not assumed but *proved* for every worker before it is
relied on: a few probe conversations and texts are tokenised on both sides (`proof_probes`). An engine may have been
started with another template, another content format or other defaults; then chats go to it as they are.

transformers is used without torch; it renders with the same code and sandbox as vLLM.
"""

import json
import re
import threading
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import jinja2

from pointsman.api.protocol.control import ModelInfo
from pointsman.gateway.errors import RequestInvalid

INLINE_CHARACTERS = 20_000
"""Longer bodies are tokenised in a thread, so that they do not stall the streams of others (about 1 ms each)."""

USUAL_CHARACTERS_PER_TOKEN = 8
"""A text with more of them for each token of the context is counted in slices first."""

SLICE_CHARACTERS = 65_536
SLICE_SURPLUS = 1.1
"""Slices may have more tokens than the text: at their edges, for a word that is cut."""


class TokenizerUnusable(RuntimeError):
    """The files make no tokenizer here; says why."""


_IMPORTING = threading.Lock()
"""transformers loads its parts when they are first named, and that fails while another thread is at it."""


class TextProcessor:
    """Tokenizer and chat template of one model."""

    def __init__(self, tokenizer: Any, *, default_max_tokens: int | None = None) -> None:
        self._tokenizer = tokenizer
        self.default_max_tokens = default_max_tokens

    @staticmethod
    def prepare() -> None:
        """Import what ``load`` needs. Takes a second of a core, best spent while the first workers still start."""
        with _IMPORTING:
            from transformers import AutoTokenizer, PreTrainedTokenizerFast  # noqa: F401

    @classmethod
    def load(cls, folder: Path) -> "TextProcessor":
        """The tokenizer in ``folder``. Runs no code from there. Raises TokenizerUnusable."""
        cls.prepare()
        from transformers import AutoTokenizer
        from transformers.utils import logging as transformers_logging

        transformers_logging.set_verbosity_error()
        try:
            tokenizer = AutoTokenizer.from_pretrained(folder, local_files_only=True, trust_remote_code=False)
        except Exception as error:
            raise TokenizerUnusable(f"{type(error).__name__}: {error}") from error
        return cls(tokenizer, default_max_tokens=_default_max_tokens(folder))

    @cached_property
    def has_chat_template(self) -> bool:
        """Whether conversations can be rendered at all."""
        return bool(self._tokenizer.chat_template)

    @cached_property
    def longest_token_characters(self) -> int:
        """Characters of the vocabulary's longest token."""
        return max((len(token) for token in self._tokenizer.get_vocab()), default=1)

    def is_longer(self, text: str, max_tokens: int) -> bool:
        """Whether ``text`` certainly has more than ``max_tokens``; never tokenises much more than that many.

        Texts that may fit are left to ``encode``.
        """
        if len(text) <= max_tokens * USUAL_CHARACTERS_PER_TOKEN:
            return False
        if len(text) > max_tokens * self.longest_token_characters:
            return True
        tokens = 0
        for start in range(0, len(text), SLICE_CHARACTERS):
            tokens += len(self.encode(text[start : start + SLICE_CHARACTERS], add_special_tokens=False))
            if tokens > max_tokens * SLICE_SURPLUS:
                return True
        return False

    def encode(self, text: str, *, add_special_tokens: bool = True) -> list[int]:
        """Token ids of a completion's prompt."""
        return list(self._tokenizer(text, add_special_tokens=add_special_tokens)["input_ids"])

    def render(self, messages: list[dict[str, Any]], *, tools: list[Any] | None = None) -> list[int]:
        """Token ids of a conversation that ends where the assistant begins. Raises RequestInvalid.

        Exact for messages of plain text without tools (see `pointsman.gateway.core.requests.needs_engine`); of others
        the engine may make something else.
        """
        return self.encode(self.render_text(messages, tools=tools), add_special_tokens=False)

    def render_text(self, messages: list[dict[str, Any]], *, tools: list[Any] | None = None) -> str:
        """The text of which ``render`` makes ids. Raises RequestInvalid."""
        try:
            return str(
                self._tokenizer.apply_chat_template(
                    messages, tools=tools or None, tokenize=False, add_generation_prompt=True
                )
            )
        except (jinja2.TemplateError, ValueError, TypeError, LookupError, AttributeError) as error:
            raise RequestInvalid(f"The model's chat template refuses 'messages': {error}.", param="messages") from error

    def without_media(self, messages: list[dict[str, Any]]) -> list[dict[str, Any]]:
        """``messages`` whose lists of parts are their texts, as engines hand them to a template that takes texts.

        Images and other media are left out: what the engine makes of them are not the characters of their addresses.
        """
        return [
            message | {"content": _texts(message["content"], as_parts=self._takes_parts)}
            if isinstance(message.get("content"), list)
            else message
            for message in messages
        ]

    @cached_property
    def _takes_parts(self) -> bool:
        """Whether the template goes through the parts of a message's content itself."""
        return bool(_LOOPS_OVER_CONTENT.search(str(self._tokenizer.chat_template)))


_LOOPS_OVER_CONTENT = re.compile(r"\bin\s+(?:\w+(?:\.|\[['\"]))?content\b")


def _texts(parts: list[Any], *, as_parts: bool) -> Any:
    texts = []
    for part in parts:
        text = part.get("text") if isinstance(part, dict) else part
        if isinstance(text, str):
            texts.append(text)
    return [{"type": "text", "text": text} for text in texts] if as_parts else "\n".join(texts)


@dataclass(frozen=True, slots=True)
class Model:
    """What one or more workers serve, and how far the gateway can stand in for their tokenizer.

    ``chat_verified``: the gateway renders conversations to the same ids as the engine; ``text_verified``: likewise
    texts. ``doubt`` says why not.
    """

    info: ModelInfo
    processor: TextProcessor | None
    text_verified: bool
    chat_verified: bool
    doubt: str = ""

    @property
    def default_max_tokens(self) -> int | None:
        """Limit of a chat answer that names none: the worker's word, else the model's generation config; None: none."""
        if self.info.chat_max_tokens is not None:
            return self.info.chat_max_tokens
        return self.processor.default_max_tokens if self.processor is not None else None

    @property
    def digest(self) -> str:
        """Equal digests tokenise alike, with the same trust."""
        return f"{self.info.digest}/{self.info.served_name}/{int(self.text_verified)}{int(self.chat_verified)}"


PROBE_TEXTS = (
    "The pointsman works the switches of a railway.",
    "  leading and trailing blanks \n\n tabs\t and ünïcödé — 线路 🚉 <s></s> ",
)

PROBE_CHATS: tuple[list[dict[str, Any]], ...] = (
    [{"role": "user", "content": "Which line is free?"}],
    [{"role": "system", "content": "You are a pointsman."}, {"role": "user", "content": " Über 线路 🚉?\n"}],
    [
        {"role": "user", "content": "One"},
        {"role": "assistant", "content": "Two"},
        {"role": "user", "content": "Three"},
        {"role": "assistant", "content": "Four\n\nfive"},
        {"role": "user", "content": "Six"},
    ],
)
"""Single turn, system message, several turns, text beyond ASCII, blanks at the edges: where renderings differ."""


def _default_max_tokens(folder: Path) -> int | None:
    """``max_new_tokens`` of the model's generation config: vLLM's default limit of a chat answer."""
    path = folder / "generation_config.json"
    try:
        value = json.loads(path.read_text()).get("max_new_tokens")
    except (OSError, ValueError, AttributeError):
        return None
    return value if isinstance(value, int) else None
