"""``spec.gateway`` of services and elastic groups: the gateway's pods, and the Service in front of them."""

from enum import StrEnum
from typing import Annotated, Any, Final, Literal

from pydantic import ConfigDict, Field

from pointsman.api.schema.rules import LIST_BY_NAME, Rule, cel_string, extra
from pointsman.api.v1alpha1.limits import GatewayLimits
from pointsman.api.v1alpha1.pods import (
    DERIVED_GRACE_PERIOD,
    MAX_CONTAINERS,
    MAX_ENVIRONMENT,
    PassedThrough,
    TemplateEnvironment,
    TemplateMetadata,
    no_service_links,
    own_keys_only,
    owned_environment,
)
from pointsman.api.v1alpha1.resource import ApiModel

DEFAULT_GATEWAYS: Final = 2
GATEWAY_CONTAINER: Final = "gateway"
OWNED_GATEWAY_ENVIRONMENT_PATTERN: Final = "^(POINTSMAN_.*|POD_IP)$"

_CIDR_PATTERN: Final = "^[0-9A-Fa-f:.]+/[0-9]{1,3}$"
_GATEWAY = cel_string(GATEWAY_CONTAINER)
_OWNED_NAME = f"e.name.matches({cel_string(OWNED_GATEWAY_ENVIRONMENT_PATTERN)})"


def _needs_load_balancer(field: str) -> Rule:
    return Rule(
        f"!has(self.{field}) || self.type == 'LoadBalancer'",
        f"{field} is for type LoadBalancer, and type is {{self.type}}; leave it out",
        field_path=f".{field}",
    )


class GatewayServiceSpec(ApiModel):
    """The Service in front of the gateway.

    The gateway does not authenticate clients. Do not give it a public address without an authenticating proxy.
    """

    type: Literal["ClusterIP", "NodePort", "LoadBalancer"] = Field(
        default="ClusterIP", description="Type of the gateway's Service."
    )
    port: int = Field(default=8000, ge=1, le=65535, description="Port of the gateway's Service.")
    annotations: dict[str, Annotated[str, Field(max_length=4096)]] | None = Field(
        default=None,
        max_length=64,
        description="Annotations of the gateway's Service, e.g. to request an internal load balancer.",
    )
    load_balancer_class: str | None = Field(
        default=None,
        min_length=1,
        max_length=253,
        description="Load balancer implementation. Only for type LoadBalancer.",
    )
    load_balancer_source_ranges: tuple[Annotated[str, Field(max_length=64, pattern=_CIDR_PATTERN)], ...] | None = Field(
        default=None,
        max_length=64,
        description="Client addresses (CIDRs) that the load balancer accepts. Only for type LoadBalancer. Unset: all.",
    )
    external_traffic_policy: Literal["Cluster", "Local"] | None = Field(
        default=None,
        description="Local keeps the client's address and uses only gateways on the node that a request reaches.",
    )
    ip_family_policy: Literal["SingleStack", "PreferDualStack", "RequireDualStack"] | None = Field(
        default=None, description="IP families of the gateway's Service. Unset: the cluster's default."
    )

    model_config = ConfigDict(
        json_schema_extra=extra(
            _needs_load_balancer("loadBalancerClass"),
            _needs_load_balancer("loadBalancerSourceRanges"),
            Rule(
                "!has(self.externalTrafficPolicy) || self.type != 'ClusterIP'",
                "externalTrafficPolicy is for types NodePort and LoadBalancer, and type is ClusterIP; leave it out",
                field_path=".externalTrafficPolicy",
            ),
            own_keys_only("annotations"),
        )
    )


class Router(StrEnum):
    """How the gateway chooses a decode worker."""

    TOKEN_LOAD = "token-load"
    OVERLAP_RATIO = "overlap-ratio"
    LEAST_LOADED = "least-loaded"
    ROUND_ROBIN = "round-robin"


_ROUTERS = "', '".join(Router)


def _set_by_pointsman(field: str, instead: str) -> Rule:
    return Rule(
        f"self.name != {_GATEWAY} || !has(self.{field})",
        f"{field} of container 'gateway' is set by Pointsman; {instead}",
        field_path=f".{field}",
    )


class GatewayTemplateContainer(PassedThrough):
    """One container. The container named gateway runs the gateway; others are sidecars."""

    name: str = Field(min_length=1, max_length=63)
    image: str | None = Field(default=None, max_length=512)
    env: tuple[TemplateEnvironment, ...] | None = Field(
        default=None,
        max_length=MAX_ENVIRONMENT,
        json_schema_extra=extra(schema=LIST_BY_NAME),
    )

    model_config = ConfigDict(
        json_schema_extra=extra(
            _set_by_pointsman("image", "leave it out, or set images.gateway of the chart"),
            owned_environment(
                GATEWAY_CONTAINER,
                _OWNED_NAME,
                "leave it out (limits and router have fields of their own in spec.gateway)",
            ),
        )
    )


class GatewayTemplateSpec(PassedThrough):
    """The pod's spec."""

    containers: tuple[GatewayTemplateContainer, ...] | None = Field(
        default=None,
        max_length=MAX_CONTAINERS,
        description="Containers, merged by name. The container named gateway runs the gateway; others are sidecars.",
        json_schema_extra=extra(schema=LIST_BY_NAME),
    )
    service_account_name: str | None = Field(default=None, max_length=253)
    enable_service_links: bool | None = None
    termination_grace_period_seconds: int | None = None

    model_config = ConfigDict(
        json_schema_extra=extra(
            Rule(
                "!has(self.serviceAccountName)",
                "serviceAccountName is {self.serviceAccountName}: the gateway has a ServiceAccount of its own with the "
                "rights that it needs; leave it out",
                field_path=".serviceAccountName",
            ),
            no_service_links("pointsman", "POINTSMAN_PORT", "gateway"),
            DERIVED_GRACE_PERIOD,
        )
    )


class GatewayTemplate(PassedThrough):
    """A pod template, merged into the gateway's pods as ``kubectl patch --type strategic`` would."""

    metadata: TemplateMetadata | None = Field(default=None, description="Labels and annotations of the gateway pods.")
    spec: GatewayTemplateSpec | None = Field(
        default=None, description="Fields of the gateway pods' spec, e.g. nodeSelector, tolerations, resources."
    )


class GatewaySpec(ApiModel):
    """The gateway: OpenAI API and router of this service."""

    replicas: int | None = Field(
        default=None,
        ge=1,
        le=100,
        description=f"Gateway pods. Unset: {DEFAULT_GATEWAYS}, of which one is enough if the cluster has no room. "
        "A number set by kubectl scale or an autoscaler stays until this field is changed.",
    )
    service: GatewayServiceSpec = Field(default=GatewayServiceSpec(), description="The Service in front of them.")
    template: GatewayTemplate | None = Field(
        default=None,
        description="A pod template merged into the gateway's pods, lists by their merge keys. "
        "The gateway's container is named gateway. A change replaces the gateway pods.",
    )
    router: Router | None = Field(
        default=None,
        description=(
            "Choice of the decode worker: token-load (uncached prompt tokens and contexts), overlap-ratio "
            "(cached share, KV usage, queue), least-loaded (requests in flight) or round-robin. Default: "
            "token-load."
        ),
        json_schema_extra=extra(
            Rule(
                f"self in ['{_ROUTERS}']",
                "'{self}' is not a router; use one of " + ", ".join(Router),
            ),
            schema={"enum": None, "maxLength": 32},
        ),
    )
    limits: GatewayLimits | None = Field(
        default=None,
        description="Limits of each gateway pod. A change replaces the gateway pods.",
    )

    @property
    def desired_replicas(self) -> int:
        """Gateway pods, written or not."""
        return DEFAULT_GATEWAYS if self.replicas is None else self.replicas

    def template_dict(self) -> dict[str, Any]:
        """The template with exactly the fields the user wrote; empty without one."""
        return self.template.as_written() if self.template else {}
