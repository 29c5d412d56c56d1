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
            (
                "Services with a policy, by the condition PlannerHealthy and its reason. "
                "docs/operate/operations.md has a remedy for each."
            ),
            "short",
            (
                Query("count by (reason) (pointsman_planner_healthy{} == 1)", "True: {{reason}}"),
                Query("count by (reason) (pointsman_planner_healthy{} == 0)", "False: {{reason}}"),
            ),
            Kind.STACKED,
        ),
        Panel(
            "Leaders",
            (
                "One operator and one planner are leaders; further ones stand by. 0 for longer than a Lease (15 "
                "s): see their logs."
            ),
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
            "Age of metrics",
            (
                "Age of the oldest page of a gateway and of a serving worker, by service. No decision is made if "
                "a gateway or half of the workers exceed metrics.staleAfterSeconds."
            ),
            "s",
            (
                Query(
                    "max by (namespace, service, source) (pointsman_planner_observation_age_seconds{} < Inf)",
                    f"{_SERVICE}: {{{{source}}}}",
                ),
            ),
        ),
        Panel(
            "Duration",
            (
                "Duration of one evaluation, scrapes included. Near metrics.intervalSeconds the planner falls "
                "behind, because of its CPU or slow pods."
            ),
            "s",
            _quantiles("pointsman_planner_tick_seconds", 0.5, 0.99),
        ),
        Panel(
            "Error of expected attainment",
            "Mean difference of expected and observed attainment in single evaluations, by service.",
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
            "Evaluations by reason of the decision, all services.",
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
            (
                "By phase and reason. Expired: the operator did not start it within a minute, or it was not "
                "approved in time."
            ),
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
            "Drained workers",
            "lossless: all requests ended before the deletion. false: spec.drain.timeoutSeconds had passed.",
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
            "Reconciliations",
            "Per second, by outcome. Outcomes other than done and gone should be rare.",
            "ops",
            (Query(f"sum by (outcome) (rate(pointsman_operator_reconciles_total{{}}[{_WINDOW}]))", "{{outcome}}"),),
            Kind.STACKED,
        ),
        Panel(
            "Duration",
            "Duration of one reconciliation.",
            "s",
            _quantiles("pointsman_operator_reconcile_seconds", 0.5, 0.99),
        ),
        Panel(
            "Queue",
            "Services in the queue, and services in back-off after a failure, which the log describes.",
            "short",
            (
                Query("max (pointsman_operator_queue_ready{})", "ready"),
                Query("max (pointsman_operator_queue_failing{})", "failing"),
            ),
        ),
    ),
)

CLUSTER = Row(
    "Operator and API server",
    (
        Panel(
            "Requests to the API server",
            "Per second, by verb. In a steady state mostly reads and the Lease.",
            "reqps",
            (Query(f"sum by (verb) (rate(pointsman_operator_kube_requests_total{{}}[{_WINDOW}]))", "{{verb}}"),),
            Kind.STACKED,
        ),
        Panel(
            "Failed requests",
            "By status. 409: a conflicting write, which is retried. 403: missing rights. none: no answer.",
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
            "Age of the mirror of pods",
            ("Time since the mirror was last confirmed current, and the longest wait of a service in the queue."),
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
    description="Metrics, decisions and actions of planner and operator, over all services.",
    variables=(),
    rows=(SERVICES, PLANNER, DECISIONS, SWITCHES, OPERATOR, CLUSTER),
)
