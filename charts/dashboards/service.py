"""The dashboard of one service, in the order in which a person on call asks.

Are clients served, how fast, with what load, by how many workers and why so many, what waits, what do the engines do,
what fails?

Rates are over ``$__rate_interval``; a ratio of nothing to nothing is no number and shows as a gap.
"""

from typing import Final

from charts.dashboards.grafana import NOTHING, Annotation, Dashboard, Kind, Panel, Query, Row, Variable
from charts.dashboards.marks import PLANS
from charts.dashboards.queries import SELECTED, changes, increase, mean, quantile, rate


def _of_role(role: str = "") -> str:
    """To multiply a worker's series with: gives them the role it has now, which is a label of one gauge only.

    Counters are summed by pod first: where a scrape configuration adds the role of the pod's label, a worker that has
    just switched has each of them twice, and Prometheus refuses to match them.
    """
    matchers = f'{SELECTED},role="{role}"' if role else SELECTED
    return f"on (namespace, pod) group_left (role) (pointsman_worker_role{{{matchers}}} == 1)"


def _told(metric: str, matchers: str = "") -> str:
    """A gauge of the planner. ``max``: while its pod is replaced there are two for a moment."""
    chosen = f"{SELECTED},{matchers}" if matchers else SELECTED
    return f"max (pointsman_planner_{metric}{{{chosen}}})"


def _input(name: str) -> str:
    return _told("input", f'name="{name}"')


def _routing(name: str) -> str:
    return _told("routing", f'name="{name}"')


def _quantiles(histogram: str, objective: str) -> tuple[Query, ...]:
    return (
        *(Query(quantile(share, histogram), f"p{share * 100:g}") for share in (0.5, 0.95, 0.99)),
        Query(_told(objective), "objective", dashed=True),
    )


def _workers(role: str) -> Panel:
    small = role.lower()
    return Panel(
        f"{role} workers",
        (
            f"By condition, with the number of {small} workers that the planner needs: now, and when a worker "
            "started now would serve. Unreachable workers count as serving. The needs are empty without a "
            "policy (spec.policyRef)."
        ),
        "short",
        (
            Query(
                f'max by (condition) (pointsman_planner_workers{{{SELECTED},role="{role}"}})',
                "{{condition}}",
            ),
            Query(_input(f"{small}NeededNow"), "needed now", dashed=True),
            Query(_input(f"{small}Needed"), "needed soon", dashed=True),
        ),
        Kind.STACKED,
    )


def _ended_share(part: str, whole: str) -> str:
    """The share of the requests that ended with the labels ``part`` among those with ``whole``."""
    ended = "sum (rate(pointsman_gateway_ended_total{{{}}}[$__rate_interval]))"
    return f"{ended.format(f'{SELECTED},{part}')} / {ended.format(f'{SELECTED},{whole}')}"


SERVED = Row(
    "Requests",
    (
        Panel(
            "Conditions",
            ("Conditions of the LLMService and their reasons. docs/operate/operations.md has a remedy for each."),
            "none",
            (
                Query(
                    f'pointsman_operator_service_condition{{{SELECTED},type=~"Available|Ready|Degraded"}} == 1',
                    "{{type}}: {{status}}, {{reason}}",
                ),
                Query(f"pointsman_planner_healthy{{{SELECTED}}} == 1", "PlannerHealthy: True, {{reason}}"),
                Query(f"pointsman_planner_healthy{{{SELECTED}}} == 0", "PlannerHealthy: False, {{reason}}"),
            ),
            Kind.NAMES,
        ),
        Panel(
            "Share within objectives",
            (
                "observed: share within both objectives (TTFT and TPOT) at the gateways, over the last 500 "
                "requests. expected: the planner's estimate for the same workers. If observed is far below "
                "expected, the engine is slower than the planner's model. Empty without a policy."
            ),
            "percentunit",
            (
                Query(_ended_share('ttft="met",tpot=~"met|none"', 'ttft!="unknown",tpot!="unknown"'), "observed"),
                Query(_ended_share('tpot="met"', 'tpot=~"met|missed"'), "TPOT alone"),
                Query(_input("predictedAttainment"), "expected"),
                Query(_told("attainment_objective"), "objective", dashed=True),
            ),
            most=1,
        ),
        Panel(
            "Answers by status",
            (
                "Requests per second. 499: the client closed the connection first. 429: flow control rejected "
                "the request."
            ),
            "reqps",
            (Query(rate("pointsman_gateway_requests_total", by="code"), "{{code}}"),),
            Kind.STACKED,
        ),
    ),
)

LATENCY = Row(
    "Latency",
    (
        Panel(
            "Time to first token",
            ("Time to first token of streams, queueing at the gateway included. objective: for the mean prompt."),
            "s",
            _quantiles("pointsman_gateway_time_to_first_token_seconds", "ttft_objective_seconds"),
        ),
        Panel(
            "Time per output token",
            "Mean of each stream.",
            "s",
            _quantiles("pointsman_gateway_time_per_output_token_seconds", "tpot_objective_seconds"),
        ),
        Panel(
            "Inter-token latency",
            "Every gap between two tokens of a stream. It shows stalls, which the mean of a stream hides.",
            "s",
            tuple(
                Query(quantile(share, "pointsman_gateway_inter_token_latency_seconds"), f"p{share * 100:g}")
                for share in (0.5, 0.99, 0.999)
            ),
        ),
    ),
)

LOAD = Row(
    "Load",
    (
        Panel(
            "Arrivals and their forecast",
            (
                "accepted: at the gateways. now: the planner's estimate of the present rate. expected: its "
                "forecast for the time when a worker started now would serve."
            ),
            "reqps",
            (
                Query(rate("pointsman_gateway_accepted_total"), "accepted"),
                Query(_input("ratePerSecond"), "estimate", dashed=True),
                Query(_input("expectedRatePerSecond"), "expected", dashed=True),
            ),
        ),
        Panel(
            "Tokens of a request",
            "Means. If they change, the needed number of workers of each role changes.",
            "short",
            (
                Query(mean("pointsman_gateway_prompt_tokens"), "prompt"),
                Query(mean("pointsman_gateway_output_tokens"), "answer"),
            ),
        ),
        Panel(
            "Tokens per second",
            "Tokens of arriving prompts and of ended answers.",
            "short",
            (
                Query(rate("pointsman_gateway_prompt_tokens_sum"), "prompts"),
                Query(rate("pointsman_gateway_output_tokens_sum"), "answers"),
            ),
        ),
        Panel(
            "Prefills by place",
            "remote: on a prefill worker. Others: on the decode worker, with the reason.",
            "reqps",
            (
                Query(
                    f"{rate('pointsman_worker_prefill_decisions_total', by='path, reason')} > 0",
                    "{{path}}: {{reason}}",
                ),
            ),
            Kind.STACKED,
        ),
    ),
)

WORKERS = Row(
    "Workers",
    (
        _workers("Prefill"),
        _workers("Decode"),
        Panel(
            "Workers that gateways use",
            (
                "Workers by their state at the gateways. suspect: a connection failed recently. unknown-model: "
                "the worker has not reported its model yet."
            ),
            "short",
            (Query(f"max by (role, state) (pointsman_gateway_workers{{{SELECTED}}})", "{{role}} {{state}}"),),
            Kind.STACKED,
        ),
        Panel(
            "GPUs and budget",
            (
                "GPUs of all workers, starting and draining ones included, and budget.maxGpus of the policy. A "
                "worker on CPU counts as 1."
            ),
            "short",
            (Query(_told("gpus"), "taken"), Query(_told("budget_gpus"), "budget", dashed=True)),
        ),
    ),
)

ROLE_NAMES: Final = ("Prefill", "Decode", "Encode")
ROLES = Row(
    "Roles over time",
    (
        Panel(
            "Role history",
            "The role of each worker over time. A role switch is a change of colour in one bar; a gap is a worker "
            "without a role, or not scraped.",
            "none",
            (
                Query(
                    " or ".join(
                        f'max by (pod) ({number} * (pointsman_worker_role{{{SELECTED},role="{role}"}} == 1))'
                        for number, role in enumerate(ROLE_NAMES, start=1)
                    ),
                    "{{pod}}",
                ),
            ),
            Kind.STATES,
            states=ROLE_NAMES,
        ),
        Panel(
            "Workers by role",
            "Number of workers with each reported role, for services with too many workers for a bar each.",
            "short",
            (Query(f"sum by (role) (pointsman_worker_role{{{SELECTED}}})", "{{role}}"),),
            Kind.STACKED,
        ),
    ),
)

WHY = Row(
    "Planner decisions",
    (
        Panel(
            "Reasons of decisions",
            (
                "Evaluations of the planner by reason of the decision, the latest of each interval on top. "
                "Unsatisfiable: the need exceeds the policy. StaleMetrics, NotEnoughData: no decision. "
                "docs/planner/reasons.md explains each."
            ),
            "short",
            (Query(increase("pointsman_planner_ticks_total", "reason"), "{{reason}}"),),
            Kind.BARS,
            empty=NOTHING,
        ),
        Panel(
            "Plans that ended",
            "By phase and reason. Failed: see the message of the plan (kubectl get pplan).",
            "short",
            (Query(increase("pointsman_operator_plans_total", "phase, reason"), "{{phase}}: {{reason}}"),),
            Kind.BARS,
            empty=NOTHING,
        ),
        Panel(
            "Role switches that ended",
            "RolledBack: the worker is back in its old role, nothing was lost. Failed: it was refused, or the "
            "worker is replaced.",
            "short",
            (Query(increase("pointsman_operator_role_switches_total", "phase, reason"), "{{phase}}: {{reason}}"),),
            Kind.BARS,
            empty=NOTHING,
        ),
    ),
)

WAITING = Row(
    "Queues",
    (
        Panel(
            "Waiting requests",
            (
                "gateways: queued by flow control. prefill queue: between decode and prefill workers. engines: "
                "accepted, but not started."
            ),
            "short",
            (
                Query(f"sum (pointsman_gateway_held{{{SELECTED}}})", "gateways"),
                Query(f"max (pointsman_worker_prefill_queue_depth{{{SELECTED}}})", "prefill queue"),
                Query(f"sum (vllm:num_requests_waiting{{{SELECTED}}})", "engines"),
            ),
        ),
        Panel(
            "Time in the admission queue",
            (
                "Of queued requests, however it ended, and slackMilliseconds: requests that wait longer in all "
                "are late and are served last."
            ),
            "s",
            (
                *(
                    Query(quantile(share, "pointsman_gateway_hold_seconds"), f"p{share * 100:g}")
                    for share in (0.5, 0.95)
                ),
                Query(f"{_routing('slackMilliseconds')} / 1000", "slack", dashed=True),
            ),
        ),
        Panel(
            "Queued and rejected requests",
            (
                "Per second. Rejected with 429: more than maxQueuedRequests were queued (overloaded), or one for "
                "longer than queueTimeoutSeconds (held-too-long)."
            ),
            "reqps",
            (
                Query(rate("pointsman_gateway_holds_total"), "queued"),
                Query(
                    rate("pointsman_gateway_failures_total", 'reason=~"overloaded|held-too-long"', by="reason"),
                    "refused: {{reason}}",
                ),
            ),
        ),
    ),
)

ROUTING = Row(
    "Routing numbers",
    (
        Panel(
            "Threshold of remote prefill",
            "maxLocalPrefillTokens: longer prompts (uncached tokens) are computed by prefill workers.",
            "short",
            (Query(_routing("maxLocalPrefillTokens"), "threshold"),),
        ),
        Panel(
            "Bound of pending prompt tokens",
            (
                "pendingTokensPerPrefillWorker: above this bound, per prefill worker, a gateway queues new "
                "requests. Empty: no bound."
            ),
            "short",
            (Query(_routing("pendingTokensPerPrefillWorker"), "bound"),),
        ),
        Panel(
            "Decoding requests per worker",
            (
                "Running requests of each decode worker, and decodingPerDecodeWorker: at this bound a gateway "
                "queues new requests."
            ),
            "short",
            (
                Query(f"max by (pod) (vllm:num_requests_running{{{SELECTED}}} * {_of_role('Decode')})", "{{pod}}"),
                Query(_routing("decodingPerDecodeWorker"), "bound", dashed=True),
            ),
        ),
    ),
)

ENGINES = Row(
    "Engines",
    (
        Panel(
            "KV cache in use",
            "Of each worker. A decode worker near 100 % preempts sequences and computes them again.",
            "percentunit",
            (Query(f"max by (role, pod) (vllm:kv_cache_usage_perc{{{SELECTED}}} * {_of_role()})", "{{role}} {{pod}}"),),
            most=1,
            worse_above=0.95,
        ),
        Panel(
            "Prefix hits",
            ("Share of prompt tokens with KV in the worker's cache, by role. A higher share means less computation."),
            "percentunit",
            (
                Query(
                    f"sum by (role) ({rate('vllm:prefix_cache_hits_total', by='namespace, pod')} * {_of_role()}) / "
                    f"sum by (role) ({rate('vllm:prefix_cache_queries_total', by='namespace, pod')} * {_of_role()})",
                    "{{role}}",
                ),
            ),
            most=1,
        ),
        Panel(
            "KV transfers",
            ("Mean time of one transfer from a prefill worker. If it grows, check the network between the workers."),
            "s",
            (Query(mean("vllm:nixl_xfer_time_seconds"), "transfer"),),
        ),
    ),
)

IMAGES = Row(
    "Images",
    (
        Panel(
            "Images by place of encoding",
            (
                "Per second. encode: by an encode worker. cache: from its cache. bypass: small images, by the "
                "worker that prefills. local: by that worker, because no encode worker did it."
            ),
            "ops",
            (Query(rate("pointsman_gateway_images_total", by="path"), "{{path}}"),),
            Kind.STACKED,
        ),
        Panel(
            "Time of an image",
            "Time of encode workers for an image, queue included, and for a request of its own.",
            "s",
            (
                *(
                    Query(quantile(share, "pointsman_gateway_encode_seconds"), f"p{share * 100:g}")
                    for share in (0.5, 0.95)
                ),
                Query(mean("pointsman_worker_encode_seconds"), "at the worker, mean"),
            ),
            empty=NOTHING,
        ),
        _workers("Encode"),
    ),
)

FAILURES = Row(
    "Failures",
    (
        Panel(
            "Failed requests",
            "Requests that ended with an error for the client, per second, by reason.",
            "reqps",
            (Query(f"{rate('pointsman_gateway_failures_total', by='reason')} > 0", "{{reason}}"),),
            empty=NOTHING,
        ),
        Panel(
            "Retried attempts",
            "Per second, by reason: another worker took the request. '-mid-stream': after its first token.",
            "reqps",
            (Query(f"{rate('pointsman_gateway_retries_total', by='reason')} > 0", "{{reason}}"),),
            empty=NOTHING,
        ),
        Panel(
            "Failed work of the workers",
            "Rejected remote prefills, expired leases, failed transfers and preempted sequences, per second.",
            "ops",
            (
                Query(
                    rate("pointsman_worker_remote_prefills_total", 'outcome!="done"', by="outcome"),
                    "prefill: {{outcome}}",
                ),
                Query(rate("pointsman_worker_late_leases_total"), "late leases"),
                Query(rate("vllm:nixl_num_failed_transfers_total"), "failed transfers"),
                Query(rate("vllm:num_preemptions_total"), "preemptions"),
            ),
        ),
    ),
)

MARKS = (
    PLANS,
    Annotation(
        "Plans that were not executed",
        changes("pointsman_operator_plans_total", "phase, reason", 'phase!~"Completed|Superseded"'),
        "Plan {{phase}}: {{reason}}",
        "A plan ended {{phase}} because of {{reason}}. Its message: kubectl get pplan",
        "red",
    ),
    Annotation(
        "Role switches",
        changes("pointsman_operator_role_switches_total", "phase, reason"),
        "Role switch {{phase}}: {{reason}}",
        "A role switch ended {{phase}} because of {{reason}}. Which worker: kubectl get rsw",
        "purple",
    ),
)

SERVICE = Dashboard(
    uid="pointsman-service",
    title="Pointsman service",
    description="One LLMService, from the results for its clients down to its engines.",
    variables=(
        Variable("namespace", "Namespace", "label_values(pointsman_gateway_in_flight, namespace)"),
        Variable("service", "Service", 'label_values(pointsman_gateway_in_flight{namespace="$namespace"}, service)'),
    ),
    rows=(SERVED, LATENCY, LOAD, WORKERS, ROLES, WHY, WAITING, ROUTING, ENGINES, IMAGES, FAILURES),
    annotations=MARKS,
)
