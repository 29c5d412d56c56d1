"""How uneven requests are, and how their context compares with what their lengths say."""

from collections.abc import Sequence
from dataclasses import dataclass

from pointsman.api.protocol.names import Role
from pointsman.planner.core.types import EngineSample
from pointsman.planner.core.workload.request_lengths import Lengths


@dataclass(frozen=True, slots=True)
class Shape:
    """How uneven requests are, and how their context compares with prompt + output/2."""

    prefill_tokens: float = 0.0  # mean and mean square of single prompts' tokens
    prefill_squares: float = 0.0
    prefill_scv: float = 0.1
    context_ratio: float = 1.0
    context_scv: float = 0.1

    def observe(self, samples: Sequence[EngineSample], lengths: Lengths) -> "Shape":
        """Take this tick's passes and steps."""
        mean, squares = self.prefill_tokens, self.prefill_squares
        held = sequences = spread = spread_of = 0.0
        for sample in samples:
            if sample.tokens is None or sample.tokens <= 0:
                continue
            each = sample.tokens / max(sample.batch, 1.0)
            if sample.role is Role.PREFILL:
                weight = 0.02 if mean > 0 else 1.0
                mean += weight * (each - mean)
                squares += weight * (each * each * (1 + (sample.tokens_scv or 0.0)) - squares)
            else:
                held += sample.tokens
                sequences += sample.batch
                if sample.tokens_scv is not None:
                    spread += sample.tokens_scv * each * each * sample.batch
                    spread_of += sample.batch
        scv = self.prefill_scv
        if len(lengths.shares) > 1:
            average = sum(n * share for n, share in lengths.shares)
            scv = sum(n * n * share for n, share in lengths.shares) / (average * average) - 1
        elif mean > 0:
            scv = squares / (mean * mean) - 1
        ratio, context_scv = self.context_ratio, self.context_scv
        if sequences > 3 and lengths.prompt_tokens is not None and lengths.output_tokens is not None:
            average = held / sequences
            expected = max(1.0, lengths.prompt_tokens + lengths.output_tokens / 2)
            ratio += 0.05 * (min(3.0, max(0.6, average / expected)) - ratio)
            # Where the engine does not tell, contexts are as uneven as the prompts they begin with.
            if spread_of <= 0:
                context_scv += 0.05 * (min(4.0, max(0.0, scv)) - context_scv)
            else:
                context_scv += 0.05 * (min(4.0, spread / spread_of / (average * average)) - context_scv)
        return Shape(mean, squares, min(4.0, max(0.05, scv)), ratio, context_scv)

    def context_tokens(self, lengths: Lengths) -> float:
        """KV tokens of a decoding sequence, on average."""
        return max(1.0, ((lengths.prompt_tokens or 0.0) + (lengths.output_tokens or 0.0) / 2) * self.context_ratio)
