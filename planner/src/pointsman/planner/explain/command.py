"""``pointsman explain``: read a service or elastic group, its policy, its plans and the planner's memory, and tell."""

import argparse
import asyncio
import sys
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Final, TypeVar

from pydantic import ValidationError

from pointsman.api.v1alpha1.elasticgroup import ElasticGroup
from pointsman.api.v1alpha1.llmservice import LLMService
from pointsman.api.v1alpha1.plan import Plan, PlannedReference
from pointsman.api.v1alpha1.plannerpolicy import PlannerPolicy
from pointsman.api.v1alpha1.resource import LocalReference
from pointsman.kube import resources
from pointsman.kube.client import Kube
from pointsman.kube.errors import KubeError
from pointsman.kube.objects import unreadable_fields
from pointsman.planner import group_memory, memory
from pointsman.planner.core.engine.startup_time import with_pods_start
from pointsman.planner.core.state import State, seasonal
from pointsman.planner.core.types import Policy
from pointsman.planner.core.what_if import turning_points
from pointsman.planner.core.workload.seasonality import SeasonalForecast
from pointsman.planner.errors import ExplainError, PlannerError
from pointsman.planner.explain.explanation import Told, explanation
from pointsman.planner.explain.group import GroupTold, group_explanation
from pointsman.planner.health import health_of
from pointsman.planner.policies import policy_of, policy_of_group
from pointsman.planner.policy_tables import PolicyTables
from pointsman.process.arguments import CommandParser

M = TypeVar("M", LLMService, ElasticGroup, PlannerPolicy)

_EPILOG: Final = """\
examples:
  pointsman explain chat
  pointsman explain chat --namespace serving
  pointsman explain chat --inputs
"""


def main(argv: list[str]) -> int:
    """Tell the planner's last decision for a service, and what would change it."""
    options = parse(argv)
    try:
        print(asyncio.run(_explained(options)), end="")
    except (PlannerError, KubeError) as error:
        print(f"pointsman explain: {error}", file=sys.stderr)
        return 1
    return 0


async def _explained(options: argparse.Namespace) -> str:
    name, shows_inputs = options.service, options.inputs
    async with await Kube.connect(options.kubeconfig, field_manager="pointsman-explain") as kube:
        namespace = options.namespace or kube.namespace
        if await kube.find(resources.LLM_SERVICES, name, namespace) is None:
            found = await kube.find(resources.ELASTIC_GROUPS, name, namespace)
            if found is not None:
                of_group = await group_told(kube, _read(ElasticGroup, found))
                return group_explanation(replace(of_group, shows_inputs=shows_inputs))
        return explanation(replace(await told(kube, name, namespace), shows_inputs=shows_inputs))


async def group_told(kube: Kube, group: ElasticGroup) -> GroupTold:
    """Everything there is to tell of an elastic group. Raises ExplainError if it is not planned, KubeError."""
    namespace, name = group.metadata.namespace, group.metadata.name
    policy = await _policy(kube, namespace, name, group.spec.policy_ref)
    last = await group_memory.load_last(kube, namespace, name, group.metadata.uid)
    plans = await _plans(kube, namespace)
    return GroupTold(
        group=name,
        namespace=namespace,
        policy_name=policy.metadata.name,
        policy=policy_of_group(policy.spec, group.spec),
        now=datetime.now(UTC),
        last=None if isinstance(last, memory.NoLast) else last,
        plans=[plan for plan in plans if plan.spec.service_ref == PlannedReference(name=name, kind=group.kind)],
        health=health_of(group.status.conditions),
        unknown=last.why if isinstance(last, memory.NoLast) else "",
    )


async def _policy(kube: Kube, namespace: str, name: str, reference: LocalReference | None) -> PlannerPolicy:
    if reference is None:
        raise ExplainError(f"{namespace}/{name} has no spec.policyRef, so nothing is planned for it")
    document = await kube.find(resources.PLANNER_POLICIES, reference.name, namespace)
    if document is None:
        raise ExplainError(
            f"{namespace}/{name}: spec.policyRef names PlannerPolicy '{reference.name}', which does not exist"
        )
    return _read(PlannerPolicy, document)


def _read(model: type[M], found: dict[str, Any]) -> M:
    """Raises ExplainError for an object that a newer version wrote in a form that this one cannot read."""
    try:
        return model.model_validate(found)
    except ValidationError as error:
        kind, name = found["kind"], found["metadata"]["name"]
        raise ExplainError(f"this version of pointsman cannot read {kind} {name}: {unreadable_fields(error)}") from None


async def _plans(kube: Kube, namespace: str) -> list[Plan]:
    """All plans of the namespace that this version can read."""
    plans = []
    for item in (await kube.list(resources.PLANS, namespace)).items:
        try:
            plans.append(Plan.model_validate(item))
        except ValidationError as error:  # of a newer version
            name = item["metadata"]["name"]
            print(
                f"Plan {name} is ignored, because this version cannot read {unreadable_fields(error)}", file=sys.stderr
            )
    return plans


async def told(kube: Kube, name: str, namespace: str) -> Told:
    """Everything there is to tell of a service. Raises ExplainError if it is not planned, KubeError."""
    found = await kube.find(resources.LLM_SERVICES, name, namespace)
    if found is None:
        raise ExplainError(f"there is no LLMService and no ElasticGroup '{name}' in namespace '{namespace}'")
    service = _read(LLMService, found)
    found_policy = await _policy(kube, namespace, name, service.spec.policy_ref)
    policy = policy_of(found_policy.spec, service.spec)
    state, _ = await memory.load(kube, namespace, name, service.metadata.uid)
    found_last = await memory.load_last(kube, namespace, name, service.metadata.uid)
    last, unknown = (None, found_last.why) if isinstance(found_last, memory.NoLast) else (found_last, "")
    plans = await _plans(kube, namespace)
    base, _ = await PolicyTables(kube).base(found_policy)  # what is wrong with it the planner's condition says
    return Told(
        service=name,
        namespace=namespace,
        policy_name=found_policy.metadata.name,
        policy=policy,
        now=datetime.now(UTC),
        observation=last.observation if last else None,
        decision=last.decision if last else None,
        turning=turning_points(state, last.observation, policy, base) if state and last else None,
        plans=[plan for plan in plans if plan.spec.service_ref == PlannedReference(name=name)],
        health=health_of(service.status.conditions),
        unknown=unknown,
        season=_season(state, last, policy) if state and last else None,
        publications=await memory.load_publications(kube, namespace, name, service.metadata.uid),
        denied_for_s=found_policy.spec.approvals.expire_after_seconds,
    )


def _season(state: State, last: memory.Last, policy: Policy) -> SeasonalForecast | None:
    return seasonal(state, with_pods_start(policy, last.observation.pods_start_s), last.observation.at_s)


def parse(argv: list[str]) -> argparse.Namespace:
    parser = CommandParser(
        prog="pointsman explain",
        description=(
            "Explain the planner's latest evaluation of a service or an elastic group: metrics, forecast, "
            "alternatives, decision and its reason."
        ),
        epilog=_EPILOG,
    )
    parser.add_argument("service", metavar="SERVICE", help="the LLMService or ElasticGroup")
    parser.add_argument(
        "-n", "--namespace", metavar="NAME", help="its namespace (default: the context's, as for kubectl)"
    )
    parser.add_argument(
        "--inputs",
        action="store_true",
        help="add the numbers that the decision is based on, as in spec.inputs of a plan",
    )
    parser.add_argument(
        "--kubeconfig", type=Path, metavar="FILE", help="(default: KUBECONFIG, ~/.kube/config, the pod's)"
    )
    return parser.parse_args(argv)
