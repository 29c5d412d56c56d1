"""An elastic group as a cluster has it, for a replay: its spec, what its manager measured, and its plans.

The file is what ``kubectl get eg NAME -o yaml`` prints, best with what it prints of the group's plans.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from pydantic import ValidationError

from pointsman.api.v1alpha1.elasticgroup import ElasticGroup
from pointsman.api.v1alpha1.plan import Plan
from pointsman.planner.core.types import Bounds
from pointsman.planner.errors import ReplayError
from pointsman.planner.group_status import latency_of
from pointsman.planner.replay.kubernetes_yaml import Unreadable, read_objects
from pointsman.serving.elastic.latency_model import LatencyModel

STEP_INPUTS: Final = ("stepSeconds", "stepSecondsPerRequest")
"""Of a plan: what a decode step takes, and what each request in it adds."""


@dataclass(frozen=True, slots=True)
class GroupFile:
    """A group. ``step``: seconds of a decode step, and of each request in it; None: no plan has them.

    ``slots``: tokens of KV of one instance; None: not known.
    """

    name: str
    replicas: int
    bounds: Bounds
    gpus: int
    max_degree: int
    min_degree: int
    slots: int | None
    latency: LatencyModel
    step: tuple[float, float] | None


def load_group(path: Path) -> GroupFile:
    """Read the one group of a file; objects other than it and its plans are passed over. Raises ReplayError."""
    try:
        objects = read_objects(path.read_bytes())
    except OSError as error:
        raise ReplayError(f"{path}: it cannot be read: {error.strerror or error}") from None
    except Unreadable as error:
        raise ReplayError(f"{path}: {error}") from None
    groups = [each for each in objects if each.get("kind") == "ElasticGroup"]
    if len(groups) != 1:
        raise ReplayError(f"{path}: it holds {len(groups)} elastic groups; one is needed")
    try:
        group = ElasticGroup.model_validate(groups[0])
        plans = [Plan.model_validate(each) for each in objects if each.get("kind") == "Plan"]
    except ValidationError as error:
        first = error.errors()[0]
        raise ReplayError(f"{path}: {'.'.join(map(str, first['loc']))}: {first['msg']}") from None
    spec, status = group.spec, group.status
    if not status.latency_model:
        raise ReplayError(
            f"{path}: status.latencyModel is empty: save the output of 'kubectl get eg {group.metadata.name} "
            "-o yaml' once the group has served"
        )
    joined = status.instances.joined if status.instances is not None else None
    slots = status.slots.total // joined if status.slots is not None and joined else spec.instance.kv_tokens
    return GroupFile(
        name=group.metadata.name,
        replicas=spec.instances.replicas,
        bounds=Bounds(spec.instances.min_replicas, spec.instances.max_replicas),
        gpus=spec.instance.gpus,
        max_degree=spec.max_degree,
        min_degree=spec.parallelism.min_degree,
        slots=slots,
        latency=latency_of(group),
        step=_step(group, plans),
    )


def _step(group: ElasticGroup, plans: Sequence[Plan]) -> tuple[float, float] | None:
    """From the newest plan of the group that has it."""
    of_group: list[dict[str, Any]] = [
        {entry.name: entry.value for entry in plan.spec.inputs}
        for plan in sorted(plans, key=lambda plan: plan.spec.sequence, reverse=True)
        if (plan.spec.service_ref.kind, plan.spec.service_ref.name) == (group.kind, group.metadata.name)
    ]
    fixed, each = STEP_INPUTS
    return next(
        ((float(found[fixed]), float(found[each])) for found in of_group if {*STEP_INPUTS} <= found.keys()), None
    )
