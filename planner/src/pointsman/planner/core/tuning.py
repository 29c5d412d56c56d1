"""The planner's own constants: what shapes a decision and is no field of a PlannerPolicy.

``Tuning`` is a value. It is part of the ``Policy`` that ``decide`` gets, so a simulation may vary one field and leave
the rest as shipped. ``docs/planner/tuning.md`` is generated from it (``make tuning``).
"""

from typing import Annotated, Final

from pydantic import BaseModel, ConfigDict, Field

Positive = Annotated[float, Field(gt=0, allow_inf_nan=False)]
Share = Annotated[float, Field(gt=0, le=1)]
Factor = Annotated[float, Field(gt=1, allow_inf_nan=False)]
Count = Annotated[int, Field(gt=0)]


class Tuning(BaseModel):
    """Times are seconds, shares are 0..1. Raises pydantic's ValidationError, which names field, value and bound."""

    model_config = ConfigDict(frozen=True, extra="forbid", use_attribute_docstrings=True)

    # --- workload ---
    surprise_sigmas: Annotated[float, Field(gt=0.5, allow_inf_nan=False)] = 4.0
    """A window this many standard deviations off the forecast is a sudden change. Higher: steps are followed slowly.
    Lower: chance starts workers."""
    max_forecast_growth: Factor = 2.0
    """The forecast grows at most by this factor within one start. Higher: a short burst starts many workers. Lower:
    steep ramps are served late."""
    max_forecast_fall: Factor = 1.2
    """The forecast falls at most by this factor within one start. Higher: workers are removed and started again. Lower:
    removals wait longer."""
    length_window_s: Positive = 300.0
    """Mean prompt and output lengths are taken over this long. Longer: slow drifts are seen late. Shorter: the means
    vary by chance."""
    length_change_sigmas: Positive = 5.0
    """Recent lengths replace the long mean when they differ by this many standard errors. Higher: a new mix is seen
    late. Lower: chance counts as a new mix."""
    min_length_change: Share = 0.1
    """A smaller relative change of the mean length is no new mix. Higher: small changes wait for the long mean. Lower:
    sizing follows chance."""
    memory_requests: Factor = 200.0
    """Number of requests behind the mean of cached tokens, of answers behind a bucket's usual answer, of images behind
    the mean of image times. More: changes are seen late. Fewer: the means vary by chance."""

    # --- engine ---
    model_ratio_bound: Factor = 4.0
    """Measured times correct a performance table at most by this factor, up or down. Higher: one wrong measurement
    misleads more. Lower: a table for another GPU stays wrong."""
    base_start_s: Positive = 60.0
    """Estimated start of a worker without weights, before any start was measured. Longer: first workers are started
    earlier. Shorter: they come too late."""
    start_s_per_billion: Positive = 3.6
    """Estimated seconds to load a billion parameters, before any start was measured. The same holds as for the base
    start."""
    late_start_factor: Factor = 1.25
    """A start that takes this many times the usual is expected at a later time. Higher: a failed start is counted as
    capacity for longer. Lower: every slow start is replanned."""
    stuck_start_factor: Factor = 4.0
    """A start that takes this many times the usual is stuck and replaced. Higher: capacity is missing for longer.
    Lower: slow starts are paid twice."""
    first_switch_s: Positive = 10.0
    """Estimated time of a role switch before any was measured. Longer: starts are preferred. Shorter: a first switch is
    expected too early."""

    # --- sizing ---
    max_prefill_utilization: Share = 0.93
    """Prefill and encode workers are busy at most this share of the time. Higher: queues grow at the least disturbance.
    Lower: more GPUs."""
    max_network_utilization: Share = 0.7
    """KV transfers use at most this share of a worker's network. Higher: transfers queue. Lower: more workers where the
    network is slow."""
    usable_ttft_share: Share = 0.9
    """Share of the TTFT objective that sizing plans with; the rest is reserve. Higher: the slowest requests are late.
    Lower: more prefill workers."""
    min_slack_share: Share = 0.15
    """A request may wait at least this share of the TTFT objective for a prefill worker. Higher: tight objectives are
    missed. Lower: tight objectives take very many workers."""
    usable_tpot_share: Share = 0.985
    """Share of the TPOT objective that a decode step may take. Higher: streams are late by chance. Lower: smaller
    batches and more decode workers."""
    usable_kv_share: Share = 0.92
    """Share of a decode worker's KV cache that is planned with. Higher: more requests are late where contexts are long.
    Lower: more decode workers there."""
    queued_per_worker: Positive = 2.0
    """Waiting requests per worker that are no backlog. Higher: real queues are found late. Lower: normal operation
    starts workers."""
    queue_clear_s: Positive = 30.0
    """A backlog is to be gone this long after the workers for it serve. Longer: requests are late for longer. Shorter:
    many workers for a short time."""
    gateway_queue_clear_s: Positive = 120.0
    """The same where gateways queue the requests. A queue there delays no running request."""
    patience_s: Positive = 15.0
    """A need must last this long before workers start for it, but not this soon after a sudden rise. Longer: gradual
    shortages last longer. Shorter: chance starts workers."""
    need_gap_s: Positive = 20.0
    """A need that was away for less never ended. Longer: real ends are missed. Shorter: one load counts as
    recurring."""
    max_evaluation_gap_s: Positive = 60.0
    """After a longer pause between two evaluations nothing is concluded about the time between. Longer: starts that
    ended meanwhile are measured wrong. Shorter: more is forgotten."""
    rate_headroom: Factor = 1.15
    """Workers are removed only if the remaining ones, and the threshold is raised only if the decode workers, can serve
    this many times the rate. A scarce budget is split anew with encode workers only if that is so many times as good,
    also for so many times the images. Higher: more GPUs. Lower: changes are undone."""
    new_requests_windows: Factor = 2.5
    """For this many scale-in windows after the prompts changed, workers for those before are retained. More: more
    GPUs. Fewer: workers are started again if the old mix returns."""
    return_memory_s: Positive = 3600.0
    """For this long a need that recurred is remembered. Longer: spare workers stay after the last burst. Shorter: rare
    bursts find no spare workers."""
    return_margin: Factor = 1.25
    """Workers for a recurring need stay this many times its longest pause. Higher: more GPUs. Lower: they are removed
    just before it."""
    max_retention_s: Positive = 600.0
    """No recurring need keeps workers for longer. Longer: more GPUs. Shorter: slow cycles start workers each time."""
    ready_requests: Positive = 25.0
    """Requests that must have been seen before anything is scaled. More: the first shortage lasts longer. Fewer: the
    first requests decide by chance."""

    # --- switches ---
    switch_min_gain: Share = 0.05
    """A switch must serve this much more of the need. Higher: fewer switches. Lower: switches for little."""
    switch_evaluations: Count = 3
    """A switch must be better in this number of evaluations in a row. More: it comes later. Fewer: chance switches
    workers."""
    failing_share: Share = 0.67
    """If requests wait and a role has less than this share of the workers it needs, one evaluation is enough for a
    switch. Higher: chance switches workers. Lower: a failing role waits."""
    max_attainment_loss: Share = 0.01
    """A switch may lower the expected attainment of the serving workers by this much. An elastic group that cannot meet
    its objectives may keep this share less than it could. Higher: workers switch because needs are rounded up. Lower:
    useful switches are refused, and groups grow for little."""
    switches_per_worker: Count = 2
    """Switches in ten minutes, times the workers (three at least). More: flapping is
    stopped later. Fewer: another change of the mix waits."""

    # --- routing ---
    threshold_decrease: Share = 0.7
    """Factor on the threshold while local prefills make streams late. Higher: they are late for longer. Lower: prefill
    gets more than it can do."""
    threshold_increase_tokens: Count = 128
    """Tokens by which a long prefill queue raises the threshold in one step. More: decode workers are disturbed. Fewer:
    the queue lasts longer."""
    holdoff_s: Positive = 60.0
    """A lowered threshold returns to its usual value after this long, after up to 16 times as long if it is lowered
    again; the load of an instance of an elastic group after ten times as long. Longer: prefill stays loaded. Shorter:
    it goes up and down."""
    queue_full_share: Share = 0.75
    """Share of the prefill queue's limit at which the queue counts as full. Higher: a shorter queue, more prompts are
    prefilled on decode workers. Lower: a longer queue, prompts in it are late."""
    flow_dead_band: Share = 0.15
    """A flow bound or prefill queue limit that moves by at most this share keeps its value. Higher: bounds follow late.
    Lower: every evaluation wakes all gateways."""
    publish_interval_s: Positive = 10.0
    """Flow bounds are published at most this often. Longer: bounds follow late. Shorter: gateways are woken more
    often."""

    # --- plans ---
    plan_retry_s: Positive = 30.0
    """Wait before a layout that a plan did not reach is tried again; doubled up to 20 times as long. Longer: a short
    fault costs more. Shorter: a lasting fault makes many plans."""


SHIPPED: Final = Tuning()
