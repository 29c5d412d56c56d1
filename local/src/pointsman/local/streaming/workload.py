"""What the benchmark sends: prompts built from one base prompt, submitted at a steady interval."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Workload:
    """The requests of one run.

    ``repeats`` are cycled: request ``i`` repeats the base prompt ``repeats[i % len(repeats)]`` times, joined by blanks.
    ``unique`` appends the request's number, so that no prompt is a prefix of another one's cache entry.
    ``interval_s`` is the pause between two submissions; 0 submits all at once. ``stop_on_eos`` False asks for exactly
    ``max_new_tokens`` tokens with vLLM's ``ignore_eos``.
    """

    prompt: str
    repeats: tuple[int, ...] = (1,)
    unique: bool = False
    requests: int = 16
    interval_s: float = 0.0
    max_new_tokens: int = 64
    stop_on_eos: bool = True

    def prompts(self) -> list[str]:
        """The prompts in the order of submission."""
        return [self._prompt(number) for number in range(self.requests)]

    def _prompt(self, number: int) -> str:
        repeated = " ".join([self.prompt] * self.repeats[number % len(self.repeats)])
        return f"{repeated} [{number}]" if self.unique else repeated
