"""The dashboard of one elastic group: are clients served, how fast, by how many instances, and in which groups?"""

from charts.dashboards.grafana import NOTHING, Annotation, Dashboard, Kind, Panel, Query, Row, Variable
from charts.dashboards.marks import PLANS
from charts.dashboards.queries import SELECTED, changes, increase, quantile, rate


def _quantiles(histogram: str, *shares: float) -> tuple[Query, ...]:
    return tuple(Query(quantile(share, histogram), f"p{share * 100:g}") for share in shares)


def _iterations(phase: str) -> tuple[Query, ...]:
    counted = rate("pointsman_elastic_iterations_total", f'phase="{phase}"', by="degree")
    return (Query(f"{counted} > 0", "degree {{degree}}"),)


SERVED = Row(
    "Requests",
    (
        Panel(
            "Conditions of the group",
            "Conditions of the ElasticGroup and their reasons. docs/use/elastic.md has a remedy for each.",
            "none",
            (
                Query(
                    f'pointsman_operator_service_condition{{{SELECTED},kind="ElasticGroup",'
                    'type=~"Available|Ready|Degraded"} == 1',
                    "{{type}}: {{status}}, {{reason}}",
                ),
            ),
            Kind.NAMES,
        ),
        Panel(
            "Answers by HTTP status",
            "Requests per second. 499: the client closed the connection first. 503: no manager was ready.",
            "reqps",
            (Query(rate("pointsman_gateway_requests_total", by="code"), "{{code}}"),),
            Kind.STACKED,
        ),
        Panel(
            "Running and waiting requests",
            "running: the instances have their KV. waiting: queued at the manager until KV slots are free.",
            "short",
            (
                Query(f"sum (vllm:num_requests_running{{{SELECTED}}})", "running"),
                Query(f"sum (vllm:num_requests_waiting{{{SELECTED}}})", "waiting"),
            ),
            Kind.STACKED,
        ),
    ),
)

LATENCY = Row(
    "Latency",
    (
        Panel(
            "TTFT",
            "Time to first token of streams, measured at the gateway.",
            "s",
            _quantiles("pointsman_gateway_time_to_first_token_seconds", 0.5, 0.95, 0.99),
        ),
        Panel(
            "TPOT",
            "Time per output token: the mean of each stream, measured at the gateway.",
            "s",
            _quantiles("pointsman_gateway_time_per_output_token_seconds", 0.5, 0.95, 0.99),
        ),
        Panel(
            "Inter-token latency",
            "Every gap between two tokens of a stream. It shows stalls, which the mean of a stream hides.",
            "s",
            _quantiles("pointsman_gateway_inter_token_latency_seconds", 0.5, 0.99, 0.999),
        ),
    ),
)

INSTANCES = Row(
    "Instances",
    (
        Panel(
            "Instances",
            "ready: the model is loaded. joined: the manager schedules work on them; a gap while it does not answer. "
            "draining: they hand over their KV.",
            "short",
            (
                Query(
                    f'max by (state) (pointsman_operator_elastic_instances{{{SELECTED},state!="desired"}})', "{{state}}"
                ),
                Query(
                    f'max (pointsman_operator_elastic_instances{{{SELECTED},state="desired"}})', "desired", dashed=True
                ),
            ),
        ),
        Panel(
            "KV slots",
            "Tokens of KV on all joined instances. New requests wait when no slots are free.",
            "short",
            (
                Query(f'max (pointsman_elastic_slots{{{SELECTED},state="free"}})', "free"),
                Query(f'max (pointsman_elastic_slots{{{SELECTED},state="total"}})', "total", dashed=True),
            ),
        ),
        Panel(
            "Changes of instances and manager",
            "Instances that joined, drained or were lost, and restarts of the manager, which end all open streams.",
            "short",
            (Query(increase("pointsman_operator_elastic_events_total", "reason"), "{{reason}}"),),
            Kind.BARS,
            empty=NOTHING,
        ),
    ),
)

DEGREES = Row(
    "Parallelism",
    (
        Panel(
            "Prefill iterations by degree",
            "Iterations per second, by the number of instances that computed one together. Long prompts use higher "
            "degrees.",
            "ops",
            _iterations("prefill"),
            Kind.STACKED,
            empty=NOTHING,
        ),
        Panel(
            "Decode iterations by degree",
            "Iterations per second, by the number of instances that computed one together. A higher degree has more KV "
            "slots for its requests.",
            "ops",
            _iterations("decode"),
            Kind.STACKED,
            empty=NOTHING,
        ),
        Panel(
            "Groups that grew or shrank",
            "down: a group that shrank after a prefill. up: a decoding group that got a further instance. Per second.",
            "ops",
            (Query(f"{rate('pointsman_elastic_scalings_total', by='direction')} > 0", "{{direction}}"),),
            Kind.STACKED,
            empty=NOTHING,
        ),
    ),
)

OVERHEAD = Row(
    "Moved KV and recomputation",
    (
        Panel(
            "Moved KV",
            (
                "KV sent between instances in addition to attention, in bytes per second. drain: an instance "
                "drained. vacate: the manager freed slots for a prompt. scale_down, scale_up: must be 0."
            ),
            "Bps",
            (Query(f"{rate('pointsman_elastic_moved_bytes_total', by='reason')} > 0", "{{reason}}"),),
            Kind.STACKED,
            empty=NOTHING,
        ),
        Panel(
            "Recomputed requests",
            "Requests that lost KV and were prefilled again: an instance crashed, or did not hand over all of its KV.",
            "short",
            (Query(increase("pointsman_elastic_recomputed_requests_total", "service"), "recomputed"),),
            Kind.BARS,
            empty=NOTHING,
        ),
        Panel(
            "Time to plan a round",
            "Free instances wait while the manager plans their next iteration.",
            "s",
            _quantiles("pointsman_elastic_round_seconds", 0.5, 0.99),
        ),
    ),
)

MARKS = (
    PLANS,
    Annotation(
        "Changes of instances",
        changes("pointsman_operator_elastic_events_total", "reason"),
        "{{reason}}",
        "The operator reported {{reason}}. Which instance: kubectl get events",
        "purple",
    ),
)

ELASTIC = Dashboard(
    uid="pointsman-elastic",
    title="Pointsman elastic group",
    description="One ElasticGroup, from the answers to its clients down to the iterations of its instances.",
    variables=(
        Variable("namespace", "Namespace", "label_values(pointsman_elastic_instances, namespace)"),
        Variable(
            "service", "Elastic group", 'label_values(pointsman_elastic_instances{namespace="$namespace"}, service)'
        ),
    ),
    rows=(SERVED, LATENCY, INSTANCES, DEGREES, OVERHEAD),
    annotations=MARKS,
)
