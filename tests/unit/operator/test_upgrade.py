"""An upgrade from an earlier commit restarts no worker, and a rollback finds what it wrote.

``rendered_055ea15.json`` is what that version rendered for three services, and what it stored of their specs.
``rendered_ec6a7b8.json`` is the same of the last version without encode workers, with pools and budgets for four.
"""

import copy
import json
from pathlib import Path
from typing import Any, Final

import pytest

from pointsman.api.protocol.names import ROUTABLE_CONDITION, Role
from pointsman.api.v1alpha1.limits import GATEWAY_SETTINGS, WORKER_SETTINGS, GatewayLimits, WorkerLimits
from pointsman.api.v1alpha1.llmservice import LLMServiceSpec
from pointsman.operator.core.adapters.vllm import VllmAdapter
from pointsman.operator.core.children import disruption_budget, worker_pool
from pointsman.operator.core.gateway import gateway_objects
from pointsman.operator.core.install import Install
from pointsman.operator.core.revision import kv_compatibility, revision
from unit.operator.world import service, spec

INSTALL: Final = Install(worker_image="worker:1", gateway_image="gateway:1", nats_url="nats://nats:4222")
FOLDER: Final = Path(__file__).parent
BEFORE: Final[dict[str, Any]] = json.loads((FOLDER / "rendered_055ea15.json").read_text())
WITHOUT_ENCODE: Final[dict[str, Any]] = json.loads((FOLDER / "rendered_ec6a7b8.json").read_text())


def _pod(wanted: LLMServiceSpec) -> dict[str, Any]:
    return VllmAdapter().pod(service(wanted), INSTALL, "chat-r-0", Role.DECODE)


def _container_env(pod_spec: dict[str, Any]) -> dict[str, Any]:
    return {item["name"]: item.get("value") for item in pod_spec["containers"][0]["env"]}


def _deployment(wanted: LLMServiceSpec) -> dict[str, Any]:
    return next(item for item in gateway_objects(service(wanted), INSTALL) if item["kind"] == "Deployment")


def _compatibility(wanted: LLMServiceSpec) -> str:
    return kv_compatibility(VllmAdapter().kv_inputs(wanted, INSTALL))


def _without_additions(pod: dict[str, Any]) -> dict[str, Any]:
    """A new pod without what earlier versions did not render: readiness gate, requests, a bound of shared memory.

    Nothing compares a pod that runs with what would be rendered now, so these are in new pods only.
    """
    pod = copy.deepcopy(pod)
    assert pod["spec"].pop("readinessGates") == [{"conditionType": ROUTABLE_CONDITION}]
    engine = pod["spec"]["containers"][0]
    assert engine["resources"].pop("requests").keys() <= {"cpu", "memory"}
    if not engine["resources"]:
        del engine["resources"]
    shm = next(volume for volume in pod["spec"]["volumes"] if volume["name"] == "shm")
    del shm["emptyDir"]["sizeLimit"]
    return pod


@pytest.mark.parametrize("name", BEFORE)
def test_a_worker_pod_is_rendered_as_before_so_no_worker_is_outdated(name: str) -> None:
    before, wanted = BEFORE[name], LLMServiceSpec.model_validate(BEFORE[name]["spec"])
    assert _without_additions(_pod(wanted)) == before["pod"]
    assert revision(wanted) == before["revision"]
    assert _compatibility(wanted) == before["kvCompatibility"]


@pytest.mark.parametrize("name", BEFORE)
def test_what_was_stored_means_what_was_written(name: str) -> None:
    """But for the gateways: their default was one, and a stored one stays."""
    stored = LLMServiceSpec.model_validate(BEFORE[name]["stored"])
    written = LLMServiceSpec.model_validate(BEFORE[name]["spec"])
    gateway = written.gateway.model_copy(update={"replicas": written.gateway.replicas or 1})
    assert stored == written.model_copy(update={"gateway": gateway})
    assert stored.manifest() == BEFORE[name]["stored"]


@pytest.mark.parametrize("name", BEFORE)
def test_the_gateways_objects_can_be_updated_in_place(name: str) -> None:
    """A Deployment's selector cannot be changed, and a Service's address must stay; the Deployment's pods may roll."""
    stored = LLMServiceSpec.model_validate(BEFORE[name]["stored"])
    after = {item["kind"]: item for item in gateway_objects(service(stored), INSTALL)}
    before = {item["kind"]: item for item in BEFORE[name]["gateway"]}
    assert after.keys() == before.keys() | {"Role", "PodDisruptionBudget"}
    for kind in ("ServiceAccount", "Service"):
        assert after[kind] == before[kind]
    # the role of a binding cannot be changed, so there is another one
    assert after["RoleBinding"]["metadata"]["name"] != before["RoleBinding"]["metadata"]["name"]
    assert after["Deployment"]["metadata"]["name"] == before["Deployment"]["metadata"]["name"]
    for field in ("selector", "replicas", "strategy"):
        assert after["Deployment"]["spec"][field] == before["Deployment"]["spec"][field]


@pytest.mark.parametrize("name", WITHOUT_ENCODE)
def test_a_service_without_encode_workers_is_rendered_as_before_there_were_any(name: str) -> None:
    """To the byte, the gateway's pods included: nothing is restarted and nothing is scaled."""
    before, wanted = WITHOUT_ENCODE[name], LLMServiceSpec.model_validate(WITHOUT_ENCODE[name]["stored"])
    assert wanted.manifest() == before["stored"]
    assert _without_additions(_pod(wanted)) == before["pod"]
    assert revision(wanted) == before["revision"]
    assert _compatibility(wanted) == before["kvCompatibility"]
    earlier = next(item for item in before["gateway"] if item["kind"] == "Deployment")
    assert _deployment(wanted)["spec"] == earlier["spec"]
    assert [worker_pool(service(wanted), role) for role in wanted.roles] == before["pools"]
    assert [disruption_budget(service(wanted), role, 2) for role in wanted.roles] == before["budgets"]


def test_limits_and_router_reach_the_gateways_environment_and_nothing_else() -> None:
    bounds = dict.fromkeys(GATEWAY_SETTINGS, 7) | {"max_header_kib": 9}
    limits = GatewayLimits(**bounds).manifest()
    assert limits["maxBodyMiB"] == 7
    wanted = spec(gateway={"router": "least-loaded", "limits": limits})
    before, after = (_container_env(_deployment(item)["spec"]["template"]["spec"]) for item in (spec(), wanted))
    added = {name: value for name, value in after.items() if name not in before}
    assert before.items() <= after.items()
    assert added == {"POINTSMAN_ROUTER": "least-loaded"} | {
        f"POINTSMAN_{setting.upper()}": str(bounds[field]) for field, setting in GATEWAY_SETTINGS.items()
    }
    assert _pod(wanted) == _pod(spec())


def test_one_limit_renders_one_variable() -> None:
    wanted = spec(gateway={"limits": {"maxBodyMiB": 64}})
    before, after = (_container_env(_deployment(item)["spec"]["template"]["spec"]) for item in (spec(), wanted))
    assert {name: value for name, value in after.items() if name not in before} == {"POINTSMAN_MAX_BODY_MIB": "64"}


def test_limits_of_workers_reach_their_environment_and_make_another_revision() -> None:
    bounds = dict.fromkeys(WORKER_SETTINGS, 60)
    wanted = spec(worker={"gpus": 0, "limits": WorkerLimits(**bounds).manifest()})
    before, after = (_container_env(_pod(item)["spec"]) for item in (spec(), wanted))
    assert {name: value for name, value in after.items() if name not in before} == {
        f"POINTSMAN_{setting.upper()}": "60" for setting in WORKER_SETTINGS.values()
    }
    assert revision(wanted) != revision(spec())
    assert revision(spec(worker={"gpus": 0, "limits": {}})) == revision(spec())


def test_workers_with_another_lease_exchange_no_kv() -> None:
    def with_limits(**limits: int) -> str:
        return _compatibility(spec(worker={"gpus": 0, "limits": limits}))

    assert with_limits(leaseSeconds=60) != with_limits(leaseSeconds=61) != _compatibility(spec())
    assert with_limits(maxConcurrentPrefills=2) == _compatibility(spec())
