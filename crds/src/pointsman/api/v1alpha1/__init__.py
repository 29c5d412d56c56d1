"""The custom resources of ``pointsman.dev/v1alpha1`` as models: one module a kind.

``INSTALLED`` are the kinds that something acts on; only those become CRDs.
"""

from pointsman.api.v1alpha1.conditions import Condition, ConditionStatus, ConditionType, Reason, with_condition
from pointsman.api.v1alpha1.counts import PoolCounts
from pointsman.api.v1alpha1.elasticgroup import ElasticGroup, ElasticGroupSpec, ElasticGroupStatus
from pointsman.api.v1alpha1.engine_flags import ENGINE_CONTAINER, OWNED_FLAGS, owned_flag
from pointsman.api.v1alpha1.gateway import GatewayServiceSpec, GatewaySpec, GatewayTemplate, Router
from pointsman.api.v1alpha1.llmservice import (
    CPU_BLOCK_SIZE_MULTIPLE,
    MAX_REPLICAS,
    DrainSpec,
    EncodePoolSpec,
    EncodeSpec,
    EngineSpec,
    EngineType,
    LLMService,
    LLMServiceSpec,
    LLMServiceStatus,
    ModelSpec,
    PoolSpec,
    PoolsSpec,
    PoolsStatus,
    Routing,
    TokenSecretReference,
    WorkerSpec,
)
from pointsman.api.v1alpha1.model_source import (
    ClaimModel,
    HubModel,
    ModelSource,
    ModelSourceError,
    PathModel,
    parse_model_source,
)
from pointsman.api.v1alpha1.multimodal import MultimodalSpec
from pointsman.api.v1alpha1.plan import Plan, PlanPhase, PlanReason, PlanSpec, PlanStatus
from pointsman.api.v1alpha1.plannerpolicy import PlannerPolicy, PlannerPolicySpec
from pointsman.api.v1alpha1.pods import PodTemplate
from pointsman.api.v1alpha1.resource import (
    CATEGORY,
    MAX_SERVICE_NAME_LENGTH,
    ApiModel,
    Kind,
    LocalReference,
    ObjectMeta,
    Resource,
)
from pointsman.api.v1alpha1.roleswitch import (
    RoleSwitch,
    RoleSwitchSpec,
    RoleSwitchStatus,
    SwitchPhase,
    SwitchReason,
    SwitchWay,
)
from pointsman.api.v1alpha1.strict import StrictError, parse_strictly
from pointsman.api.v1alpha1.workerpool import ServiceReference, WorkerPool, WorkerPoolSpec, WorkerPoolStatus

INSTALLED: tuple[type[Resource], ...] = (LLMService, WorkerPool, RoleSwitch, PlannerPolicy, Plan, ElasticGroup)

__all__ = [
    "CATEGORY",
    "CPU_BLOCK_SIZE_MULTIPLE",
    "ENGINE_CONTAINER",
    "INSTALLED",
    "MAX_REPLICAS",
    "MAX_SERVICE_NAME_LENGTH",
    "OWNED_FLAGS",
    "ApiModel",
    "ClaimModel",
    "Condition",
    "ConditionStatus",
    "ConditionType",
    "DrainSpec",
    "ElasticGroup",
    "ElasticGroupSpec",
    "ElasticGroupStatus",
    "EncodePoolSpec",
    "EncodeSpec",
    "EngineSpec",
    "EngineType",
    "GatewayServiceSpec",
    "GatewaySpec",
    "GatewayTemplate",
    "HubModel",
    "Kind",
    "LLMService",
    "LLMServiceSpec",
    "LLMServiceStatus",
    "LocalReference",
    "ModelSource",
    "ModelSourceError",
    "ModelSpec",
    "MultimodalSpec",
    "ObjectMeta",
    "PathModel",
    "Plan",
    "PlanPhase",
    "PlanReason",
    "PlanSpec",
    "PlanStatus",
    "PlannerPolicy",
    "PlannerPolicySpec",
    "PodTemplate",
    "PoolCounts",
    "PoolSpec",
    "PoolsSpec",
    "PoolsStatus",
    "Reason",
    "Resource",
    "RoleSwitch",
    "RoleSwitchSpec",
    "RoleSwitchStatus",
    "Router",
    "Routing",
    "ServiceReference",
    "StrictError",
    "SwitchPhase",
    "SwitchReason",
    "SwitchWay",
    "TokenSecretReference",
    "WorkerPool",
    "WorkerPoolSpec",
    "WorkerPoolStatus",
    "WorkerSpec",
    "owned_flag",
    "parse_model_source",
    "parse_strictly",
    "with_condition",
]
