"""The latency objectives that a request is judged by."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Objectives:
    """In seconds. The TTFT objective grows with the prompt; TPOT is a mean over the answer."""

    ttft_s: float
    tpot_s: float
    ttft_s_per_prompt_token: float = 0.0

    def ttft_for(self, prompt_tokens: int) -> float:
        """The TTFT objective of one prompt, in seconds."""
        return self.ttft_s + self.ttft_s_per_prompt_token * prompt_tokens
