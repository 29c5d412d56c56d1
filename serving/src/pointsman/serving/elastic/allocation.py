"""Step 2 of a round: which instances prefill (LoongServe, arXiv 2404.09526, elastic instance allocation).

1. All idle instances, and those of the decode batches that the dispatching preempted.
2. If their free slots do not hold the prompts, or they are too few for a measured degree: further decode batches, the
   one with the most free slots first.
3. Then the least used instance of the other decode batches is vacated, and its KV handed over to instances that go on
   decoding, as long as this saves time::

       Gain = sum over r in R of (T(R, E) - T(R, E + e)) / prompt tokens of r
       Cost = sum over r in R of (tokens on e * seconds to hand over a token) / prompt tokens of r

   The sum of 1 / prompt tokens is on both sides, so the time saved is compared with the time to move.
4. A decode batch of k instances that still decodes pauses if its instances shorten the prefill enough, with n instances
   in E so far (the formula is that of the paper's code)::

       (T(R, n) - T(R, n + k)) * sum over r in R of 1 / prompt tokens of r
           >= T(R, n + k) * requests of the batch / mean generated tokens of the batch
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

from pointsman.serving.elastic.latency_model import LatencyModel
from pointsman.serving.elastic.memory import NoRoom
from pointsman.serving.elastic.types import (
    DecodeBatch,
    Instance,
    Move,
    RunningRequest,
    Settings,
    WaitingRequest,
    form_decode_batches,
    move_tokens,
)


@dataclass(frozen=True, slots=True)
class Allocation:
    """Instances of the prefill, in the order for the batching: those with the fewest used slots first,
    among them the larger ones. So the longest prompt finds the largest run of neighbours.

    ``moves`` are executed before the prefill and vacate the instances ``vacated``.
    """

    instances: tuple[Instance, ...]
    moves: tuple[Move, ...]
    vacated: tuple[str, ...]
    reasons: tuple[str, ...]


def migration_is_worth_it(
    prefill_s: float, shorter_prefill_s: float, tokens: int, migration_s_per_token: float
) -> bool:
    """Gain > Cost of vacating an instance that holds ``tokens``, both divided by the sum of 1 / prompt tokens."""
    return prefill_s - shorter_prefill_s > tokens * migration_s_per_token


def pause_is_worth_it(
    prefill_s: float, shorter_prefill_s: float, prompt_tokens: Sequence[int], generated_tokens: Sequence[int]
) -> bool:
    """Whether a decode batch should pause so that its instances shorten the prefill."""
    mean_generated = sum(generated_tokens) / len(generated_tokens)
    saved = (prefill_s - shorter_prefill_s) * sum(1 / tokens for tokens in prompt_tokens)
    return saved >= shorter_prefill_s * len(generated_tokens) / max(mean_generated, 1)


def allocate(
    requests: Sequence[WaitingRequest],
    idle: Sequence[Instance],
    preempted: Sequence[DecodeBatch],
    others: Sequence[DecodeBatch],
    model: LatencyModel,
    settings: Settings,
) -> Allocation:
    """The instances that prefill ``requests``. ``others``: decode batches that were not preempted.

    Raises NoRoom if all instances together have too few free slots, and NotMeasured.
    """
    chosen = [*idle, *(instance for batch in preempted for instance in batch.usable)]
    remaining = sorted(others, key=lambda batch: -batch.free_slots)
    prompts = [request.prompt_tokens for request in requests]
    reasons = []
    while (lacks_slots := sum(instance.free_slots for instance in chosen) < sum(prompts)) or not model.degrees_up_to(
        len(chosen)
    ):
        if not remaining or not remaining[0].free_slots:
            free = sum(instance.free_slots for instance in chosen)
            raise NoRoom(f"{sum(prompts)} prompt tokens do not fit into {free} free slots")
        batch = remaining.pop(0)
        chosen += batch.usable
        needed = f"{batch.free_slots} free slots" if lacks_slots else "instances"
        reasons.append(f"The decode batch on {', '.join(batch.names)} pauses: the prefill needs its {needed}.")
    moves: list[Move] = []
    vacated: list[str] = []
    if settings.migration_s_per_token is not None:
        while (step := _vacate(remaining, {move.target for move in moves})) is not None:
            instance, step_moves, after = step
            tokens = sum(move.tokens for move in step_moves)
            now_s = model.seconds(prompts, len(chosen)) if chosen else float("inf")
            then_s = model.seconds(prompts, len(chosen) + 1)
            if not migration_is_worth_it(now_s, then_s, tokens, settings.migration_s_per_token):
                break
            chosen.append(replace(instance, used_slots=instance.used_slots - tokens))
            moves += step_moves
            vacated.append(instance.name)
            remaining = after
            reasons.append(
                f"{instance.name} hands {tokens} tokens over and joins the prefill, "
                f"which then takes {then_s:.3g} s instead of {now_s:.3g} s."
            )
    for batch in remaining:
        # A batch that takes over tokens has to be idle for the hand-over only, so it is not paused as well.
        if any(move.target in batch.names or move.source in batch.names for move in moves):
            continue
        now_s = model.seconds(prompts, len(chosen))
        then_s = model.seconds(prompts, len(chosen) + len(batch.usable))
        if pause_is_worth_it(now_s, then_s, prompts, [request.generated_tokens for request in batch.requests]):
            chosen += batch.usable
            reasons.append(
                f"The decode batch on {', '.join(batch.names)} pauses: "
                f"with its instances the prefill takes {then_s:.3g} s instead of {now_s:.3g} s."
            )
    ordered = sorted(
        chosen, key=lambda each: (each.used_slots, each.name in vacated, -each.slots, each.name)
    )  # a vacated one after the idle ones, because the batching may leave the last ones without a prompt
    return Allocation(tuple(ordered), tuple(moves), tuple(vacated), tuple(reasons))


def hand_over(
    source: str, batch: DecodeBatch, targets: Iterable[Instance], reserve: int, why: str
) -> tuple[list[Move], list[Instance]]:
    """Moves of the tokens of ``batch`` on ``source`` to ``targets``, as far as they fit, and the targets afterwards.

    Each target keeps ``reserve`` free slots. Instances of the batch itself come first, because others merge two
    batches; among them the one with the most free slots.
    """
    instances = {instance.name: instance for instance in targets if instance.name != source}
    moves: list[Move] = []
    for request in batch.requests:
        tokens = request.tokens_by_instance.get(source, 0)
        while tokens:
            target = max(
                (each for each in instances.values() if each.free_slots > reserve),
                key=lambda each: (each.name in batch.names, each.free_slots),
                default=None,
            )
            if target is None:
                return moves, list(instances.values())
            count = min(tokens, target.free_slots - reserve)
            moves.append(Move(request.id, source, target.name, count, why))
            instances[target.name] = replace(target, used_slots=target.used_slots + count)
            tokens -= count
    return moves, list(instances.values())


def _vacate(batches: Sequence[DecodeBatch], targets: set[str]) -> tuple[Instance, list[Move], list[DecodeBatch]] | None:
    """The least used instance of ``batches``, the moves that empty it, and the batches afterwards; None: impossible.

    Every target keeps a slot for the next token of each request, so that decoding goes on. ``targets``: instances that
    take over tokens already. They are not vacated themselves, because that would move the same tokens twice.
    """
    candidates = [
        instance
        for batch in batches
        for instance in batch.instances
        if not instance.draining and instance.name not in targets
    ]
    if not candidates:
        return None
    least_used = min(candidates, key=lambda instance: (instance.used_slots, instance.name))
    requests = [request for batch in batches for request in batch.requests]
    own = next(batch for batch in batches if least_used.name in batch.names)
    every = [instance for batch in batches for instance in batch.instances]
    moves, instances = hand_over(least_used.name, own, every, len(requests), "vacate")
    if sum(move.tokens for move in moves) < _tokens_on(least_used.name, requests):
        return None
    return least_used, moves, form_decode_batches(instances, move_tokens(requests, moves))


def _tokens_on(instance: str, requests: Iterable[RunningRequest]) -> int:
    return sum(request.tokens_by_instance.get(instance, 0) for request in requests)
