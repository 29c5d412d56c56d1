"""What the operator makes: worker pods, gateway, Secret, as manifests."""

import copy
import importlib.util
from dataclasses import replace
from typing import Any

import pytest

from pointsman.api.protocol import names
from pointsman.api.protocol.names import Role
from pointsman.api.v1alpha1.conditions import Reason
from pointsman.api.v1alpha1.llmservice import LLMServiceSpec
from pointsman.operator.core.adapters import adapter_for
from pointsman.operator.core.adapters.vllm import VllmAdapter
from pointsman.operator.core.children import disruption_budget, is_current, service_secret, stamped
from pointsman.operator.core.gateway import endpoint, gateway_objects
from pointsman.operator.core.install import Install
from pointsman.operator.core.nats_logins import Login
from pointsman.operator.core.revision import kv_compatibility, revision
from pointsman.operator.core.strategic_merge import strategic_merge
from pointsman.operator.core.worker_pod import uncounted_gpus
from pointsman.operator.errors import NotMergeable, Refused
from unit.operator.world import service, spec

INSTALL = Install(worker_image="worker:1", gateway_image="gateway:1", nats_url="nats://nats:4222")


def _pod(wanted: LLMServiceSpec | None = None, install: Install = INSTALL, role: Role = Role.DECODE) -> dict[str, Any]:
    return VllmAdapter().pod(service(wanted), install, "chat-r-0", role)


def _engine(pod: dict[str, Any]) -> dict[str, Any]:
    found: dict[str, Any] = next(item for item in pod["spec"]["containers"] if item["name"] == "engine")
    return found


def _env(pod: dict[str, Any]) -> dict[str, Any]:
    return {item["name"]: item.get("value", item.get("valueFrom")) for item in _engine(pod)["env"]}


def test_pods_of_all_roles_are_alike_but_for_the_role_label() -> None:
    prefill, decode = _pod(role=Role.PREFILL), _pod(role=Role.DECODE)
    assert prefill["spec"] == decode["spec"]
    different = {
        key
        for key in decode["metadata"]["labels"]
        if decode["metadata"]["labels"][key] != prefill["metadata"]["labels"][key]
    }
    assert different == {names.ROLE_LABEL, names.LLMD_ROLE_LABEL}


def test_a_worker_starts_unroutable_and_never_with_a_role_in_its_environment() -> None:
    pod = _pod()
    assert pod["metadata"]["labels"][names.ROUTABLE_LABEL] == "false"
    assert not any("ROLE" in name for name in _env(pod))


def test_a_worker_gets_no_token_of_the_api_server() -> None:
    assert _pod(spec())["spec"]["automountServiceAccountToken"] is False
    assert "serviceAccountName" not in _pod(spec())["spec"]


def test_a_worker_gets_its_environment_from_protocol_and_secret() -> None:
    env = _env(_pod())
    assert env[names.ENV_MODEL] == "/models/tiny"
    assert env[names.ENV_SERVED_NAME] == "chat"
    assert env[names.ENV_BLOCK_SIZE] == "128"
    assert env[names.ENV_SERVICE_UID] == "u-chat"
    assert env[names.ENV_POD_IP] == {"fieldRef": {"fieldPath": "status.podIP"}}
    for name, key in (
        (names.ENV_CONTROL_TOKEN, names.SECRET_CONTROL_TOKEN),
        (names.ENV_NATS_PASSWORD, names.SECRET_NATS_PASSWORD),
    ):
        assert env[name] == {"secretKeyRef": {"name": "chat-pointsman", "key": key}}


def test_the_grace_period_outlasts_the_drain() -> None:
    for seconds in (0, 120, 3600):
        assert _pod(spec(drain_s=seconds))["spec"]["terminationGracePeriodSeconds"] > seconds


def test_whoever_deletes_a_worker_it_drains_before_its_sigterm() -> None:
    hook = _engine(_pod())["lifecycle"]["preStop"]["exec"]["command"]
    assert hook == ["python", "-m", "pointsman.workers.drain"]
    assert importlib.util.find_spec(hook[2]) is not None


def test_the_pod_address_comes_before_what_refers_to_it() -> None:
    order = [item["name"] for item in _engine(_pod(install=replace(INSTALL, pod_bind_host="$(POD_IP)")))["env"]]
    assert order.index(names.ENV_POD_IP) < order.index(names.ENV_BIND_HOST)


@pytest.mark.parametrize(
    ("source", "model", "volume"),
    [
        ("file:///models/tiny", "/models/tiny", {"hostPath": {"path": "/models/tiny", "type": "Directory"}}),
        ("pvc://w/llama/8b", "/models/llama/8b", {"persistentVolumeClaim": {"claimName": "w", "readOnly": True}}),
        ("hf://meta/llama", "meta/llama", {"emptyDir": {}}),
    ],
)
def test_each_model_source_has_its_volume(source: str, model: str, volume: dict[str, Any]) -> None:
    pod = _pod(spec(model={"source": source}))
    assert _env(pod)[names.ENV_MODEL] == model
    assert {"name": "model", **volume} in pod["spec"]["volumes"]
    assert "model" in {mount["name"] for mount in _engine(pod)["volumeMounts"]}


def test_a_hub_token_is_taken_from_the_users_secret() -> None:
    reference = {"name": "hf", "key": "access"}
    pod = _pod(spec(model={"source": "hf://meta/llama", "tokenSecretRef": reference}))
    assert _env(pod)["HF_TOKEN"] == {"secretKeyRef": reference}


def test_the_revision_of_a_hub_model_reaches_the_worker_and_is_named_once() -> None:
    source = {"source": "hf://meta/llama@v1.2"}
    pod = _pod(spec(model=source))
    assert (_env(pod)[names.ENV_MODEL], _env(pod)[names.ENV_MODEL_REVISION]) == ("meta/llama", "v1.2")
    assert names.ENV_MODEL_REVISION not in _env(_pod(spec(model={"source": "hf://meta/llama"})))
    twice = spec(model=source, engine={"args": ["--revision=main"]})
    with pytest.raises(Refused, match=r"--revision .* names v1\.2"):
        adapter_for(twice).check(twice)


def test_gpus_are_asked_for() -> None:
    pod = _pod(spec(worker={"gpus": 2}))
    assert _engine(pod)["resources"]["limits"] == {"nvidia.com/gpu": 2}
    assert _env(pod)[names.ENV_BLOCK_SIZE] == "16"


def _with_resources(gpus: int, of_engine: dict[str, Any], **of_pod: Any) -> dict[str, Any]:
    template = {"spec": {"containers": [{"name": "engine", "resources": of_engine}], **of_pod}}
    found: dict[str, Any] = _engine(_pod(spec(worker={"gpus": gpus, "template": template})))["resources"]
    return found


def test_a_worker_asks_for_cpu_and_memory_so_that_it_is_not_the_first_to_be_evicted() -> None:
    assert _engine(_pod(spec(worker={"gpus": 2})))["resources"]["requests"] == {"cpu": "500m", "memory": "8Gi"}
    assert _engine(_pod(spec(worker={"gpus": 0})))["resources"]["requests"] == {"cpu": "100m", "memory": "1Gi"}


def test_what_the_template_says_of_a_resource_is_all_that_is_said_of_it() -> None:
    """A request of ours above a limit of the user's would be refused by the API server."""
    assert _with_resources(1, {"limits": {"memory": "2Gi"}})["requests"] == {"cpu": "500m"}
    assert _with_resources(1, {"requests": {"cpu": "8"}})["requests"] == {"cpu": "8", "memory": "4Gi"}
    assert "requests" not in _with_resources(0, {"limits": {"memory": "2Gi", "cpu": 0.5}})
    assert _with_resources(1, {}, resources={"limits": {"memory": "2Gi"}})["requests"] == {"cpu": "500m"}


@pytest.mark.parametrize(("written", "seconds"), [({}, 1800), ({"startupTimeoutSeconds": 14_400}, 14_400)])
def test_an_engine_may_load_as_long_as_the_user_says(written: dict[str, int], seconds: int) -> None:
    probe = _engine(_pod(spec(worker={"gpus": 0, **written})))["startupProbe"]
    assert probe["periodSeconds"] * probe["failureThreshold"] == seconds


def test_how_long_an_engine_may_load_and_a_node_may_be_silent_makes_no_worker_outdated() -> None:
    bounds = {"startupTimeoutSeconds": 60, "lostNodeSeconds": 30}
    assert revision(spec(worker={"gpus": 0, **bounds})) == revision(spec(worker={"gpus": 0}))


def test_a_pod_is_deleted_from_a_lost_node_after_what_the_user_says() -> None:
    assert "tolerations" not in _pod()["spec"]
    mine = {"key": "gpu", "operator": "Exists"}
    wanted = spec(worker={"gpus": 0, "lostNodeSeconds": 30, "template": {"spec": {"tolerations": [mine]}}})
    tolerations = _pod(wanted)["spec"]["tolerations"]
    assert tolerations[2:] == [mine]
    assert {(each["key"], each["effect"], each["tolerationSeconds"]) for each in tolerations[:2]} == {
        ("node.kubernetes.io/not-ready", "NoExecute", 30),
        ("node.kubernetes.io/unreachable", "NoExecute", 30),
    }


def test_a_worker_is_ready_only_while_it_is_routable_whatever_the_template_asks_for() -> None:
    gate = {"conditionType": names.ROUTABLE_CONDITION}
    assert _pod()["spec"]["readinessGates"] == [gate]
    mine = {"conditionType": "example.com/warm"}
    template = {"spec": {"readinessGates": [mine]}}
    assert _pod(spec(worker={"gpus": 0, "template": template}))["spec"]["readinessGates"] == [mine, gate]


@pytest.mark.parametrize(
    ("containers", "words"),
    [
        ([{"name": "engine", "resources": {"limits": {"nvidia.com/gpu": 8}}}], "8 for container engine"),
        ([{"name": "beside", "resources": {"requests": {"nvidia.com/gpu": "1"}}}], "1 for container beside"),
        ([{"name": "engine", "resources": {"limits": {"nvidia.com/gpu": "1"}, "claims": [{"name": "x"}]}}], None),
        ([{"name": "engine", "resources": {"limits": {"memory": "4Gi"}}}], None),
        ([], None),
    ],
)
def test_gpus_of_a_template_that_budgets_do_not_count_are_named(
    containers: list[dict[str, Any]], words: str | None
) -> None:
    found = uncounted_gpus({"spec": {"containers": containers}}, 1, "worker")
    assert (found is None) if words is None else (found is not None and words in found and "spec.worker.gpus" in found)


@pytest.mark.parametrize("gpus", [0, 1, 8])
def test_a_worker_has_a_writable_place_for_all_it_writes(gpus: int) -> None:
    pod = _pod(spec(model={"source": "hf://meta/llama"}, worker={"gpus": gpus}))
    assert _engine(pod)["securityContext"]["readOnlyRootFilesystem"] is True
    volumes = {volume["name"]: volume for volume in pod["spec"]["volumes"]}
    writable = {mount["mountPath"]: volumes[mount["name"]] for mount in _engine(pod)["volumeMounts"]}
    assert _env(pod)["HOME"] == "/tmp"
    assert _env(pod)["USER"], "getpass.getuser() knows no user by this number"
    assert writable["/tmp"]["emptyDir"] == {}
    assert writable["/dev/shm"]["emptyDir"] == {"medium": "Memory", "sizeLimit": "16Gi"}
    assert writable[_env(pod)["HF_HOME"]]["emptyDir"] == {}


def test_the_users_template_is_merged_by_name_and_its_labels_do_not_reach_ours() -> None:
    template = {
        "metadata": {"labels": {"team": "a"}},
        "spec": {
            "nodeSelector": {"disk": "fast"},
            "containers": [
                {"name": "engine", "env": [{"name": "X", "value": "1"}], "resources": {"limits": {"memory": "4Gi"}}},
                {"name": "beside", "image": "b"},
            ],
        },
    }
    pod = _pod(spec(worker={"gpus": 1, "template": template}))
    assert pod["metadata"]["labels"]["team"] == "a"
    assert pod["spec"]["nodeSelector"] == {"disk": "fast"}
    assert [item["name"] for item in pod["spec"]["containers"]] == ["engine", "beside"]
    assert _engine(pod)["resources"]["limits"] == {"memory": "4Gi", "nvidia.com/gpu": 1}
    assert _env(pod)["X"] == "1"
    assert names.ENV_MODEL in _env(pod)


@pytest.mark.parametrize(
    ("template", "field"),
    [
        ({"spec": {"containers": [{"name": "engine", "command": ["sh"]}]}}, "command"),
        ({"spec": {"containers": [{"name": "engine", "ports": []}]}}, "ports"),
        ({"spec": {"containers": [{"name": "engine", "env": [{"name": "POINTSMAN_MODEL"}]}]}}, "POINTSMAN_MODEL"),
        ({"spec": {"restartPolicy": "Never"}}, "restartPolicy"),
        ({"metadata": {"labels": {"pointsman.dev/role": "decode"}}}, "pointsman.dev/role"),
    ],
)
def test_a_template_that_takes_what_is_ours_is_refused_by_name(template: dict[str, Any], field: str) -> None:
    wanted = spec(worker={"gpus": 0, "template": template})
    with pytest.raises(Refused, match=field) as refusal:
        adapter_for(wanted).check(wanted)
    assert refusal.value.reason is Reason.TEMPLATE_REFUSED


@pytest.mark.parametrize("argument", ["--port=1", "--kv_transfer_config", "--served-model-name=x"])
def test_an_owned_flag_is_refused_in_every_spelling(argument: str) -> None:
    wanted = spec(engine={"args": [argument]})
    with pytest.raises(Refused, match="is set by Pointsman"):
        adapter_for(wanted).check(wanted)


def test_a_block_size_a_cpu_engine_cannot_have_is_refused_with_what_would_be_right() -> None:
    wanted = spec(engine={"blockSize": 48})
    with pytest.raises(Refused, match=r"48.*multiples of 32"):
        adapter_for(wanted).check(wanted)


def test_the_revision_is_of_what_makes_a_worker_different_only() -> None:
    same = revision(spec())
    assert revision(spec(prefill=(3, 1, 4), decode=(2, 1, 9), drain_s=7)) == same
    assert revision(spec(gateway={"replicas": 3}, paused=True)) == same
    assert revision(spec(worker={"gpus": 0, "template": {"metadata": {"labels": {"a": "b"}}}})) == same
    assert revision(spec(engine={"args": ["--max-model-len=512"]})) != same
    assert revision(spec(worker={"gpus": 0, "template": {"spec": {"nodeSelector": {"a": "b"}}}})) != same


def test_kv_is_compatible_only_where_engine_model_block_size_and_kv_flags_are_equal() -> None:
    def of(wanted: LLMServiceSpec, install: Install = INSTALL) -> str:
        return kv_compatibility(VllmAdapter().kv_inputs(wanted, install))

    same = of(spec())
    assert of(spec(prefill=(3, 1, 4), engine={"args": ["--max-model-len=512"]})) == same
    assert of(spec(engine={"blockSize": 64})) != same
    assert of(spec(engine={"args": ["--dtype=float32"]})) != same
    assert of(spec(engine={"args": ["--dtype", "float32"]})) == of(spec(engine={"args": ["--dtype=float32"]}))
    assert of(spec(model={"source": "file:///models/other"})) != same
    assert of(spec(), replace(INSTALL, worker_image="worker:2")) != same


def test_the_gateway_is_applied_after_the_rights_it_needs() -> None:
    objects = gateway_objects(service(), INSTALL)
    kinds = [item["kind"] for item in objects]
    assert kinds == ["ServiceAccount", "Role", "Service", "PodDisruptionBudget", "RoleBinding", "Deployment"]
    names = {item["metadata"]["name"] for item in objects if item["kind"] != "RoleBinding"}
    assert names == {"chat-gateway"}
    assert endpoint(service()) == "http://chat-gateway.default.svc:8000/v1"


def test_a_gateway_outlives_its_endpoint_and_then_its_streams() -> None:
    deployment = gateway_objects(service(spec(drain_s=60)), replace(INSTALL, gateway_linger_seconds=7))[-1]
    pod = deployment["spec"]["template"]["spec"]
    env = {item["name"]: item.get("value") for item in pod["containers"][0]["env"]}
    assert (env["POINTSMAN_LINGER_SECONDS"], env["POINTSMAN_SHUTDOWN_SECONDS"]) == ("7", "60")
    assert pod["terminationGracePeriodSeconds"] > 7 + 60


def test_no_password_is_referred_to_where_nats_asks_for_none() -> None:
    pod = _pod(install=replace(INSTALL, nats_authenticates=False))
    assert names.ENV_NATS_PASSWORD not in _env(pod)
    assert names.ENV_CONTROL_TOKEN in _env(pod)


def test_an_object_is_current_until_somebody_changes_what_we_said() -> None:
    wanted = gateway_objects(service(), INSTALL)[-1]
    live = {**wanted, "status": {"readyReplicas": 1}, "spec": {**wanted["spec"], "progressDeadlineSeconds": 600}}
    assert is_current(live, wanted), "what the API server fills in does not count"
    assert not is_current({**live, "spec": {**wanted["spec"], "replicas": 7}}, wanted)
    another = stamped({**wanted, "spec": {**wanted["spec"], "minReadySeconds": 3}})
    assert not is_current(live, another)
    assert not is_current({**live, "metadata": {"name": "chat-gateway"}}, wanted)


def test_entries_that_others_add_to_a_list_cost_no_write_and_a_changed_one_of_ours_does() -> None:
    """As ``kubectl set env`` adds them: an apply would leave them where they are, at every look."""
    wanted = gateway_objects(service(), INSTALL)[-1]
    live = copy.deepcopy(wanted)
    [container] = live["spec"]["template"]["spec"]["containers"]
    container["env"].insert(0, {"name": "THEIRS", "value": "1"})
    live["spec"]["template"]["spec"]["volumes"].append({"name": "theirs", "emptyDir": {}})
    live["metadata"]["ownerReferences"].append({"kind": "Other", "uid": "theirs"})
    assert is_current(live, wanted)
    container["env"][1] = {**container["env"][1], "valueFrom": None, "value": "theirs"}
    assert not is_current(live, wanted)


def test_an_entry_that_others_add_to_a_list_that_is_replaced_as_a_whole_is_removed() -> None:
    binding = next(item for item in gateway_objects(service(), INSTALL) if item["kind"] == "RoleBinding")
    intruder = {"kind": "User", "name": "somebody", "apiGroup": "rbac.authorization.k8s.io"}
    assert is_current(copy.deepcopy(binding), binding)
    assert not is_current({**binding, "subjects": [*binding["subjects"], intruder]}, binding)
    policy = stamped({"kind": "NetworkPolicy", "metadata": {}, "spec": {"ingress": [{"ports": [{"port": 8000}]}]}})
    wider = {**policy, "spec": {"ingress": [{"ports": [{"port": 8000}, {"port": 22}]}]}}
    assert not is_current(wider, policy)


def test_a_budget_keeps_all_but_one_worker_and_never_none() -> None:
    assert [disruption_budget(service(), Role.DECODE, n)["spec"]["minAvailable"] for n in (1, 2, 5)] == [1, 1, 4]


def test_a_secret_holds_its_values_encoded() -> None:
    data = service_secret(service(), "token", Login("user", "password"))["data"]
    assert data == {"control-token": "dG9rZW4=", "nats-user": "dXNlcg==", "nats-password": "cGFzc3dvcmQ="}


def test_workers_and_gateways_get_the_certificate_of_a_private_authority_of_nats() -> None:
    install = replace(INSTALL, nats_has_private_ca=True)
    deployment = gateway_objects(service(), install)[-1]
    for container in (_engine(_pod(install=install)), deployment["spec"]["template"]["spec"]["containers"][0]):
        env = {item["name"]: item.get("valueFrom", {}) for item in container["env"]}
        reference = env[names.ENV_NATS_CA_CERTIFICATE]["secretKeyRef"]
        assert reference == {"name": "chat-pointsman", "key": names.SECRET_NATS_CA_CERTIFICATE}
    data = service_secret(service(), "token", Login("user", "password"), "PEM")["data"]
    assert data[names.SECRET_NATS_CA_CERTIFICATE] == "UEVN"


def test_a_strategic_merge_removes_with_null_replaces_plain_lists_and_merges_keyed_ones() -> None:
    base: dict[str, Any] = {"a": 1, "args": ["x"], "env": [{"name": "A", "value": "1"}, {"name": "B", "value": "2"}]}
    patch = {"a": None, "args": ["y"], "env": [{"name": "B", "value": "3"}, {"name": "C"}]}
    merged = strategic_merge(base, patch)
    assert merged == {"args": ["y"], "env": [{"name": "A", "value": "1"}, {"name": "B", "value": "3"}, {"name": "C"}]}
    assert base["env"][1] == {"name": "B", "value": "2"}, "the base is not changed"


def test_another_source_replaces_a_volumes_source_and_the_same_source_is_merged() -> None:
    template = {
        "spec": {
            "volumes": [
                {"name": "model", "persistentVolumeClaim": {"claimName": "hub-cache"}},
                {"name": "shm", "emptyDir": {"sizeLimit": "8Gi"}},
            ],
            "containers": [{"name": "engine"}],
        }
    }
    pod = _pod(spec(model={"source": "hf://meta/llama"}, worker={"gpus": 1, "template": template}))
    volumes = {volume["name"]: volume for volume in pod["spec"]["volumes"]}
    assert volumes["model"] == {"name": "model", "persistentVolumeClaim": {"claimName": "hub-cache"}}
    assert volumes["shm"] == {"name": "shm", "emptyDir": {"medium": "Memory", "sizeLimit": "8Gi"}}
    assert volumes["tmp"] == {"name": "tmp", "emptyDir": {}}


@pytest.mark.parametrize("patch", [{"$patch": "replace"}, {"env": [{"value": "1"}]}])
def test_a_strategic_merge_says_which_field_it_cannot_merge(patch: dict[str, Any]) -> None:
    with pytest.raises(NotMergeable, match=r"\$patch|env\[0\]"):
        strategic_merge({"env": []}, patch)
