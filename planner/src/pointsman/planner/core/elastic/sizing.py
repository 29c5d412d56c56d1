"""Instances for a load, from three conditions that can be checked by hand.

For ``n`` instances, a rate and the lengths of requests:

* **Prompts.** A prompt of ``l`` tokens is computed on the smallest degree whose measured time is at most half of its
  TTFT objective, or else on the fastest one. That is ``degree x seconds`` of instance time. ``n`` instances are the
  servers of a G/G/n queue (`queueing.py`) with this service time. A prompt is in time if it waits at most its objective
  less the time of its prefill and of one decode step, which is not interrupted.
* **Tokens.** What prompts leave of the time of ``n`` instances is for decoding. A step with ``b`` requests on an
  instance takes ``d0 + d1 b`` seconds. ``b`` is the number at which a request takes its TPOT objective for each token.
  By Little's law ``rate x (output - 1) x objective`` requests decode at once; the share in time is that of a Poisson
  number that stays below ``n b``.
* **Memory.** Requests hold their prompt and half of their output while they decode. A request is prefilled at once if
  the others leave room for it, and one that waits lets others wait. So the share in time is that of a normal
  distribution with the mean and the variance of the sum that leaves room for the longest request.

The expected attainment is the product of the three shares.
"""

import math
from dataclasses import dataclass
from statistics import NormalDist
from typing import Final

from pointsman.planner.core.sizing.queueing import delayed_wait_s, erlang_c
from pointsman.planner.core.tuning import SHIPPED, Tuning
from pointsman.planner.core.types import Objectives
from pointsman.serving.elastic.latency_model import LatencyModel
from pointsman.serving.elastic.step_sums import StepSums

_NORMAL: Final = NormalDist()
_Prefill = tuple[float, float, float]
"""Of the prompts of one length: the share of requests, instance-seconds, and how long one may wait."""
NOTHING: Final = StepSums(0.0, 0.0, 0.0, 0.0, 0.0)


@dataclass(frozen=True, slots=True)
class StepTime:
    """How long a decode step of one instance takes by the requests in it: the line of least squares through all steps.

    The manager adds up what the line needs (`pointsman_elastic_decode_sums_total`), so no single step is sent or kept.
    ``sums``: of all looks, the newest weighs most.
    """

    sums: StepSums = NOTHING

    def observe(self, added: StepSums) -> "StepTime":
        """Take what the manager counted since the last look; nothing fades while it decodes nothing."""
        return self if added.steps <= 0 else StepTime(self.sums.scaled(0.98).plus(added))

    @property
    def line(self) -> tuple[float, float] | None:
        """(seconds of any step, seconds for each request in it); None: nothing was measured.

        While the batches hardly differ, the whole time is taken to be the requests': twice as many take twice as long.
        """
        sums = self.sums
        if sums.steps <= 0 or sums.requests <= 0:
            return None
        batch, variance = self._batch
        if not self.slope_is_known:
            return 0.0, self.mean_s / batch
        slope = (sums.request_seconds / sums.steps - batch * self.mean_s) / variance
        slope = min(max(slope, 0.0), self.mean_s / batch)
        return self.mean_s - slope * batch, slope

    @property
    def mean_s(self) -> float:
        """Seconds of a step."""
        return self.sums.seconds / self.sums.steps

    @property
    def slope_is_known(self) -> bool:
        """Whether the batches differed enough, by a fifth of their mean."""
        batch, variance = self._batch
        return variance >= (0.2 * batch) ** 2

    @property
    def _batch(self) -> tuple[float, float]:
        """Mean and variance of the requests in a step."""
        mean = self.sums.requests / self.sums.steps
        return mean, self.sums.requests_squared / self.sums.steps - mean * mean

    def batch(self, seconds: float) -> float:
        """Requests in a step of so many seconds."""
        fixed_s, each_s = self.line or (math.inf, 0.0)
        return min(1024.0, max(0.0, seconds - fixed_s) / max(each_s, 1e-9))


@dataclass(frozen=True, slots=True)
class GroupLoad:
    """``lengths``: (prompt tokens, share of requests); ``arrival_scv``: squared coefficient of variation;
    ``waiting``: requests that the rate allows for."""

    rate_per_s: float
    lengths: tuple[tuple[float, float], ...]
    output_tokens: float
    arrival_scv: float = 1.0
    waiting: float = 0.0


@dataclass(frozen=True, slots=True)
class Expected:
    """Shares of requests, 0..1, with so many instances. ``overloaded``: prompts alone take more than all their time."""

    instances: int
    prompts: float
    tokens: float
    memory: float
    overloaded: bool = False

    @property
    def attainment(self) -> float:
        """Within both objectives, and with room for their KV."""
        return self.prompts * self.tokens * self.memory


@dataclass(frozen=True, slots=True)
class GroupModel:
    """What is known of the speed and the memory of instances, and the objectives of their requests.

    ``serving``: those that serve now. While it is not known how a step grows with its requests, that many and more are
    taken to be enough for decoding, because nothing shows that they are not.
    """

    latency: LatencyModel
    max_degree: int
    step: StepTime
    slots_each: float
    serving: int
    objectives: Objectives

    def expected(self, load: GroupLoad, instances: int) -> Expected:
        """What requests get from so many instances."""
        prefills = [(share, *self._prefill(length, instances)) for length, share in load.lengths]
        mean_s = sum(share * work_s for share, work_s, _ in prefills)
        busy = load.rate_per_s * mean_s / instances
        if busy >= 1:
            return Expected(instances, 0.0, 0.0, 0.0, overloaded=True)
        token_s = self.objectives.tpot_ms / 1000
        decode_s = max(0.0, load.output_tokens - 1) * token_s  # an answer may take as long as its objective allows
        decoding = load.rate_per_s * decode_s
        unproved = not self.step.slope_is_known and instances >= self.serving
        batch = self.step.batch(token_s * (1 - busy))
        return Expected(
            instances,
            self._prompts(load, instances, prefills, mean_s),
            1.0 if unproved else _stays_below(decoding, decoding, instances * batch),
            self._memory(load, decoding, instances),
        )

    def needed(self, load: GroupLoad, most: int, tuning: Tuning = SHIPPED) -> Expected:
        """The fewest instances that keep the wanted attainment.

        If no number up to ``most`` does: the fewest that keep nearly as much as the best, or ``most`` if all are
        overloaded. Each further instance improves the attainment a little, without end.
        """
        tried = []
        for instances in range(1, most + 1):
            tried.append(self.expected(load, instances))
            if tried[-1].attainment >= self.objectives.attainment:
                return tried[-1]
        nearly = (1 - tuning.max_attainment_loss) * max(each.attainment for each in tried)
        return next((each for each in tried if not each.overloaded and each.attainment >= nearly), tried[-1])

    def _prefill(self, length: float, instances: int) -> tuple[float, float]:
        """(instance-seconds of a prompt, how long it may wait; below 0: it is late even if it is alone)."""
        ttft_s = self.objectives.ttft_for(length) / 1000
        degrees = self.latency.degrees_up_to(min(instances, self.max_degree)) or [min(self.latency.by_degree)]
        times = [(self.latency.by_degree[degree].seconds(length, length * length), degree) for degree in degrees]
        seconds, degree = next((each for each in times if each[0] <= 0.5 * ttft_s), min(times))
        return degree * seconds, ttft_s - seconds - self.step.mean_s

    def _prompts(self, load: GroupLoad, instances: int, prefills: list[_Prefill], mean_s: float) -> float:
        squared = sum(share * work_s * work_s for share, work_s, _ in prefills)
        scv = max(0.0, squared / (mean_s * mean_s) - 1) if mean_s > 0 else 0.0
        waits = erlang_c(instances, load.rate_per_s * mean_s)
        wait_s = max(1e-9, delayed_wait_s(instances, load.rate_per_s, mean_s, load.arrival_scv, scv))
        return sum(share * (1 - waits * math.exp(-slack_s / wait_s)) for share, _, slack_s in prefills if slack_s >= 0)

    def _memory(self, load: GroupLoad, decoding: float, instances: int) -> float:
        slots = instances * self.slots_each
        held = [(length + load.output_tokens / 2, share) for length, share in load.lengths]
        fitting = [(tokens, share) for tokens, share in held if tokens <= slots]
        mean = decoding * sum(share * tokens for tokens, share in held)
        variance = decoding * sum(share * tokens * tokens for tokens, share in held)
        room = slots - max((tokens for tokens, _ in fitting), default=0.0)
        return sum(share for _, share in fitting) * _stays_below(mean, variance, room)


def _stays_below(mean: float, variance: float, limit: float) -> float:
    """The probability that a sum of many independent parts does."""
    if variance <= 0:
        return 1.0 if mean <= limit else 0.0
    return _NORMAL.cdf((limit - mean) / math.sqrt(variance))
