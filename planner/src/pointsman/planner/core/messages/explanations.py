"""What ``pointsman explain`` prints: metrics, forecast, alternatives, the decision, and what would change it."""

from collections.abc import Sequence
from typing import Final

from pointsman.api.v1alpha1.plannerpolicy import Mode
from pointsman.planner.core.messages import layouts
from pointsman.planner.core.types import Reason
from pointsman.serving.words import are, do, quantity

_CONSEQUENCES: Final = {
    Mode.SHADOW: "The decision is only recorded: the policy's mode is Shadow.",
    Mode.APPROVE: "The plan needs an approval: the policy's mode is Approve.",
    Mode.EXTERNAL: "Only routing is set: the policy's mode is External, so others set replicas.",
}


def ago(seconds: float) -> str:
    """How long ago; negative: in the future, by this computer's clock."""
    if seconds < 120:
        return f"{seconds:.0f} s ago"
    return f"{seconds / 60:.0f} min ago" if seconds < 7200 else f"{seconds / 3600:.0f} h ago"


def _share(value: float | None) -> str:
    return "an unknown share" if value is None else f"{value:.0%}"


# --- headings ---


def heading(namespace: str, name: str, policy: str, mode: Mode, evaluated_s: float | None) -> str:
    """``evaluated_s``: how long ago; None: never."""
    line = f"{namespace}/{name}: policy {policy}, mode {mode}"
    return line if evaluated_s is None else f"{line}; evaluated {ago(evaluated_s)}"


ALTERNATIVES_TITLE: Final = "Alternatives, with the share of requests expected within both objectives"
LOADS_TITLE: Final = "Loads at which the decision changes"
ACCURACY_TITLE: Final = "Accuracy of past estimates"
INPUTS_TITLE: Final = "Inputs, by the names in spec.inputs of a plan"
PUBLICATIONS_TITLE: Final = "Latest published routing numbers"


# --- in place of an evaluation ---


def not_evaluated(name: str) -> str:
    """The planner has not seen it yet."""
    return f"The planner has not evaluated {name} yet."


EVALUATION_UNREADABLE: Final = (
    "The planner's latest evaluation cannot be read, because planner and 'pointsman explain' have different versions."
)


def evaluation_too_large(name: str, nbytes: str) -> str:
    """The ConfigMap of the planner's state has no room for it."""
    large = f"The latest evaluation of {name} is too large for the ConfigMap of the planner's state ({nbytes} bytes)."
    return f"{large} See plans, metrics and log of the planner instead."


# --- problems ---


def over_budget(gpus: int, max_gpus: int) -> str:
    """The policy was lowered, or workers were started by hand."""
    return f"{layouts.over_budget(gpus, max_gpus, scale_in=True)}: plans above the budget are not executed"


def silent(component: str, plan: str | None, silent_s: float) -> str:
    """The planner saves an evaluation at least each few seconds, and the operator gives each ``plan`` a phase."""
    work = f"handled plan {plan}" if plan else "saved an evaluation"
    check = f"kubectl get pods -A -l app.kubernetes.io/component={component}"
    return f"the {component} has not {work} for {silent_s:.0f} s; check that it runs: {check}"


# --- metrics ---


def workers_serve(prefill: int, decode: int, others: Sequence[tuple[int, str]]) -> str:
    """``others``: how many workers in which other condition."""
    counted = "".join(f", {count} {condition}" for count, condition in others if count)
    return f"{_workers(prefill, decode)} {do(prefill + decode, 'serve')}{counted}"


def _workers(prefill: float, decode: float) -> str:
    return f"{prefill:.0f} prefill and {quantity(decode, 'decode worker')}"


def page_age(source: str, age_s: float | None) -> str:
    """Of the oldest page of gateways or workers; None: one was never read."""
    return f"the oldest {source}'s page {'was never read' if age_s is None else f'is {age_s:.0f} s old'}"


LOAD_UNREAD: Final = "the load could not be read: it is unknown, not zero"
LOAD_NOT_YET: Final = "the load is unknown until the second evaluation, because a rate needs two"


def load(rate_per_s: float, prompt_tokens: float | None, answer_tokens: float | None) -> str:
    """The requests that arrive, and their mean lengths."""
    if prompt_tokens is None or answer_tokens is None:
        return f"{rate_per_s:.2f} requests/s of unknown length"
    return f"{rate_per_s:.2f} requests/s of {prompt_tokens:.0f} prompt and {quantity(answer_tokens, 'answer token')}"


def attainment(
    ttft_ms: float, tpot_ms: float, ttft_share: float | None, tpot_share: float | None, both_share: float | None
) -> str:
    """The objectives, and the shares of requests that meet them."""
    first = f"first tokens within {ttft_ms:g} ms for {_share(ttft_share)} of requests"
    return f"{first}, {tpot_ms:g} ms a token for {_share(tpot_share)}, both for {_share(both_share)}"


def prefill_queue(requests: float | None) -> str:
    """Requests in it."""
    return f"requests waiting for a prefill worker: {'unknown' if requests is None else round(requests)}"


def queued_at_gateways(requests: float) -> str:
    """Requests that are not sent to a worker yet."""
    return f"flow control queues {quantity(requests, 'request')} at gateways"


def local_prefill(tokens: int) -> str:
    """The threshold in force."""
    return f"prompts of up to {quantity(tokens, 'uncached token')} are prefilled on their decode worker"


def prefill_budget(tokens: int) -> str:
    """The budget of one pass in force."""
    return f"a prefill worker computes up to {quantity(tokens, 'prompt token')} in one pass"


def only_local(shares: Sequence[tuple[str, float]]) -> str:
    """Shares of prompts, by the reason for which no other worker can prefill them."""
    reasons = ", ".join(f"{reason} {_share(part)}" for reason, part in shares)
    return f"{_share(sum(part for _, part in shares))} of prompts cannot be prefilled remotely: {reasons}"


PLAN_EXECUTING: Final = "a plan is being executed"


def plan_awaits_approval(layout: str) -> str:
    """A person has not answered."""
    return f"the plan for {layout} awaits approval"


def encode_workers(active: int, starting: int) -> str:
    """Of the encode pool."""
    return f"{quantity(active, 'encode worker')} {do(active, 'serve')}, {starting} starting"


# Gateways of an earlier version.
ENCODE_LOAD_UNKNOWN: Final = "a gateway does not count images, so the load of the encode workers is unknown"


def encode_load(rate_per_s: float, images: float | None, image_ms: float | None) -> str:
    """``images``: of a request."""
    each = f", {images:.1f} of each" if images is not None else ""
    took = f", {image_ms:.0f} ms an image" if image_ms is not None else ""
    return f"{rate_per_s:.2f} requests/s have images for encode workers{each}{took}"


# --- forecast ---


NO_FORECAST: Final = "none: too few metrics"


def rate(now_per_s: float, ahead_per_s: float | None) -> str:
    """``ahead_per_s``: the forecast; None: there is none yet."""
    ahead = f", {ahead_per_s:.2f} expected by the time a worker started now serves" if ahead_per_s is not None else ""
    return f"{now_per_s:.2f} requests/s now{ahead}"


def recurring_rise(per_s: float, rise_per_s: float, share: float, days: int, weekly: bool) -> str:
    """``share``: of such rises that recurred, with which this one is counted."""
    day = "the same day a week ago" if weekly else f"the last {quantity(days, 'day')}"
    recurred = f"{share:.0%} of such rises recurred recently"
    return f"as on {day}: {per_s:.2f} requests/s then, a rise of {rise_per_s:.2f} ({recurred})"


def workers_needed(prefill: float, decode: float, now: tuple[float, float] | None) -> str:
    """For the forecast; ``now``: for the present load, where that needs others."""
    alone = "" if now is None else f" (the present load alone: {now[0]:.0f} and {now[1]:.0f})"
    return f"that needs {_workers(prefill, decode)}{alone}"


def unreachable(share: float, longest_tokens: float | None) -> str:
    """Requests that no layout serves in time."""
    of = "" if longest_tokens is None else f" (prompts above about {quantity(longest_tokens, 'token')})"
    return f"about {share:.0%} of requests miss an objective even on an idle worker{of}"


def backlog(requests: float) -> str:
    """Beyond what is usual."""
    return f"{quantity(requests, 'more request')} {are(requests)} already waiting"


# --- alternatives ---


NO_OTHER_LAYOUT: Final = "no other layout"


def alternative(
    layout: str, action: str, gpus: int, lead_s: float, attainment: float, rejected_because: str | None
) -> str:
    """A layout and the estimate for it; nothing else is said of the chosen one."""
    why = f"; rejected: {rejected_because}" if rejected_because else ""
    when = f", ready in {lead_s:.0f} s" if lead_s > 0 else ""
    return f"{layout}  {action}, {quantity(gpus, 'GPU')}{when}: {attainment:.0%} expected{why}"


# --- decision ---


def outcome(layout: str, reason: Reason, changes: bool) -> str:
    """The message that follows names the steps, or why nothing is changed."""
    return f"{'change to' if changes else 'stay at'} {layout} ({reason})"


def consequence(mode: Mode) -> str:
    """What becomes of the decision; empty in mode Active: the plan is executed."""
    return _CONSEQUENCES.get(mode, "")


def routing_numbers(changes: Sequence[str], published: bool) -> str:
    """What the decision changes of them."""
    numbers = ", ".join(changes)
    return f"routing numbers{'' if published else ' (not published: the policy is in mode Shadow)'}: {numbers}"


def publication(seconds_ago: float, reason: str, changes: Sequence[str]) -> str:
    """One of earlier evaluations."""
    return f"{ago(seconds_ago)}, {reason}: {', '.join(changes)}"


def tried(plan: str, phase: str, ended_s: float, denied_for_s: float | None) -> str:
    """A plan for the same layout ended. ``denied_for_s`` None: it failed or expired."""
    after = "30 s, with back-off" if denied_for_s is None else f"{denied_for_s:.0f} s (approvals.expireAfterSeconds)"
    return f"{plan} for this layout became {phase} {ago(ended_s)}; the planner retries after {after}"


# --- what would change it ---


ANY_LOAD: Final = "any load: none was measured"  # no load was measured to compare with
GUARDS_END: Final = "once the guards no longer defer it"
PRESENT_LOAD: Final = "the present load"
_LOADS: Final = {
    "more_requests": "more than {:.2f} requests/s",
    "longer_prompts": "prompts of {:.0f} tokens",
    "longer_answers": "answers of {:.0f} tokens",
    "fewer_requests": "fewer than {:.2f} requests/s",
}


def at_load(point: str, value: float) -> str:
    """``point``: a field of TurningPoints."""
    return _LOADS[point].format(value)


def would_change(at: str, lasting_s: float, layout: str, reason: Reason) -> str:
    """The decision at another load. ``lasting_s``: for how long it must last."""
    lasting = f" for {lasting_s:.0f} s" if lasting_s else ""
    return f"{at}{lasting}: the planner would change to {layout} ({reason})"


def no_load(times: float) -> str:
    """None that was tried."""
    return f"none within {times:g} times the present load: the policy allows no other layout that helps"


# --- accuracy ---


NO_ESTIMATE: Final = "no estimate has been compared yet"


def accuracy(predicted_share: float, observed_share: float, error: float) -> str:
    """``error``: the mean of one evaluation, 0..1."""
    shares = f"expected {predicted_share:.0%} of requests within objectives, observed {observed_share:.0%}"
    return f"{shares}; mean error of one evaluation {quantity(error * 100, 'point')}"


def if_executed(share: float, gpus: float) -> str:
    """In mode Shadow."""
    return f"with the recorded plans executed, estimated {share:.0%} on {quantity(gpus, 'GPU')}"


# --- inputs ---


NO_INPUTS: Final = "none: the latest decision is based on no numbers"
_UNITS: Final = (  # by endings of names, the first that fits
    ("imagespersecond", "images/s"),
    ("persecond", "requests/s"),
    ("milliseconds", "ms"),
    ("secondsperrequest", "s"),
    ("seconds", "s"),
    ("prompttokens", "tokens"),
    ("outputtokens", "tokens"),
    ("thresholdtokens", "tokens"),
    ("instancesneeded", "instances"),
    ("workers", "workers"),
    ("needednow", "workers"),
    ("needed", "workers"),
    ("kept", "workers"),
    ("gpusifexecuted", "GPUs"),
    ("decodebatch", "sequences"),
    ("backlog", "requests"),
    ("requests", "requests"),
    ("queuedepth", "requests"),
)


def input_number(name: str, value: float, name_width: int = 0, value_width: int = 0) -> str:
    """Name, value, and unit if it has one."""
    return f"{name:{name_width}}  {value:>{value_width}.10g}  {_unit(name)}".rstrip()


def _unit(name: str) -> str:
    """Empty: a share or another number without a unit."""
    return next((unit for ending, unit in _UNITS if name.lower().endswith(ending)), "")


# --- plans ---


NO_PLAN: Final = "no plan was made"


def plan_so_far(plan: str, seconds_ago: float, layout: str | None, reason: str, phase: str | None) -> str:
    """``layout`` None: a plan for routing numbers alone, of an earlier version."""
    became = phase or "not handled by the operator yet"
    return f"{plan} ({ago(seconds_ago)}): {layout or 'routing'}, {reason}; {became}"


# --- elastic groups ---


def instances_serve(serving: int, desired: int, starting: int) -> str:
    """Of an elastic group."""
    return f"{serving} of {quantity(desired, 'instance')} {do(desired, 'serve')}, {starting} starting"


def manager(waiting: float, free_slots: float, slots: float) -> str:
    """What the manager of an elastic group reports."""
    slots_free = f"{free_slots:.0f} of {quantity(slots, 'KV slot')} {are(free_slots)} free"
    return f"{quantity(waiting, 'request')} {do(waiting, 'wait')}; {slots_free}"


def group_rate(rate_per_s: float, lead_s: float, high_per_s: float) -> str:
    """The forecast for when a new instance would serve, and what the group is sized for."""
    return f"{rate_per_s:.2f} requests/s expected in {lead_s:.0f} s; planned for {high_per_s:.2f}"


def group_step(step_s: float, per_request_s: float) -> str:
    """How long a decode step of one instance takes."""
    return f"a decode step takes {step_s * 1000:.1f} ms, and {per_request_s * 1000:.2f} ms for each request in it"


def instances_needed(needed: float, prompt_share: float, answer_share: float, memory_share: float) -> str:
    """The estimates for so many."""
    in_time = f"{prompt_share:.0%} of prompts in time, {answer_share:.0%} of answers"
    return f"{needed:.0f} needed: {in_time}, and KV memory for {memory_share:.0%}"
