"""Every limit of the gateway and of a worker can be moved on the LLMService, within what the process takes."""

import re
from pathlib import Path
from typing import Final

import pytest
import yaml
from annotated_types import Ge, Gt, Le
from pydantic.fields import FieldInfo

from pointsman.api.v1alpha1.gateway import Router
from pointsman.api.v1alpha1.limits import (
    GATEWAY_SETTINGS,
    WORKER_SETTINGS,
    GatewayLimits,
    WorkerLimits,
    gateway_limit,
)
from pointsman.api.v1alpha1.llmservice import LLMService
from pointsman.api.v1alpha1.multimodal import (
    MULTIMODAL_SETTINGS,
    MultimodalSpec,
    multimodal_environment,
    multimodal_limit,
)
from pointsman.gateway.core.router import RouterName
from pointsman.gateway.settings import Settings
from pointsman.workers.settings import WorkerSettings

DOCS: Final = Path(__file__).parents[3] / "docs"
PAGE: Final = (DOCS / "use" / "limits.md").read_text()
IMAGES_PAGE: Final = (DOCS / "use" / "multimodal.md").read_text()

NOT_ON_THE_SERVICE: Final = {
    # identity and addresses: the operator's
    "namespace", "service", "service_uid", "gateway", "bind_host", "port", "endpoints_file", "control_token",
    "nats_url", "nats_user", "nats_password", "nats_ca_certificate", "model_cache", "log_level", "log_format",
    "router",  # spec.gateway.router
    "router_seed",  # for tests
    "suspect_seconds",  # how fast a failed worker is tried again: no request is refused by it
    "metrics_port",  # a pod's own address, so no two meet on it
    "linger_seconds",  # the chart's gateway.lingerSeconds: it depends on the cluster's network, not on the service
    "shutdown_seconds",  # spec.drain.timeoutSeconds
    "trust_request_mm_kwargs",  # --trust-request-mm-kwargs in spec.engine.args and spec.encode.args
    *MULTIMODAL_SETTINGS.values(),  # spec.multimodal, below
}  # fmt: skip


FIELDS: Final[dict[str, tuple[FieldInfo, FieldInfo]]] = {
    f"spec.{where}.limits.{field}": (limits.model_fields[field], process.model_fields[setting])
    for where, limits, settings, process in (
        ("gateway", GatewayLimits, GATEWAY_SETTINGS, Settings),
        ("worker", WorkerLimits, WORKER_SETTINGS, WorkerSettings),
    )
    for field, setting in settings.items()
}


def bounds(field: FieldInfo) -> tuple[float, float]:
    """The least and the largest value; what must be above a number counts as that number."""
    found = [item.ge if isinstance(item, Ge) else item.gt for item in field.metadata if isinstance(item, Ge | Gt)]
    most = [item.le for item in field.metadata if isinstance(item, Le)]
    return float(str(found[0])), float(str(most[0])) if most else float("inf")


def test_every_setting_is_a_field_of_the_service_or_has_a_reason_not_to_be() -> None:
    assert set(Settings.model_fields) - NOT_ON_THE_SERVICE == set(GATEWAY_SETTINGS.values())
    assert not set(GATEWAY_SETTINGS.values()) & NOT_ON_THE_SERVICE
    assert set(GatewayLimits.model_fields) == set(GATEWAY_SETTINGS)
    assert set(WorkerLimits.model_fields) == set(WORKER_SETTINGS)
    assert {item.value for item in Router} == {item.value for item in RouterName}


@pytest.mark.parametrize("name", FIELDS)
def test_what_the_service_allows_the_process_takes(name: str) -> None:
    """Else the operator would render pods that end at once."""
    field, setting = FIELDS[name]
    (least, most), (lower, upper) = bounds(field), bounds(setting)
    assert lower <= least <= most <= upper


@pytest.mark.parametrize("name", FIELDS)
def test_a_field_states_the_default_of_the_process(name: str) -> None:
    field, setting = FIELDS[name]
    stated = re.search(r"Default: (\d+)\.$", field.description or "")
    assert stated is not None
    assert float(stated[1]) == setting.default


@pytest.mark.parametrize("name", FIELDS)
def test_the_page_of_limits_has_each_field_with_its_default(name: str) -> None:
    field, setting = FIELDS[name]
    assert f"| `{field.alias}` | {int(setting.default)} |" in PAGE


def test_a_setting_is_named_by_its_field() -> None:
    assert gateway_limit("max_body_mib") == "spec.gateway.limits.maxBodyMiB"
    assert gateway_limit("max_held") == "spec.gateway.limits.maxQueuedRequests"
    with pytest.raises(KeyError, match="router_seed"):
        gateway_limit("router_seed")


@pytest.mark.parametrize("name", MULTIMODAL_SETTINGS)
def test_a_limit_of_images_has_the_default_and_the_bounds_of_the_service(name: str) -> None:
    field, setting = MultimodalSpec.model_fields[name], Settings.model_fields[MULTIMODAL_SETTINGS[name]]
    assert field.default == setting.default
    if name != "allowed_domains":
        (least, most), (lower, upper) = bounds(field), bounds(setting)
        assert lower <= least <= most <= upper
    assert multimodal_limit(MULTIMODAL_SETTINGS[name]) == f"spec.multimodal.{field.alias}"
    assert f"`{field.alias}`" in IMAGES_PAGE


def test_what_the_operator_renders_the_gateway_reads(monkeypatch: pytest.MonkeyPatch) -> None:
    spec = MultimodalSpec(allowedDomains=("a.example.com", "b.example.com"), maxImages=3, bypassBelowTokens=0)
    for name, value in (multimodal_environment(spec) | {"POINTSMAN_SERVICE": "chat"}).items():
        monkeypatch.setenv(name, value)
    settings = Settings(_cli_parse_args=[])
    assert settings.image_allowed_domains == ("a.example.com", "b.example.com")
    assert (settings.max_images, settings.encode_bypass_below_tokens, settings.encode_cache_mib) == (3, 0, 512)


def test_the_example_of_the_page_of_images_is_a_service_with_the_defaults() -> None:
    example = re.search(r"```yaml\n(.*?)```", IMAGES_PAGE, re.S)
    assert example is not None
    service = LLMService.model_validate(yaml.safe_load(example[1]))
    assert service.spec.multimodal == MultimodalSpec()
