"""When routing numbers are published in ``LLMService.status.routing``, and what a publication changes.

Each publication wakes every gateway of the service, and flow bounds move a little with every look. So a bound that
moved by more than the dead band (``flow_dead_band``) is published with the next interval, and at once only where
it falls while the service is overloaded. The threshold has a hold-off of its own and is published at once. So is
everything after an edit of the objectives: gateways count against those at once, and bounds and slack follow from them.
"""

from dataclasses import dataclass
from typing import Final

from pointsman.api.v1alpha1.plannerpolicy import Mode
from pointsman.planner.core.messages import routing
from pointsman.planner.core.routing.flow_bounds import is_overloaded
from pointsman.planner.core.types import Decision, Objectives, Observation, Policy, Reason, RoutingNumbers
from pointsman.serving.flow_control import FlowBounds

KEPT_PUBLICATIONS: Final = 20


@dataclass(frozen=True, slots=True)
class Publication:
    """Numbers that were published at ``at_s`` (Unix time), and those that were in force before.

    ``objectives``: those that the numbers were made for; None: an earlier version published them.
    """

    at_s: float
    reason: Reason
    before: RoutingNumbers
    after: RoutingNumbers
    objectives: Objectives | None = None


def is_due(
    decision: Decision,
    observation: Observation,
    policy: Policy,
    stamped_s: float | None,
    last: Publication | None,
    now_s: float,
) -> bool:
    """Whether the decision's numbers are published now.

    ``stamped_s``: the time of the last publication by the service's status; ``last``: the planner's own last one. Each
    can be older than the other, or None: older CRDs have no such field, and the history is saved later. In Unix time,
    as ``now_s``.
    """
    if policy.mode is Mode.SHADOW or not decision.changes_routing:
        return False
    if last is not None and last.objectives is not None and last.objectives != policy.objectives:
        return True
    before, after = observation.routing, decision.routing
    own_s = None if last is None else last.at_s
    published_s = max((time_s for time_s in (stamped_s, own_s) if time_s is not None), default=None)
    if (
        after.max_local_prefill_tokens != before.max_local_prefill_tokens
        or published_s is None
        or not 0 <= now_s - published_s < policy.tuning.publish_interval_s
    ):
        return True  # … or the wall clock was set back
    return _falls(before.flow, after.flow) and is_overloaded(observation, policy)


def changes(before: RoutingNumbers, after: RoutingNumbers) -> list[str]:
    """What a publication changes, by the names of ``status.routing``; for example ``slackMilliseconds 800 -> 640``."""
    old, new = named(before), named(after)
    return [routing.number_changed(name, old[name], new[name]) for name in new if old[name] != new[name]]


def named(numbers: RoutingNumbers) -> dict[str, int | None]:
    """By the names of ``status.routing``; None: not set."""
    return {
        "maxLocalPrefillTokens": numbers.max_local_prefill_tokens,
        "maxPrefillQueueSize": numbers.max_prefill_queue_size,
        "prefillTokenBudget": numbers.prefill_token_budget,
        "pendingTokensPerPrefillWorker": numbers.flow.pending_tokens_per_prefill_worker,
        "decodingPerDecodeWorker": numbers.flow.decoding_per_decode_worker,
        "slackMilliseconds": numbers.flow.slack_ms,
    }


def _falls(before: FlowBounds, after: FlowBounds) -> bool:
    """Whether gateways would queue requests that they admit now."""
    pairs = (
        (before.pending_tokens_per_prefill_worker, after.pending_tokens_per_prefill_worker),
        (before.decoding_per_decode_worker, after.decoding_per_decode_worker),
    )
    return any(new is not None and (old is None or new < old) for old, new in pairs)
