"""Grammars of resumed streams: vLLM's structured outputs begin where the broken answer stopped.

A resumed request has the answer so far in its prompt (``pointsman.workers.resumption``), and vLLM begins a grammar with
the first token that it samples. So the engine is told how many of the last prompt tokens are the answer's, and a new
grammar takes these first. With a reasoning parser a grammar begins after the reasoning; it takes what follows that.
"""

from bisect import bisect_left
from collections.abc import Callable, Sequence
from typing import Any

from pointsman.workers.core.prompts import RESUMED_TOKENS


def possible() -> bool:
    """Whether this version of vLLM makes its grammars where `teach` looks for it."""
    from vllm.v1.structured_output import StructuredOutputManager

    return hasattr(StructuredOutputManager, "_create_grammar")


def teach() -> None:
    """Make this process's grammars take the answer so far first. May be called more than once."""
    from vllm.v1.structured_output import StructuredOutputManager as Manager

    original: Any = getattr(Manager, "_create_grammar", None)
    if original is None or getattr(original, "resumes", False):
        return

    def create(manager: Any, request: Any) -> Any:
        grammar = original(manager, request)
        count = ((request.sampling_params and request.sampling_params.extra_args) or {}).get(RESUMED_TOKENS, 0)
        reasoner = None if manager.enable_in_reasoning else manager._get_reasoner(request)
        told = grammar_tokens(request.prompt_token_ids, count, reasoner and reasoner.is_reasoning_end)
        if not grammar.accept_tokens(request.request_id, told):
            raise ValueError("the answer so far does not follow the grammar of this request")
        return grammar

    create.resumes = True  # type: ignore[attr-defined]
    Manager._create_grammar = create


def grammar_tokens(
    prompt: Sequence[int], count: int, is_reasoning_end: Callable[[Sequence[int]], bool] | None
) -> list[int]:
    """Of the last ``count`` tokens of ``prompt`` those that a grammar has to take; none while reasoning goes on."""
    start = len(prompt) - count
    if is_reasoning_end is not None and count > 0:
        start += bisect_left(range(count + 1), True, key=lambda told: is_reasoning_end(prompt[: start + told]))
    return list(prompt[start:])
