"""A broken stream on its way to the worker that resumes it: a field of the request's body, gateway to worker.

The body is the broken request's own. The worker feeds the sampled tokens through its endpoint again in the same pieces,
so that tool and reasoning parsers, detokenizer and stop strings reach the same state, and goes on from there. Its
answer has every event of the broken stream once more; the gateway passes on those that the client does not have.
A worker that does so says it with the header ``RESUMED``; one that does not know the field ignores it.
"""

from typing import Final

from pointsman.api.protocol.control import Wire

RESUME_FIELD: Final = "pointsman_resume"


class ResumedChoice(Wire):
    """One choice: the token ids of each event so far, and how the choice ended if it did."""

    chunks: tuple[tuple[int, ...], ...] = ()
    finish_reason: str | None = None


class Resume(Wire):
    """The choices of a broken stream, by index."""

    choices: tuple[ResumedChoice, ...]
