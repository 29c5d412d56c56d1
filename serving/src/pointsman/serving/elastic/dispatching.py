"""Step 1 of a round: which waiting requests are prefilled now (LoongServe, arXiv 2404.09526, dispatching).

Requests are considered in order of arrival. One is admitted if three bounds hold:

* memory: all requests can run to their most output and never be evicted (``memory.peak_slots``);
* slots: its prompt fits into the free slots of the instances that the prefill may use;
* compute: the prefill stays below the tipping point, beyond which a larger batch only takes longer.

First the prefill may use the idle instances. Then come the requests that fit into the instances which would be idle if
the others held all KV, as in the paper's code: decoding does not need these instances, so one batch can pause. A larger
group would be faster, so this holds only if it saves no more time than it may take until all requests that decode have
ended; and each request of such a batch has got `STEPS_BETWEEN` tokens. Then decode batches are considered for
preemption, the one with the most free slots first. A preempted batch pauses and keeps its KV. With R the requests
admitted so far on the instances E, a batch B on the instances G, and R' the requests that can be admitted in addition
if G joins::

    Cost = sum over r in B  of  T(R + R', E + G) / generated tokens of r
    Gain = sum over r in R' of  max(0, AvgLat - min over b in B of decode time of b) / prompt tokens of r

Both are seconds per token. The batch is preempted if Gain > Cost. Where one batch has too few slots for any request,
the next one is added and both are judged together.

With objectives, which the paper does not have, it is also preempted if more requests can then get their first token in
time than requests of the batch can no longer keep their TPOT objective. Gain > Cost alone lets prompts wait for seconds
while decoding is far faster than asked for.

A request that does not fit may be overtaken by later ones, but not more often than ``Settings.max_overtakes`` in all
rounds together. When that many have passed, nothing is admitted before it. It is then admitted by the memory bound
alone, as soon as an instance is idle: the allocation (step 2) preempts decode batches for the slots it lacks.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Final

from pointsman.serving.elastic.latency_model import LatencyModel
from pointsman.serving.elastic.memory import MemoryBound
from pointsman.serving.elastic.types import DecodeBatch, Instance, RunningRequest, Settings, WaitingRequest
from pointsman.serving.objectives import Objectives
from pointsman.serving.words import quantity

STEPS_BETWEEN: Final = 10
"""Tokens that each request of a batch gets before it pauses for prompts that need no more than spare instances: the
paper's code considers a prefill after every ten decode iterations. Without it, decoding starves near saturation."""


@dataclass(frozen=True, slots=True)
class Dispatch:
    """Admitted requests in order of arrival, the decode batches that pause for them, and why."""

    requests: tuple[WaitingRequest, ...]
    preempted: tuple[DecodeBatch, ...]
    reasons: tuple[str, ...]


def preemption_cost(prefill_s: float, generated_tokens: Iterable[int]) -> float:
    """Seconds per output token that a decode batch loses by waiting for a prefill."""
    return sum(prefill_s / max(tokens, 1) for tokens in generated_tokens)


def preemption_gain(mean_decode_s: float, decode_s: Iterable[float], prompt_tokens: Iterable[int]) -> float:
    """Seconds per prompt token that waiting requests save, in the worst case, by not waiting for a decode batch."""
    wait_s = max(0.0, mean_decode_s - min(decode_s))
    return sum(wait_s / tokens for tokens in prompt_tokens)


def estimate_wait_s(mean_decode_s: float, decode_s: Iterable[float]) -> float:
    """Seconds until all of the decoding requests end: of each, what it lacks to the mean, and at least a tenth of what
    it has taken so far, as in the paper's code. Outputs differ much, so one that is beyond the mean does not end soon.
    """
    return max((max(mean_decode_s - each, each / 10) for each in decode_s), default=0.0)


def spare_instances(instances: Sequence[Instance]) -> list[Instance]:
    """Those that could be idle if the others held all KV: the smallest ones, which are the last to be needed."""
    used = sum(instance.used_slots for instance in instances)
    by_slots = sorted(instances, key=lambda instance: -instance.slots)
    while used > 0 and by_slots:
        used -= by_slots.pop(0).slots
    return by_slots


def count_in_time(prompts: Iterable[WaitingRequest], prefill_s: float) -> int:
    """Requests that get their first token in time after a prefill of so many seconds."""
    return sum(each.ttft_left_s is not None and each.ttft_left_s >= prefill_s for each in prompts)


def count_lost(running: Iterable[RunningRequest], pause_s: float, tpot_s: float) -> int:
    """Requests that can keep ``tpot_s`` for each token, but not after a pause."""
    return sum(keeps_tpot(each, 0.0, tpot_s) and not keeps_tpot(each, pause_s, tpot_s) for each in running)


def keeps_tpot(request: RunningRequest, pause_s: float, tpot_s: float) -> bool:
    """Whether it can have at most ``tpot_s`` for each token after a pause, if it runs to its most output."""
    tokens = request.generated_tokens - 1  # the first one came from the prefill
    step_s = request.decode_s / tokens if tokens > 0 else 0.0
    left = request.demand.future_tokens
    return request.decode_s + pause_s + left * step_s <= tpot_s * (tokens + left)


def estimate_decode_s(mean_decode_s: float | None, running: Iterable[RunningRequest]) -> float:
    """The mean decode time of finished requests; before one has finished, the time running ones take at most.

    The paper does not say what holds at the start. With 0 no request could join the first one until it ends. Each
    running request is taken to go on at its pace to its most output. 0 if none has a pace yet.
    """
    if mean_decode_s is not None:
        return mean_decode_s
    longest = [
        request.decode_s * (1 + request.demand.future_tokens / (request.generated_tokens - 1))
        for request in running
        if request.generated_tokens > 1
    ]
    return sum(longest) / len(longest) if longest else 0.0


def dispatch(
    waiting: Sequence[WaitingRequest],
    idle: Sequence[Instance],
    batches: Sequence[DecodeBatch],
    running: Sequence[RunningRequest],
    slots: int,
    model: LatencyModel,
    mean_decode_s: float | None,
    settings: Settings,
    spare_slots: int = 0,
    instances: int = 0,
) -> Dispatch:
    """Choose requests of ``waiting`` (in order of arrival).

    ``idle``: instances without KV that no iteration uses; ``batches``: decode batches that may be preempted;
    ``running``: every request with KV, for the memory bound over ``slots``. ``spare_slots``: of ``spare_instances``,
    and ``instances``: how many there are, both with those that an iteration uses. Raises NotMeasured.
    """
    scan = _Scan(waiting[: settings.max_scanned_requests], running, slots, model, settings)
    available = sum(instance.free_slots for instance in idle) + sum(batch.free_slots for batch in batches)
    scan.admit(sum(instance.free_slots for instance in idle), len(idle), available)
    reasons = []
    if scan.admitted:
        reasons.append(
            f"Prefill {quantity(len(scan.admitted), 'prompt')} on up to {quantity(len(idle), 'idle instance')}."
        )
    preempted: list[DecodeBatch] = []
    together: list[DecodeBatch] = []
    average_s = estimate_decode_s(mean_decode_s, running)
    rested = [each for each in batches if all(of.generated_tokens >= STEPS_BETWEEN for of in each.requests)]
    if spare_slots and rested and not scan.is_complete:
        room = min(spare_slots, sum(instance.free_slots for instance in (*idle, *_usable(rested))))
        scan, found = _use_spare(scan, idle, rested, room, instances, average_s, model)
        reasons += found
    for batch in sorted((each for each in batches if each.usable), key=lambda each: -each.free_slots):
        if scan.is_complete:
            break
        together.append(batch)
        chosen = [*idle, *_usable((*preempted, *together))]
        trial = scan.copy()
        extra = trial.admit(sum(instance.free_slots for instance in chosen), len(chosen), 0)
        if not extra:
            continue
        took_s = model.seconds((request.prompt_tokens for request in trial.requests), len(chosen))
        pause, reason = _weigh_pause(together, extra, took_s, average_s, settings.objectives)
        reasons.append(reason)
        if pause:
            scan, preempted = trial, [*preempted, *together]
        together = []
    most = len(idle) + sum(len(batch.usable) for batch in batches)
    if waiting and most and not model.degrees_up_to(most):
        reasons.append(f"Nothing is prefilled: no degree up to {most} was measured.")
    if waiting and scan.obstacle and not scan.is_complete:
        reasons.append(scan.obstacle)
    return Dispatch(tuple(scan.requests), tuple(preempted), tuple(reasons))


def _usable(batches: Iterable[DecodeBatch]) -> list[Instance]:
    return [instance for batch in batches for instance in batch.usable]


def _use_spare(
    scan: "_Scan",
    idle: Sequence[Instance],
    rested: Sequence[DecodeBatch],
    room: int,
    instances: int,
    average_s: float,
    model: LatencyModel,
) -> tuple["_Scan", list[str]]:
    """Admit into ``room`` slots that decoding does not need, unless waiting for a larger group is faster."""
    usable = [*idle, *_usable(rested)]
    trial = scan.copy()
    extra = trial.admit(room, len(usable), 0)
    if not extra:
        return scan, []
    prompts = [request.prompt_tokens for request in trial.requests]
    slower_s = model.seconds(prompts, len(usable)) - model.seconds(prompts, max(instances, len(usable)))
    wait_s = estimate_wait_s(average_s, (each.decode_s for batch in rested for each in batch.requests))
    if slower_s > wait_s:
        return scan, []
    return trial, [
        f"Prefill {quantity(len(extra), 'prompt')} on instances that decoding does not need: a larger "
        f"group saves {slower_s:.3g} s and could be {wait_s:.3g} s away."
    ]


def _weigh_pause(
    batches: Sequence[DecodeBatch],
    extra: Sequence[WaitingRequest],
    took_s: float,
    average_s: float,
    objectives: Objectives | None,
) -> tuple[bool, str]:
    """Whether these batches pause for a prefill of ``took_s`` that ``extra`` joins, and why."""
    decoding = [request for each in batches for request in each.requests]
    cost = preemption_cost(took_s, (request.generated_tokens for request in decoding))
    gain = preemption_gain(
        average_s, (request.decode_s for request in decoding), (request.prompt_tokens for request in extra)
    )
    names, prompts = ", ".join(name for each in batches for name in each.names), quantity(len(extra), "prompt")
    if gain > cost:
        return True, f"The decode batch on {names} pauses for {prompts}: gain {gain:.3g} > cost {cost:.3g} s/token."
    if objectives is not None:
        saved, lost = count_in_time(extra, took_s), count_lost(decoding, took_s, objectives.tpot_s)
        if saved > lost:
            in_time = f"{saved} can be in time, and {lost} of the batch not any more"
            return True, f"The decode batch on {names} pauses for {prompts}: {in_time}."
    return False, (
        f"The decode batch on {names} is not preempted for {prompts}: gain {gain:.3g} <= cost {cost:.3g} s/token."
    )


def count_overtakes(waiting: Sequence[WaitingRequest], admitted: Iterable[str]) -> dict[str, int]:
    """``overtaken`` of each request that waits on, for the next round; ``waiting`` in order of arrival."""
    ids = set(admitted)
    later, counts = 0, {}
    for request in reversed(waiting):
        if request.id in ids:
            later += 1
        else:
            counts[request.id] = request.overtaken + later
    return counts


class _Scan:
    """The queue, with what has been admitted so far: positions in the queue."""

    def __init__(
        self,
        queue: Sequence[WaitingRequest],
        running: Iterable[RunningRequest],
        slots: int,
        model: LatencyModel,
        settings: Settings,
    ) -> None:
        self._queue = queue
        self._memory = MemoryBound((request.demand for request in running), slots)
        self._slots = slots
        self._model = model
        self._settings = settings
        self.admitted: list[int] = []
        self.obstacle = ""

    def copy(self) -> "_Scan":
        """With the same queue and what has been admitted so far."""
        other = _Scan(self._queue, (), self._slots, self._model, self._settings)
        other._memory = self._memory.copy()
        other.admitted, other.obstacle = list(self.admitted), self.obstacle
        return other

    @property
    def requests(self) -> list[WaitingRequest]:
        """Admitted ones in order of arrival."""
        return [self._queue[position] for position in sorted(self.admitted)]

    @property
    def is_complete(self) -> bool:
        """Whether no preemption could admit one more."""
        return len(self.admitted) == min(len(self._queue), self._settings.max_prefill_requests)

    def admit(self, free_slots: int, instances: int, available_slots: int) -> list[WaitingRequest]:
        """Admit what fits into ``free_slots`` of ``instances``. Returns the requests that are new.

        ``available_slots``: slots that the head of the queue may use if it must not be overtaken any more.
        """
        extra: list[WaitingRequest] = []
        if not self._model.degrees_up_to(instances):
            return extra
        time = self._model.largest(instances)
        free = free_slots - sum(request.prompt_tokens for request in self.requests)
        tokens = sum(request.prompt_tokens for request in self.requests)
        squares = sum(request.prompt_tokens**2 for request in self.requests)
        before = set(self.admitted)
        may_pass: float = float("inf")
        for position, request in enumerate(self._queue):
            if position in before:
                continue
            if len(self.admitted) >= self._settings.max_prefill_requests or may_pass < 1:
                break
            prompt = request.prompt_tokens
            passes_left = self._settings.max_overtakes - request.overtaken
            passes_left -= sum(other > position for other in self.admitted)
            is_overdue = position == 0 and passes_left < 1
            if not (prompt <= free or (is_overdue and prompt <= available_slots)):
                self._note(request, f"its {prompt} prompt tokens do not fit into {max(free, 0)} free slots")
            elif not self._memory.fits(request.demand):
                self._note(request, f"with its most output, all requests would need more than {self._slots} slots")
            else:
                if self.admitted and time.seconds(tokens + prompt, squares + prompt**2) > self._settings.max_prefill_s:
                    self._note(request, f"the prefill would take longer than {self._settings.max_prefill_s:g} s")
                    break
                self.admitted.append(position)
                self._memory.add(request.demand)
                free, tokens, squares = free - prompt, tokens + prompt, squares + prompt**2
                extra.append(request)
                may_pass -= 1
                continue
            may_pass = min(may_pass, passes_left)
        return extra

    def _note(self, request: WaitingRequest, obstacle: str) -> None:
        if not self.obstacle:
            self.obstacle = f"Request {request.id} waits: {obstacle}."
