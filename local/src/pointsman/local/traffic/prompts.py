"""Seeded prompts: the same seed gives the same prompts, so that two endpoints can be asked exactly the same."""

import random
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from pointsman.local.traffic.types import Api, Prompt

# Words of the trade; a random choice of them makes prompts whose prefixes differ from the first block on.
_WORDS = """
    track switch signal train station platform line junction depot engine wagon brake rail sleeper tunnel bridge
    freight express local night morning late early arrives departs waits passes turns stops runs the a of to from
    over under before after north south east west seven twelve forty hundred
""".split()  # noqa: SIM905 - sixty quoted words read worse


@dataclass(frozen=True, slots=True)
class Mix:
    """What a stream of prompts looks like.

    ``lengths`` are prompt lengths to choose from, each a half-open range of tokens; ``characters_per_token`` turns
    them into text lengths (the gateway's tokenizer decides the exact count, which the answer's usage reports).
    ``chat_share`` of the prompts are chats, ``stream_share`` are streamed, ``token_ids_share`` of the completions are
    sent as token ids below ``vocabulary`` (then the length is exact).
    """

    lengths: Sequence[range]
    max_tokens: range = range(16, 33)
    chat_share: float = 0.5
    stream_share: float = 0.75
    token_ids_share: float = 0.0
    vocabulary: range = range(3, 256)
    characters_per_token: float = 1.0

    def __post_init__(self) -> None:
        if not self.lengths or any(len(r) == 0 or r.start < 1 for r in self.lengths):
            raise ValueError(f"lengths is {self.lengths!r}: it needs at least one range of 1 or more tokens")
        for field in ("chat_share", "stream_share", "token_ids_share"):
            if not 0 <= getattr(self, field) <= 1:
                raise ValueError(f"{field} is {getattr(self, field)}: it must be between 0 and 1")


def prompts(mix: Mix, *, seed: int) -> Iterator[Prompt]:
    """An endless stream of prompts; each depends on ``seed`` and its index only, so a prefix of it is stable."""
    index = 0
    while True:
        yield _prompt(mix, index, random.Random(f"{seed}/{index}"))
        index += 1


def _prompt(mix: Mix, index: int, rng: random.Random) -> Prompt:
    # Ranges take turns, so that a short run already holds every length.
    tokens = rng.choice(mix.lengths[index % len(mix.lengths)])
    api = Api.CHAT if rng.random() < mix.chat_share else Api.COMPLETION
    stream = rng.random() < mix.stream_share
    max_tokens = rng.choice(mix.max_tokens)
    if api is Api.COMPLETION and rng.random() < mix.token_ids_share:
        ids = tuple(rng.choice(mix.vocabulary) for _ in range(tokens))
        return Prompt(index, api, stream, max_tokens, token_ids=ids)
    return Prompt(index, api, stream, max_tokens, text=_text(max(1, round(tokens * mix.characters_per_token)), rng))


def _text(characters: int, rng: random.Random) -> str:
    words: list[str] = []
    length = -1
    while length < characters:
        words.append(rng.choice(_WORDS))
        length += len(words[-1]) + 1
    return " ".join(words)[:characters]
