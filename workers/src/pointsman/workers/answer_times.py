"""How long an answer took from its first to its last token, for answers that are not streamed.

A whole answer reaches the gateway after its last token. vLLM knows when the first one came, but its OpenAI server does
not report it. So the engine client notes it (``RequestOutput.metrics``) for the request that asked for the answer.
"""

from collections.abc import AsyncGenerator, Iterator
from contextlib import aclosing, contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from typing import Any


@dataclass(slots=True)
class AnswerTime:
    """``decode_s``: seconds between first and last token, the longest of several prompts; None: not known (yet)."""

    decode_s: float | None = None

    def note(self, output: Any) -> None:
        """Take vLLM's ``output`` of a whole answer; it has no metrics with ``--disable-log-stats``."""
        stats = getattr(output, "metrics", None)
        if stats is not None and output.finished and stats.first_token_ts > 0:
            self.decode_s = max(self.decode_s or 0.0, stats.last_token_ts - stats.first_token_ts)


_timed: ContextVar[AnswerTime | None] = ContextVar("timed", default=None)


@contextmanager
def timed() -> Iterator[AnswerTime]:
    """The time of the whole answers that the engine is asked for in this context."""
    time = AnswerTime()
    token = _timed.set(time)
    try:
        yield time
    finally:
        _timed.reset(token)


def teach(engine_client: Any) -> bool:
    """Make vLLM's ``engine_client`` report times to :func:`timed`; False: it has no way that is known here."""
    generate = getattr(engine_client, "generate", None)
    if generate is None:
        return False

    def generate_timed(prompt: Any, sampling_params: Any, request_id: str, **more: Any) -> Any:
        found, time = generate(prompt, sampling_params, request_id, **more), _timed.get()
        is_whole = getattr(getattr(sampling_params, "output_kind", None), "name", "") == "FINAL_ONLY"
        return found if time is None or not is_whole else _noted(found, time)

    engine_client.generate = generate_timed
    return True


async def _noted(outputs: AsyncGenerator[Any, None], time: AnswerTime) -> AsyncGenerator[Any, None]:
    async with aclosing(outputs) as found:
        async for output in found:
            time.note(output)
            yield output
