"""Who waits, and where: for a prefill worker, at the gateways, or beyond a good batch."""

import math

from pointsman.api.protocol.names import Role
from pointsman.planner.core.sizing.operating_point import OperatingPoint
from pointsman.planner.core.types import Observation
from pointsman.serving.flow_control import UNBOUNDED


def waiting(observation: Observation, point: OperatingPoint) -> float:
    """Requests that wait for a prefill, or decode beyond the batch that keeps the token objective.

    What an unread decode worker has is left out on both sides; an unread prefill worker has as much as the others.
    """
    queue = observation.service.prefill_queue_depth if observation.service else None
    prefilling = [w.in_flight for w in observation.workers if w.role is Role.PREFILL]
    decoding = [w.in_flight for w in observation.workers if w.role is Role.DECODE and w.in_flight is not None]
    queued = sum(w.queued or 0 for w in observation.workers if w.role is Role.PREFILL)  # in their engines
    if queue is None:
        return queued + max(0.0, sum(decoding) - len(decoding) * point.batch)
    # With one queue for all, a decode worker has a request from its arrival on, also while that is prefilled. Those in
    # the engines of prefill workers are both in the queue, as it is counted, and in flight there.
    read = [count for count in prefilling if count is not None]
    elsewhere = queue - queued + (len(prefilling) * sum(read) / len(read) if read else math.inf)
    return queue + max(0.0, sum(decoding) - elsewhere - len(decoding) * point.batch)


def held(observation: Observation) -> float:
    """Requests that gateways hold back; 0 where none says, as by a gateway that cannot."""
    return (observation.service.held if observation.service else None) or 0.0


def most_queued(observation: Observation) -> float:
    """Requests the prefill queue holds at most; endless where there is no queue with a limit."""
    known = observation.service is not None and observation.service.prefill_queue_depth is not None
    known = known and observation.routing.flow == UNBOUNDED  # else what finds it full is held back
    return float(observation.routing.max_prefill_queue_size) if known else math.inf


def prefill_wait_ms(observation: Observation, point: OperatingPoint) -> float | None:
    """Waiting requests times the mean prefill, shared by the prefill workers; None when the queue is unknown."""
    depth = observation.service.prefill_queue_depth if observation.service else None
    workers = observation.serving(Role.PREFILL)
    if depth is None or workers == 0:
        return None
    return depth * point.prefill_alone_s * 1000 / workers
