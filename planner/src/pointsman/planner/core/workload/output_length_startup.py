"""How long answers are while most of those that were begun have not ended.

Those that end first are the short ones: ten seconds after a start their mean may be a third of the truth, and a decode
pool made for it is overrun. So the tokens that were decoded are shared among those that ended: right at once where
lengths are spread as exponential ones are, right in the long run whatever they are (Little's law). Where lengths are
alike no answer ends at first, and then many at once. So a window counts by the square of how far an answer could have
got by then.

Source: the estimate of a mean from those still under test, total time on test over failures (Epstein and Sobel, "Life
Testing", JASA 48, 1953).
"""

from dataclasses import dataclass

from pointsman.planner.core.types import Load


@dataclass(frozen=True, slots=True)
class FirstAnswers:
    """Sums since answers were first seen. ``decoded``: tokens of all sequences, and ``ended``: answers, both weighted;
    ``advance``: tokens of a sequence that always ran; ``of_all``: answers that ended, each counted once."""

    decoded: float = 0.0
    advance: float = 0.0
    ended: float = 0.0
    running: float = 0.0
    of_all: float = 0.0
    over: bool = False

    def observe(self, load: Load, window_s: float) -> "FirstAnswers":
        """Take one window; of one that is not known whole neither the tokens nor the ends are counted."""
        if self.over or load.decoding is None or load.ended_per_s is None:
            return self
        if load.step_ms is None and load.decoding > 0:
            return self  # they got tokens, and nobody says how many
        tokens = window_s * 1000 / load.step_ms if load.step_ms else 0.0
        advance = self.advance + tokens
        weight = (self.advance / advance) ** 2 if advance > 0 else 1.0  # of earlier windows, the present one's is 1
        now = load.ended_per_s * window_s
        of_all, ended = self.of_all + now, weight * self.ended + now
        # While less than a tenth of those begun still run, those that ended say enough.
        over = of_all > 0 and load.decoding <= 0.1 * (of_all + load.decoding)
        decoded = weight * self.decoded + tokens * (self.running + load.decoding) / 2
        return FirstAnswers(decoded, advance, ended, load.decoding, of_all, over)

    @property
    def output_tokens(self) -> float | None:
        """The mean output, in tokens; None: nothing ended, or those that did say enough.

        Nobody is taken for longer than what one could have decoded since the start.
        """
        if self.over or self.ended <= 0:
            return None
        return min(self.decoded / self.ended, self.advance)
