"""The dashboard of planner and operator themselves, over all services: do they see, decide and act, how quickly?"""

from typing import Final

from charts.dashboards.grafana import NOTHING, Dashboard, Kind, Panel, Query, Row

_WINDOW: Final = "$__rate_interval"
_SERVICE: Final = "{{namespace}}/{{service}}"


def _quantiles(histogram: str, *shares: float) -> tuple[Query, ...]:
    return tuple(
        Query(
            f"histogram_quantile({share:g}, sum by (le) (rate({histogram}_bucket{{}}[{_WINDOW}])))", f"p{share * 100:g}"
        )
        for share in shares
    )


def _increase(metric: str, by: str) -> str:
    return f"sum by ({by}) (increase({metric}{{}}[{_WINDOW}])) > 0"


def _input(name: str) -> str:
    return f'max by (namespace, service) (pointsman_planner_input{{name="{name}"}})'


SERVICES = Row(
    "Services",
    (
        Panel(
            "Ready",
            "Services and elastic groups, by status and reason of their condition Ready.",
            "short",
            (
                Query(
                    'count by (status, reason) (pointsman_operator_service_condition{type="Ready"})',
                    "{{status}}: {{reason}}",
                ),
            ),
            Kind.STACKED,
        ),
        Panel(
            "Planned",
            "Services with a policy, by the condition PlannerHealthy and its reason. docs/operate/operations.md says "
            "what to do for each.",
            "short",
            (
                Query("count by (reason) (pointsman_planner_healthy{} == 1)", "True: {{reason}}"),
                Query("count by (reason) (pointsman_planner_healthy{} == 0)", "False: {{reason}}"),
            ),
            Kind.STACKED,
        ),
        Panel(
            "Leaders",
            "One operator and one planner lead; further ones stand by. 0 for longer than a Lease (15 s): see the "
            "logs of all of them.",
            "short",
            (
                Query("sum (pointsman_operator_leader{})", "operator"),
                Query("sum (pointsman_planner_leader{})", "planner"),
            ),
        ),
    ),
)

PLANNER = Row(
    "Planner",
    (
        Panel(
            "Age of what is seen",
            "Of the oldest page of a gateway and of a worker that serves, by service. Where a gateway's, or those of "
            "half of the workers, are beyond the policy's metrics.staleAfterSeconds, nothing is decided.",
            "s",
            (
                Query(
                    "max by (namespace, service, source) (pointsman_planner_observation_age_seconds{} < Inf)",
                    f"{_SERVICE}: {{{{source}}}}",
                ),
            ),
        ),
        Panel(
            "Time of a look",
            "Reading all pages included. Near the policy's metrics.intervalSeconds the planner falls behind: its "
            "CPU, or slow pods.",
            "s",
            _quantiles("pointsman_planner_tick_seconds", 0.5, 0.99),
        ),
        Panel(
            "Distance of its word from what came",
            "Expected and observed share within objectives, mean distance in single looks, by service.",
            "percentunit",
            (Query(_input("predictionError"), _SERVICE),),
            most=1,
        ),
    ),
)

DECISIONS = Row(
    "Decisions",
    (
        Panel(
            "Reasons",
            "Looks by the reason of the decision, all services.",
            "short",
            (Query(_increase("pointsman_planner_ticks_total", "reason"), "{{reason}}"),),
            Kind.BARS,
            empty=NOTHING,
        ),
        Panel(
            "Plans written",
            "By reason, all services.",
            "short",
            (Query(_increase("pointsman_planner_plans_total", "reason"), "{{reason}}"),),
            Kind.BARS,
            empty=NOTHING,
        ),
        Panel(
            "Plans that ended",
            "By phase and reason. Expired: the operator did not begin it within a minute, or nobody approved.",
            "short",
            (Query(_increase("pointsman_operator_plans_total", "phase, reason"), "{{phase}}: {{reason}}"),),
            Kind.BARS,
            empty=NOTHING,
        ),
    ),
)

SWITCHES = Row(
    "Role switches and drains",
    (
        Panel(
            "Role switches that ended",
            "By phase and reason.",
            "short",
            (Query(_increase("pointsman_operator_role_switches_total", "phase, reason"), "{{phase}}: {{reason}}"),),
            Kind.BARS,
            empty=NOTHING,
        ),
        Panel(
            "Time of a role switch",
            "From its creation until the worker serves in the new role, its drain included.",
            "s",
            _quantiles("pointsman_operator_role_switch_seconds", 0.5, 0.95),
            empty=NOTHING,
        ),
        Panel(
            "Workers that left",
            "By whether all their work ended before. lossless: false means that spec.drain.timeoutSeconds was over.",
            "short",
            (Query(_increase("pointsman_operator_drain_seconds_count", "lossless"), "lossless: {{lossless}}"),),
            Kind.BARS,
            empty=NOTHING,
        ),
    ),
)

OPERATOR = Row(
    "Operator",
    (
        Panel(
            "Looks at services",
            "A second, by outcome; all but done and gone should be rare.",
            "ops",
            (Query(f"sum by (outcome) (rate(pointsman_operator_reconciles_total{{}}[{_WINDOW}]))", "{{outcome}}"),),
            Kind.STACKED,
        ),
        Panel("Time of a look", "At one service.", "s", _quantiles("pointsman_operator_reconcile_seconds", 0.5, 0.99)),
        Panel(
            "Queue",
            "Services that wait to be looked at, and those in back-off after a failure: the log has its words.",
            "short",
            (
                Query("max (pointsman_operator_queue_ready{})", "ready"),
                Query("max (pointsman_operator_queue_failing{})", "failing"),
            ),
        ),
    ),
)

CLUSTER = Row(
    "What the operator sees of the cluster",
    (
        Panel(
            "Requests to the API server",
            "A second, by verb. Little but reads and the Lease while nothing changes.",
            "reqps",
            (Query(f"sum by (verb) (rate(pointsman_operator_kube_requests_total{{}}[{_WINDOW}]))", "{{verb}}"),),
            Kind.STACKED,
        ),
        Panel(
            "Requests that were refused",
            "By status. 409: somebody else wrote first, and it is tried again; 403: rights are missing; none: no "
            "answer.",
            "reqps",
            (
                Query(
                    "sum by (verb, resource, status) "
                    f'(rate(pointsman_operator_kube_requests_total{{status!~"2..|404"}}[{_WINDOW}])) > 0',
                    "{{status}} {{verb}} {{resource}}",
                ),
            ),
            empty=NOTHING,
        ),
        Panel(
            "Age of its copy of the pods",
            "Since it was proved current, and the longest wait of a service in the queue.",
            "s",
            (
                Query("max (pointsman_operator_mirror_age_seconds{})", "copy"),
                Query("max (pointsman_operator_queue_oldest_seconds{})", "queue"),
            ),
        ),
    ),
)

HEALTH = Dashboard(
    uid="pointsman-health",
    title="Pointsman planner and operator",
    description="Whether planner and operator see, decide and act, over all services.",
    variables=(),
    rows=(SERVICES, PLANNER, DECISIONS, SWITCHES, OPERATOR, CLUSTER),
)
