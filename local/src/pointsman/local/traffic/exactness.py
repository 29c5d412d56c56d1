"""Token-exactness: the same greedy prompts to two endpoints must bring the same tokens.

Only meaningful in float32 and against a reference that agrees with itself (one prompt at a time and many at a time):
in bfloat16 a plain server already differs from itself by how requests are batched.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from pointsman.local.traffic.types import Record


@dataclass(frozen=True, slots=True)
class Difference:
    """One prompt that was answered differently, for a person to look at."""

    index: int
    prompt_tokens: int | None
    path: str
    first_difference: int | None
    detail: str


@dataclass(frozen=True, slots=True)
class Comparison:
    """How many of the ``compared`` prompts were answered alike."""

    compared: int
    differences: tuple[Difference, ...]

    @property
    def exact(self) -> bool:
        """Every prompt was answered alike, and there was at least one."""
        return self.compared > 0 and not self.differences


def compare(reference: Sequence[Record], subject: Sequence[Record]) -> Comparison:
    """Compare answers to the same prompts, matched by prompt index.

    Raises ValueError if the two sides were not asked the same prompts: an exactness of nothing is no exactness.
    """
    expected = {record.prompt.index: record for record in reference}
    found = {record.prompt.index: record for record in subject}
    if {i: r.prompt for i, r in expected.items()} != {i: r.prompt for i, r in found.items()}:
        raise ValueError(f"the sides got different prompts: {len(expected)} and {len(found)} distinct ones")
    if len(expected) != len(reference) or len(found) != len(subject):
        raise ValueError("a prompt index appears twice on one side")
    pairs = [(expected[index], found[index]) for index in sorted(expected)]
    return Comparison(len(pairs), tuple(_difference(a, b) for a, b in pairs if not a.answers_like(b)))


def _difference(expected: Record, found: Record) -> Difference:
    if not (expected.served and found.served):
        detail = f"not served: {expected.error or found.error}"
    elif expected.finish_reason != found.finish_reason:
        detail = f"ended with {found.finish_reason!r} instead of {expected.finish_reason!r}"
    else:
        detail = f"{found.text!r} instead of {expected.text!r}"[:200]
    left: Sequence[object] = expected.token_ids if expected.token_ids is not None else expected.text
    right: Sequence[object] = found.token_ids if found.token_ids is not None else found.text
    first = next((i for i, (a, b) in enumerate(zip(left, right, strict=False)) if a != b), None)
    return Difference(found.prompt.index, found.prompt_tokens, found.path or "unknown", first, detail)
