"""Resuming a stream that broke at another worker: its tokens so far are fed through this engine's endpoint again.

The gateway sends the broken request once more with the token ids of each event (`pointsman.api.protocol.resume`). The
engine samples what follows them; its endpoint, with parsers, stop strings and log-probabilities, sees the whole answer
in the same pieces as the first engine's did. So the state of all of these is the first engine's, and the gateway
passes on only what the client does not have.

What the engine itself reckons from an answer's tokens (penalties) cannot be rebuilt this way. The gateway does not ask
for it; a request whose parameters turn out to have such a state is refused. Grammars are told the answer so far
(``pointsman.workers.vllm.grammar_resume``).
"""

import asyncio
import copy
import importlib
import logging
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Iterator, Sequence
from contextlib import aclosing, contextmanager
from contextvars import ContextVar
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

from pydantic import ValidationError

from pointsman.api.protocol.resume import RESUME_FIELD, Resume, ResumedChoice
from pointsman.workers.core.prompts import RESUMED_TOKENS
from pointsman.workers.vllm import grammar_resume

log = logging.getLogger(__name__)

_resuming: ContextVar[Resume | None] = ContextVar("resuming", default=None)


def resume_of(body: dict[str, Any]) -> Resume | None:
    """What ``body`` tells of a broken stream, taken out of it; None: nothing, or nothing that can be read."""
    try:
        return Resume.model_validate(body.pop(RESUME_FIELD, None))
    except ValidationError:
        return None


@contextmanager
def resuming(resume: Resume | None) -> Iterator[None]:
    """What the engine is asked for in this context resumes ``resume``, if that is one."""
    token = _resuming.set(resume)
    try:
        yield
    finally:
        _resuming.reset(token)


def teach(engine_client: Any) -> bool:
    """Make vLLM's ``engine_client`` resume streams; False: it has no way that is known here."""
    generate = getattr(engine_client, "generate", None)
    tokenizer = getattr(getattr(engine_client, "renderer", None), "tokenizer", None)
    if generate is None or tokenizer is None:
        return False

    def generate_or_resume(prompt: Any, sampling_params: Any, request_id: str, **more: Any) -> Any:
        resume = _resuming.get()
        if resume is None:
            return generate(prompt, sampling_params, request_id, **more)
        return resumed(lambda *asked: generate(*asked, **more), tokenizer, prompt, sampling_params, request_id, resume)

    engine_client.generate = generate_or_resume
    return True


Generate = Callable[[Any, Any, str], AsyncGenerator[Any, None]]


async def resumed(
    generate: Generate, tokenizer: Any, prompt: Any, params: Any, request_id: str, resume: Resume
) -> AsyncGenerator[Any, None]:
    """vLLM's outputs of the whole answer: first what ``resume`` has, in the same pieces, then what the engine samples.

    ``prompt`` is an engine input with ``prompt_token_ids``. Raises ValueError for what cannot be resumed.
    """
    _check(prompt, params, resume)
    choices = [_ResumedChoice(tokenizer, prompt, params, index, choice) for index, choice in enumerate(resume.choices)]
    live = [choice for choice in choices if choice.told.finish_reason is None]
    pieces = _merged(
        [
            choice.outputs(generate, request_id if len(choices) == 1 else f"{request_id}-{choice.index}")
            for choice in live
        ]
    )
    first = True
    open_choices = len(live)
    async with aclosing(pieces):
        async for choice, output in pieces:
            if first:
                first = False
                for other in choices:
                    for piece in other.repeated(output.outputs[0]):
                        yield _output(output, prompt, piece, finished=False)
            if choice.ended:
                continue  # of several choices the engine may be ahead: this came after a stop string
            new = choice.next(output.outputs[0])
            open_choices -= new.finish_reason is not None
            yield _output(output, prompt, new, finished=not open_choices)


class _ResumedChoice:
    """One choice: its text so far, rebuilt by vLLM's own detokenizer, which then goes on with what is sampled."""

    def __init__(self, tokenizer: Any, prompt: Any, params: Any, index: int, told: ResumedChoice) -> None:
        self.index = index
        self.told = told
        self.ended = False
        self._tokenizer = tokenizer
        self._prompt = prompt
        self._params = params
        detokenizers = importlib.import_module("vllm.v1.engine.detokenizer")
        self._text = detokenizers.IncrementalDetokenizer.from_new_request(
            tokenizer if params.detokenize else None,
            SimpleNamespace(
                request_id=f"resumed-{index}",
                sampling_params=params,
                prompt_token_ids=prompt["prompt_token_ids"],
                prompt_embeds=None,
            ),
        )

    async def outputs(self, generate: Generate, request_id: str) -> AsyncGenerator[tuple["_ResumedChoice", Any], None]:
        """What the engine samples after the tokens so far; ends also where a stop string does."""
        sampled = [token for chunk in self.told.chunks for token in chunk]
        params = copy.copy(self._params)
        params.n = 1
        params.max_tokens = self._params.max_tokens - len(sampled)
        params.min_tokens = max(self._params.min_tokens - len(sampled), 0)
        params.stop = []  # found by this choice's own detokenizer, in the text of the whole answer
        if self._params.structured_outputs is not None:
            params.extra_args = {**(self._params.extra_args or {}), RESUMED_TOKENS: len(sampled)}
        if self._params.seed is not None:
            params.seed = self._params.seed + self.index
        prompt = {**self._prompt, "prompt_token_ids": [*self._prompt["prompt_token_ids"], *sampled]}
        async with aclosing(generate(prompt, params, request_id)) as found:
            async for output in found:
                yield self, output
                if self.ended:
                    return

    def repeated(self, like: Any) -> Iterator[Any]:
        """The completion outputs of the tokens so far, made from a real one."""
        for number, chunk in enumerate(self.told.chunks):
            last = number == len(self.told.chunks) - 1
            finish_reason = self.told.finish_reason if last else None
            self._text.update(list(chunk), finish_reason == "stop")
            yield replace(
                like,
                index=self.index,
                token_ids=list(chunk),
                text=self._text.get_next_output_text(finish_reason is not None, True),
                logprobs=self._unknown_logprobs(chunk),
                finish_reason="stop" if finish_reason == "tool_calls" else finish_reason,
                stop_reason=None,
            )

    def next(self, output: Any) -> Any:
        """``output``, as part of the whole answer."""
        before = self._text.num_output_tokens()
        stop_string = self._text.update(list(output.token_ids), output.finish_reason == "stop")
        kept = self._text.num_output_tokens() - before
        made = replace(output, index=self.index)
        if stop_string is not None:
            made.finish_reason, made.stop_reason = "stop", stop_string
            made.token_ids = list(output.token_ids)[:kept]
            made.logprobs = None if output.logprobs is None else output.logprobs[:kept]
        self.ended = made.finish_reason is not None
        made.text = self._text.get_next_output_text(self.ended, True)
        return made

    def _unknown_logprobs(self, chunk: Sequence[int]) -> list[dict[int, Any]] | None:
        """For tokens whose log-probabilities the client has: their texts are what offsets are counted from."""
        if self._params.logprobs is None:
            return None
        logprob = importlib.import_module("vllm.logprobs").Logprob
        return [{token: logprob(0.0, 1, self._tokenizer.decode([token]))} for token in chunk]


def _check(prompt: Any, params: Any, resume: Resume) -> None:
    if not isinstance(prompt, dict) or not prompt.get("prompt_token_ids"):
        raise ValueError("only a prompt of token ids can be resumed")
    if len(resume.choices) != params.n:
        raise ValueError(f"{len(resume.choices)} choices of {params.n} can not be resumed")
    for name in ("presence_penalty", "frequency_penalty", "repetition_detection", "bad_words"):
        if getattr(params, name, None):
            raise ValueError(f"{name} counts the tokens of the answer: its stream cannot be resumed")
    if params.structured_outputs is not None and not grammar_resume.possible():
        raise ValueError("this version of vLLM cannot resume a grammar")
    for choice in resume.choices:
        sampled = sum(map(len, choice.chunks))
        if choice.finish_reason is None and sampled >= params.max_tokens:
            raise ValueError(f"all {sampled} tokens were sampled already")


def _output(like: Any, prompt: Any, completion: Any, *, finished: bool) -> Any:
    """``like``, a real output, with ``completion`` in place of its own; the prompt is the request's own."""
    made = copy.copy(like)
    length = len(prompt["prompt_token_ids"])
    made.prompt_token_ids = list(prompt["prompt_token_ids"])
    made.outputs = [completion]
    made.finished = finished
    if made.num_cached_tokens is not None:
        made.num_cached_tokens = min(made.num_cached_tokens, length)
    return made


async def _merged(streams: Sequence[AsyncIterator[Any]]) -> AsyncGenerator[Any, None]:
    """Items of all streams as they come; the first failure ends it."""
    if len(streams) == 1:
        async with aclosing(streams[0]) as only:  # type: ignore[type-var]  # generators, each closed by whoever reads it
            async for item in only:
                yield item
        return
    queue: asyncio.Queue[Any] = asyncio.Queue()

    async def follow(stream: Any) -> None:
        try:
            async with aclosing(stream):
                async for item in stream:
                    queue.put_nowait((item, None))
            queue.put_nowait((None, None))
        except Exception as error:  # noqa: BLE001  # raised again by whoever reads the queue
            queue.put_nowait((None, error))

    tasks = [asyncio.create_task(follow(stream)) for stream in streams]
    try:
        left = len(tasks)
        while left:
            item, error = await queue.get()
            if error is not None:
                raise error
            if item is None:
                left -= 1
            else:
                yield item
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
