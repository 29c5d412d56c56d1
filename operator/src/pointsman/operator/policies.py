"""The status of PlannerPolicies, written when a policy or a service that follows it changes."""

import logging
from typing import Final

from pydantic import ValidationError

from pointsman.api.v1alpha1.elasticgroup import ElasticGroup
from pointsman.api.v1alpha1.llmservice import LLMService
from pointsman.api.v1alpha1.plannerpolicy import PlannerPolicy
from pointsman.kube.client import Kube
from pointsman.kube.errors import Conflict, NotFound
from pointsman.kube.mirror import Mirror
from pointsman.kube.resources import ELASTIC_GROUPS, LLM_SERVICES, PLANNER_POLICIES
from pointsman.operator.apply import Writer
from pointsman.operator.core.policies import Follower, policy_status
from pointsman.operator.core.unknown_fields import dropped_fields
from pointsman.operator.errors import NotLeading
from pointsman.process.clock import SYSTEM_CLOCK, Clock

log = logging.getLogger(__name__)

AGAIN_S: Final = 1.0

PolicyKey = tuple[str, str]
"""``(namespace, name)`` of a PlannerPolicy."""


class PolicyReports:
    """Called with a key by a work queue of its own."""

    def __init__(
        self, kube: Kube, policies: Mirror[PlannerPolicy], writer: Writer, clock: Clock = SYSTEM_CLOCK
    ) -> None:
        self._kube = kube
        self._policies = policies
        self._writer = writer
        self._clock = clock

    async def __call__(self, key: PolicyKey) -> float | None:
        """Look at the policy once; returns in how many seconds to look again, None for not before a change."""
        namespace, name = key
        policy = self._policies.get(name, namespace)
        if policy is None:
            return None
        meta = policy.metadata
        stored = (await self._kube.list(PLANNER_POLICIES, namespace, field_selector=f"metadata.name={name}")).items
        status = policy_status(
            policy.spec,
            await self._users(namespace, name),
            dropped=next((dropped_fields(PlannerPolicy, raw) for raw in stored), None),
            before=policy.status,
            generation=meta.generation,
            now=self._clock.now(),
        )
        if status == policy.status:
            return None
        try:
            await self._writer.status(PLANNER_POLICIES, name, namespace, status.manifest(), uid=meta.uid)
        except (Conflict, NotFound):
            return AGAIN_S  # another one has the name now: the mirror will say so
        except NotLeading:
            return None
        accepted = status.conditions[0]
        log.info(
            "policy status",
            extra={"policy": f"{namespace}/{name}", "reason": accepted.reason, "detail": accepted.message},
        )
        return None

    async def _users(self, namespace: str, name: str) -> dict[str, Follower]:
        """Who follows it, as they are now; one that is being deleted does no more."""
        found: dict[str, Follower] = {}
        for resource, model in ((LLM_SERVICES, LLMService), (ELASTIC_GROUPS, ElasticGroup)):
            try:
                listing = await self._kube.list(resource, namespace)
            except NotFound:
                continue  # a cluster whose CRDs are older
            for raw in listing.items:
                if (raw["spec"].get("policyRef") or {}).get("name") != name or raw["metadata"].get("deletionTimestamp"):
                    continue
                try:
                    found[raw["metadata"]["name"]] = model.model_validate(raw).spec
                except ValidationError:
                    continue  # its own reconcile says so
        return found
