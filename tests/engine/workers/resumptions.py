"""Streams that break anywhere and are resumed, over vLLM's own detokenizer; only what the engine samples is given.

    python -m engine.workers.resumptions SEED ...

Prints JSON: how many answers, and those that came out otherwise than unbroken. Runs in the engine environment. Tokens
are single bytes, so that most characters and stop strings lie across several of them, and across the break.
"""

import asyncio
import json
import random
import sys
from collections.abc import AsyncGenerator, Sequence
from itertools import chain
from typing import Any

from tokenizers import Tokenizer, decoders, models, pre_tokenizers
from transformers import PreTrainedTokenizerFast
from vllm import SamplingParams
from vllm.outputs import CompletionOutput, RequestOutput
from vllm.sampling_params import RequestOutputKind

from pointsman.api.protocol.resume import Resume, ResumedChoice
from pointsman.workers.resumption import resumed

ANSWERS, LONGEST = 200, 24
LETTERS = ("a", "b", "ab", "é", "线", "🚉", " ", "stop")
PROMPT = {"prompt_token_ids": [1, 2, 3]}


def byte_tokenizer() -> PreTrainedTokenizerFast:
    """A token for each byte."""
    vocabulary = {letter: number for number, letter in enumerate(sorted(pre_tokenizers.ByteLevel.alphabet()))}
    made = Tokenizer(models.BPE(vocabulary, merges=[]))
    made.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    made.decoder = decoders.ByteLevel()
    return PreTrainedTokenizerFast(tokenizer_object=made)


def pieces(rng: random.Random, tokens: Sequence[int]) -> list[list[int]]:
    """As an engine's steps bring them: mostly one by one."""
    found, rest = [], list(tokens)
    while rest:
        count = rng.choice((1, 1, 1, 2, 3))
        found.append(rest[:count])
        rest = rest[count:]
    return found


async def answer(
    tokenizer: Any, params: SamplingParams, told: list[list[int]], sampled: list[list[int]]
) -> tuple[str, list[int], str | None, Any]:
    """Text, tokens, finish reason and stop reason of an answer of which ``told`` is there already."""

    async def generate(prompt: Any, asked: Any, request_id: str) -> AsyncGenerator[Any, None]:
        assert prompt["prompt_token_ids"] == [*PROMPT["prompt_token_ids"], *chain(*told)]
        left = asked.max_tokens
        assert left == sum(map(len, sampled)), "what is left of the limit"
        for number, chunk in enumerate(sampled):
            left -= len(chunk)
            reason = "length" if left == 0 or number == len(sampled) - 1 else None
            output = CompletionOutput(0, "", chunk, None, None, finish_reason=reason)
            yield RequestOutput(request_id, None, prompt["prompt_token_ids"], None, [output], reason is not None)

    resume = Resume(choices=(ResumedChoice(chunks=tuple(map(tuple, told))),))
    text, tokens, finish, stop = "", [], None, None
    async for output in resumed(generate, tokenizer, PROMPT, params, "r", resume):
        (part,) = output.outputs
        assert finish is None, "nothing comes after the end"
        text += part.text
        tokens += part.token_ids
        finish, stop = part.finish_reason, part.stop_reason
    return text, tokens, finish, stop


async def two_answers(tokenizer: Any) -> list[list[Any]]:
    """Text and finish reasons of two choices whose engine is ahead of its reader when their stop string comes."""
    params = SamplingParams(n=2, temperature=1, max_tokens=20, stop=["stop"], output_kind=RequestOutputKind.DELTA)

    async def generate(prompt: Any, _asked: Any, request_id: str) -> AsyncGenerator[Any, None]:
        for token in tokenizer.encode("op after" if request_id.endswith("-0") else "op again"):
            output = CompletionOutput(0, "", [token], None, None)
            yield RequestOutput(request_id, None, prompt["prompt_token_ids"], None, [output], False)

    told = ResumedChoice(chunks=(tuple(tokenizer.encode("a st")),))
    found: list[list[Any]] = [["", []], ["", []]]
    async for output in resumed(generate, tokenizer, PROMPT, params, "r", Resume(choices=(told, told))):
        (part,) = output.outputs
        found[part.index][0] += part.text
        found[part.index][1] += [] if part.finish_reason is None else [part.finish_reason]
    return found


async def main(seeds: list[int]) -> dict[str, Any]:
    """See the module."""
    tokenizer, wrong, stopped = byte_tokenizer(), [], 0
    for seed in seeds:
        rng = random.Random(seed)
        for _ in range(ANSWERS):
            words = "".join(rng.choice(LETTERS) for _ in range(rng.randrange(1, LONGEST)))
            tokens = tokenizer.encode(words)
            stops = rng.choice((None, ["stop"], ["🚉", "ba"], ["é线"]))
            params = SamplingParams(
                max_tokens=len(tokens), stop=stops, output_kind=RequestOutputKind.DELTA,
                include_stop_str_in_output=rng.random() < 0.3,
            )  # fmt: skip
            chunks = pieces(rng, tokens)
            whole = await answer(tokenizer, params, [], chunks)
            stopped += whole[2] == "stop"
            if stops is None or len(stops) == 1:
                before, found, _ = words.partition(stops[0]) if stops else (words, "", "")
                if whole[0] != before + (found if params.include_stop_str_in_output else ""):
                    wrong.append([words, stops, 0, whole, None])
            kept = len(whole[1])  # a stream ends where its stop string does, so it cannot break after that
            breaks = [at for at in range(1, len(chunks)) if sum(map(len, chunks[:at])) < kept]
            for at in breaks:
                resumed_answer = await answer(tokenizer, params, chunks[:at], chunks[at:])
                if resumed_answer != whole:
                    wrong.append([words, stops, at, whole, resumed_answer])
    return {
        "answers": ANSWERS * len(seeds),
        "stopped": stopped,
        "wrong": wrong[:5],
        "two": await two_answers(tokenizer),
    }


if __name__ == "__main__":
    print(json.dumps(asyncio.run(main([int(seed) for seed in sys.argv[1:]]))))
