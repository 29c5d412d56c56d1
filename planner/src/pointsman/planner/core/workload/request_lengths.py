"""How long requests are: means over the last minutes, or over the last seconds once those differ for certain.

A smoothed mean is late exactly when it matters, after the mix has changed; a short one is noise all the time. So the
long mean is used until a test on the window means says that the recent ones are of another kind.
"""

import math
from dataclasses import dataclass, field
from typing import Final

from pointsman.planner.core.tuning import SHIPPED, Tuning
from pointsman.planner.core.types import Load
from pointsman.planner.core.workload.output_lengths import Answers, OutputLengths
from pointsman.planner.core.workload.prefix_cache_hits import Prefixes

MOST_LENGTH_WINDOWS: Final = 160
USUAL_AFTER_S: Final = 60.0  # of new prompts: the answers that end before are the short ones
LEAST_SPREAD: Final = 0.05  # of the mean: window means are never more alike than that


@dataclass(frozen=True, slots=True)
class Window:
    """Mean lengths of the ``requests`` that arrived, in tokens. ``answered``: (prompt tokens, requests) of what was
    answered meanwhile; where no answer was counted, of what had arrived before."""

    at_s: float
    requests: float
    prompt_tokens: float
    output_tokens: float
    answered: tuple[tuple[int, float], ...] = ()


@dataclass(frozen=True, slots=True)
class Lengths:
    """What is known of requests' lengths. ``shares``: (prompt tokens, share of requests), of the last minutes."""

    windows: tuple[Window, ...] = ()
    cached_share: float = 0.0
    shares: tuple[tuple[float, float], ...] = ()
    shares_of: float = 0.0  # requests behind them: of those 100 s ago half, but the last 60 in any case
    prompt_tokens: float | None = None
    output_tokens: float | None = None
    first_s: float | None = None  # when requests were first seen …
    changed_s: float | None = None  # … and the first window of prompts that are of another kind than those before
    prefixes: Prefixes = field(default_factory=Prefixes)
    outputs: OutputLengths = field(default_factory=OutputLengths)

    def observe(self, load: Load, window_s: float, now_s: float, tuning: Tuning = SHIPPED) -> "Lengths":
        """Take one window; lengths that were not measured in it change nothing."""
        requests = load.measured if load.measured is not None else load.arrivals_per_s * window_s
        # Prompts are measured when they arrive, outputs when they end: a window may have one without the other.
        prompt_seen = self.prompt_tokens if load.prompt_tokens is None else load.prompt_tokens
        output_seen = self.output_tokens if load.output_tokens is None else load.output_tokens
        nothing = load.prompt_tokens is None and load.output_tokens is None
        if nothing or prompt_seen is None or output_seen is None or requests <= 0:
            return self
        answers = [(prompt, count) for prompt, count, _ in load.answers]
        answered = answers or [(prompt, share * requests) for prompt, share in self.shares]
        kept = tuple((round(prompt), round(count, 3)) for prompt, count in answered)
        windows = [*self.windows, Window(now_s, requests, prompt_seen, output_seen, kept)][-MOST_LENGTH_WINDOWS:]
        total = sum(w.requests for w in windows)
        # Eight windows and 60 requests are kept whatever their age.
        while (
            len(windows) > 8 and windows[0].at_s < now_s - tuning.length_window_s and total - windows[0].requests > 60
        ):
            total -= windows.pop(0).requests
        arrived = [w.requests for w in windows]
        prompt, recent_prompts = _mean(arrived, arrived, [w.prompt_tokens for w in windows], tuning)
        changed_s = self.changed_s if recent_prompts is None else windows[-recent_prompts].at_s
        new_s = self.first_s if changed_s is None else changed_s
        is_usual = new_s is not None and now_s - new_s > USUAL_AFTER_S
        arriving = {prompt for prompt, _ in self.shares}
        outputs = self.outputs.observe(load.answers, arriving, tuning) if is_usual else self.outputs
        cached = self.cached_share
        if load.cached_tokens is not None:
            share = min(max(load.cached_tokens / max(prompt_seen, 1.0), 0.0), 1.0)
            cached += min(1.0, requests / tuning.memory_requests) * (share - cached)
        # The distribution has no test of its own: it is forgotten when a mean says that requests are others now.
        elapsed_s = max(window_s, now_s - self.windows[-1].at_s) if self.windows else window_s
        behind = max(self.shares_of * 0.5 ** (elapsed_s / 100), min(self.shares_of, 60))
        if recent_prompts is not None:
            behind = min(behind, requests / 9)  # of the shares a tenth is left of what was before
        weight = requests / (requests + behind)
        if load.prompt_length_shares:
            shares = _mix_shares(self.shares, load.prompt_length_shares, weight if self.shares else 1.0)
            behind += requests
        else:
            shares = self.shares if self.shares_of > 0 else ((prompt, 1.0),)  # only means are known
        weights, as_now = outputs.as_to(shares, [Answers(w.requests, w.output_tokens, w.answered) for w in windows])
        output, recent_outputs = _mean(
            [sum(n for _, n in w.answered) or w.requests for w in windows], weights, as_now, tuning
        )
        recent = max(recent_prompts or 0, recent_outputs or 0)
        if recent >= 4:  # a change that is seen over so many windows makes those before forgotten
            windows = windows[-recent:]
        prefixes = self.prefixes
        if load.uncached is not None:
            seen = load.uncached.length_shares
            mixed = _mix_shares(prefixes.shares, seen, weight if prefixes.shares else 1.0)
            prefixes = prefixes.observe(load, mixed, tuning)
        return Lengths(
            tuple(windows), cached, shares,
            prompt_tokens=prompt,
            output_tokens=output,
            first_s=now_s if self.first_s is None else self.first_s,
            changed_s=changed_s,
            prefixes=prefixes,
            outputs=outputs,
            shares_of=behind,
        )  # fmt: skip


def _mean(counts: list[float], weights: list[float], values: list[float], tuning: Tuning) -> tuple[float, int | None]:
    """(the mean to use, of how many of the last windows it is; None: of all).

    Every split into earlier and recent windows is tested; of those that are certain the clearest is taken. ``counts``:
    requests of each window. Windows of other ``weights`` together tell as much as (Σ w)² / Σ (w² / n) requests.
    """
    parts = [(w, w * v, w * v * v, w * w / n) for n, w, v in zip(counts, weights, values, strict=True)]
    weight, total, squares, inverse = (sum(column) for column in zip(*parts, strict=True))
    best: tuple[float, float, int] | None = None
    before, before_total, before_squares, before_inverse = weight, total, squares, inverse
    for recent in range(1, min(len(values), 49)):
        w, wv, wvv, wwn = parts[-recent]
        before, before_total, before_squares = before - w, before_total - wv, before_squares - wvv
        before_inverse -= wwn
        before_count = before * before / max(before_inverse, 1e-12)
        now_count = (weight - before) ** 2 / max(inverse - before_inverse, 1e-12)
        if before_count < 40 or now_count < 12:
            continue
        then, now = before_total / before, (total - before_total) / (weight - before)
        if abs(now - then) <= tuning.min_length_change * then:
            continue
        # Of one request, from the spread of window means.
        variance = max(0.0, before_squares - before * then * then) / (len(values) - recent) + (LEAST_SPREAD * then) ** 2
        if variance <= 0:  # of windows that were all 0
            continue
        # Lengths are skewed, their logarithms hardly: one very long prompt is no change of their kind.
        further = min(abs(now - then), then * abs(math.log(max(now, 1e-9) / max(then, 1e-9))))
        certainty = further / math.sqrt(variance / now_count + variance / before_count)
        if certainty > tuning.length_change_sigmas and (best is None or certainty > best[0]):
            best = certainty, now, recent
    return (total / weight, None) if best is None else (best[1], best[2])


def _mix_shares(
    old: tuple[tuple[float, float], ...], new: tuple[tuple[float, float], ...], weight: float
) -> tuple[tuple[float, float], ...]:
    if not new:
        return old
    mixed: dict[float, float] = {tokens: (1 - weight) * share for tokens, share in old}
    for tokens, share in new:
        mixed[tokens] = mixed.get(tokens, 0.0) + weight * share
    kept = {tokens: share for tokens, share in mixed.items() if share > 1e-3}
    total = sum(kept.values())
    return tuple((tokens, kept[tokens] / total) for tokens in sorted(kept)) if total > 0 else old
