"""Stamps in place of inputs in the messages with which vLLM's engine has its ranks execute a step.

Knows vLLM's classes by their fields only: a step (``SchedulerOutput``) has new requests (``NewRequestData``), and these
have features (``MultiModalFeatureSpec``) whose ``data`` are the inputs.
"""

import logging
from collections.abc import Iterable, Sequence
from dataclasses import replace
from typing import Any, Final

from pointsman.workers.multimodal.broadcast.entry_rank import EntryRank
from pointsman.workers.multimodal.broadcast.errors import BroadcastError
from pointsman.workers.multimodal.broadcast.inputs import RequestInputs
from pointsman.workers.multimodal.broadcast.modes import Stamp
from pointsman.workers.multimodal.broadcast.other_rank import OtherRank

_log: Final = logging.getLogger(__name__)


class EntrySteps:
    """The engine's side: takes the inputs out of each step, and has them sent.

    ``at_once``: as of the ranks.
    """

    def __init__(self, entry: EntryRank, *, at_once: bool) -> None:
        self._entry = entry
        self._at_once = at_once
        self._inputs: dict[str, RequestInputs] = {}
        """Inputs that no step has needed until now."""

    def with_stamps(self, step: Any) -> Any:
        """``step`` with a stamp in place of each request's inputs. What the scheduler keeps is not changed.

        Inputs that are not accepted stay in the step, as without a broadcast. When a request has finished, its inputs
        are cancelled only if no step has needed them: the engine sends steps ahead, and a rank executes each of them.
        """
        again = (each.req_id for each in step.scheduled_new_reqs)  # one that was preempted comes as new once more
        for request_id in (*step.finished_req_ids, *again):
            if (ended := self._inputs.pop(request_id, None)) is not None:
                ended.cancel()
        if any(_has_inputs(each) for each in step.scheduled_new_reqs):
            step = replace(step, scheduled_new_reqs=[self._stamped(each) for each in step.scheduled_new_reqs])
        for request_id in _needed(step, self._inputs, self._at_once):
            self._inputs.pop(request_id, None)
        return step

    def _stamped(self, request: Any) -> Any:
        if not _has_inputs(request):
            return request
        try:
            inputs = self._entry.submit(request.req_id, [feature.data for feature in request.mm_features])
        except BroadcastError as error:  # too much is pending, or the group has ended
            _log.warning("inputs of request %s go with the step itself: %s", request.req_id, error)
            return request
        self._inputs[request.req_id] = inputs
        features = [
            feature if feature.data is None else replace(feature, data=inputs.stamp) for feature in request.mm_features
        ]
        return replace(request, mm_features=features)


class RankSteps:
    """A rank's side: puts the inputs back in the step that needs them.

    ``at_once``: the model reads a request's inputs in its first step, whatever that step's encoder needs.
    """

    def __init__(self, rank: OtherRank, *, at_once: bool) -> None:
        self._rank = rank
        self._at_once = at_once
        self._awaited: dict[str, tuple[RequestInputs, Sequence[Any]]] = {}
        self.placed = 0
        """Requests that have got their inputs."""

    def place(self, step: Any) -> None:
        """Put the inputs that ``step`` needs where their stamps are; waits for them. Raises BroadcastError."""
        again = (each.req_id for each in step.scheduled_new_reqs)
        for request_id in (*step.finished_req_ids, *again):
            if (ended := self._awaited.pop(request_id, None)) is not None:
                ended[0].cancel()
        for request in step.scheduled_new_reqs:
            stamped = [each for each in request.mm_features if isinstance(each.data, Stamp)]
            if stamped:
                self._awaited[request.req_id] = (self._rank.expect(stamped[0].data), request.mm_features)
        for request_id in _needed(step, self._awaited, self._at_once):
            if (awaited := self._awaited.pop(request_id, None)) is not None:
                self._put(*awaited)

    def _put(self, inputs: RequestInputs, features: Sequence[Any]) -> None:
        items: Any = inputs.get_inputs()
        for feature, item in zip(features, items, strict=True):
            if isinstance(feature.data, Stamp):
                feature.data = item
        self.placed += 1


def _needed(step: Any, stamped: Iterable[str], at_once: bool) -> list[str]:
    """Requests whose inputs ``step`` needs, beside others; the same on the engine's side and on every rank."""
    return list(stamped if at_once else step.scheduled_encoder_inputs)


def _has_inputs(request: Any) -> bool:
    return any(feature.data is not None for feature in request.mm_features)
