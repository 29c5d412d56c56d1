"""Encode workers in the pure core: their pods, what they count, and what a service without them never notices."""

import random
from dataclasses import replace
from typing import Any

import pytest

from pointsman.api.protocol import names
from pointsman.api.protocol.names import LANGUAGE_ROLES, Role, workers_in_words
from pointsman.api.v1alpha1.conditions import Reason
from pointsman.api.v1alpha1.llmservice import LLMServiceSpec
from pointsman.api.v1alpha1.plan import Plan as PlanObject
from pointsman.api.v1alpha1.plannerpolicy import Mode, PlannerPolicySpec
from pointsman.api.v1alpha1.roleswitch import RoleSwitchSpec, SwitchPhase, SwitchReason
from pointsman.operator.core import actions as act
from pointsman.operator.core.adapters.vllm import VllmAdapter
from pointsman.operator.core.children import disruption_budget
from pointsman.operator.core.decide import decide
from pointsman.operator.core.gateway import gateway_objects
from pointsman.operator.core.install import Install
from pointsman.operator.core.policies import contradiction
from pointsman.operator.core.revision import revision
from pointsman.operator.core.snapshot import Plan, Policy, Switch
from pointsman.operator.errors import NotMergeable, Refused
from unit.operator.world import Render, World, service, spec

INSTALL = Install(worker_image="worker:1", gateway_image="gateway:1", nats_url="nats://nats:4222")
_MODEL = {"model": {"source": "hf://a/b"}}


def _pod(wanted: LLMServiceSpec, role: Role) -> dict[str, Any]:
    return VllmAdapter().pod(service(wanted), INSTALL, "chat-e-0", role)


def _engine(pod: dict[str, Any]) -> dict[str, Any]:
    found: dict[str, Any] = pod["spec"]["containers"][0]
    return found


def _env(pod: dict[str, Any]) -> dict[str, Any]:
    return {item["name"]: item.get("value") for item in _engine(pod)["env"]}


def with_encode(**fields: Any) -> LLMServiceSpec:
    """A service on GPUs whose encode workers have this of their own."""
    return spec(worker={"gpus": 4}, engine={"args": ["--max-model-len=4096"]}, encode=(1, 0, 4)).model_copy(
        update={"encode": LLMServiceSpec.model_validate({**_MODEL, "encode": fields}).encode}
    )


def test_an_encode_worker_has_flags_gpus_template_ports_and_a_revision_of_its_own() -> None:
    wanted = with_encode(args=["--max-num-seqs=8"], template={"spec": {"nodeSelector": {"gpu": "small"}}})
    encode, decode = _pod(wanted, Role.ENCODE), _pod(wanted, Role.DECODE)
    assert _engine(encode)["args"] == ["--max-num-seqs=8"]
    assert _engine(decode)["args"] == ["--max-model-len=4096"]
    assert _engine(encode)["resources"]["limits"] == {"nvidia.com/gpu": 1}
    assert _engine(decode)["resources"]["limits"] == {"nvidia.com/gpu": 4}
    assert (_env(encode)[names.ENV_GPUS], _env(decode)[names.ENV_GPUS]) == ("1", "4")
    assert encode["spec"]["nodeSelector"] == {"gpu": "small"}
    assert "nodeSelector" not in decode["spec"]
    assert {port["containerPort"] for port in _engine(encode)["ports"]} == {names.ENGINE_PORT, names.EMBEDDING_PORT}
    assert _env(encode)[names.ENV_EMBEDDING_ROLE] == "ec_producer"
    assert {_env(_pod(wanted, role))[names.ENV_EMBEDDING_ROLE] for role in LANGUAGE_ROLES} == {"ec_consumer"}
    labels = [pod["metadata"]["labels"][names.REVISION_LABEL] for pod in (encode, decode)]
    assert labels == [revision(wanted, Role.ENCODE), revision(wanted)]
    assert len(set(labels)) == 2


def test_what_is_an_encode_workers_own_makes_no_other_worker_outdated() -> None:
    before, after = with_encode(), with_encode(args=["--max-num-seqs=8"], gpus=2)
    assert revision(before) == revision(after)
    assert revision(before, Role.ENCODE) != revision(after, Role.ENCODE)
    longer = before.model_copy(update={"engine": before.engine.model_copy(update={"args": ("--dtype=auto",)})})
    assert revision(before) != revision(longer)
    assert revision(before, Role.ENCODE) == revision(longer, Role.ENCODE)


def test_limits_of_images_alone_change_no_worker_and_only_the_gateways_environment() -> None:
    wanted = spec(multimodal={"maxImages": 2, "allowedDomains": ["a.example", "b.example"]})
    assert _pod(wanted, Role.DECODE) == _pod(spec(), Role.DECODE)
    before, after = (
        {item["name"]: item.get("value") for item in each["spec"]["template"]["spec"]["containers"][0]["env"]}
        for each in (gateway_objects(service(given), INSTALL)[-1] for given in (spec(), wanted))
    )
    added = {name: value for name, value in after.items() if name not in before}
    assert before.items() <= after.items()
    assert added["POINTSMAN_MAX_IMAGES"] == "2"
    assert added["POINTSMAN_MAX_IMAGE_MIB"] == "20"
    assert added["POINTSMAN_IMAGE_ALLOWED_DOMAINS"] == '["a.example", "b.example"]'


def _template(**env: str) -> dict[str, Any]:
    """A pod template whose engine has these variables."""
    variables = [{"name": name, "value": value} for name, value in env.items()]
    return {"spec": {"containers": [{"name": "engine", "env": variables}]}}


def test_settings_of_transfer_and_broadcast_reach_the_pods_of_their_template() -> None:
    """A template that sets none leaves the revision as it is."""
    encode = {"POINTSMAN_EMBEDDING_TRANSFER_TRANSPORTS": "nixl,tcp", "POINTSMAN_MULTIMODAL_BLOCK_SIZE": "64"}
    language = {"POINTSMAN_INPUT_BROADCAST_MODE": "async", "POINTSMAN_EMBEDDING_CACHE_MIB": "256"}
    plain = with_encode()
    wanted = with_encode(template=_template(**encode))
    worker = wanted.worker.model_validate({"gpus": 4, "template": _template(**language)})
    wanted = wanted.model_copy(update={"worker": worker})
    VllmAdapter().check(wanted)
    for role, env in ((Role.ENCODE, encode), (Role.DECODE, language)):
        assert _env(_pod(wanted, role)) == _env(_pod(plain, role)) | env
        assert revision(wanted, role) != revision(plain, role)


def test_a_service_with_encode_workers_keeps_its_revisions() -> None:
    """Those of the version before the settings: no worker is outdated by an upgrade."""
    wanted = with_encode(args=["--max-num-seqs=8"], template={"spec": {"nodeSelector": {"gpu": "small"}}})
    assert (revision(wanted), revision(wanted, Role.ENCODE)) == ("6c565c8d5", "84e6a016d")
    cache = wanted.model_copy(update={"multimodal": wanted.model_validate({**_MODEL, "multimodal": {}}).multimodal})
    assert (revision(cache), revision(cache, Role.ENCODE)) == ("6c565c8d5", "5ce0edda6")


@pytest.mark.parametrize(
    ("engine", "encode", "trusted"),
    [
        ([], [], None),
        (["--trust-request-mm-kwargs"], [], None),
        (["--trust_request_mm_kwargs"], ["--trust-request-mm-kwargs"], "true"),
        (["--trust-request-mm-kwargs"], None, "true"),
    ],
)
def test_clients_may_set_options_of_the_image_processor_where_every_engine_takes_them(
    engine: list[str], encode: list[str] | None, trusted: str | None
) -> None:
    given = {**_MODEL, "engine": {"args": engine}, **({} if encode is None else {"encode": {"args": encode}})}
    deployment = gateway_objects(service(LLMServiceSpec.model_validate(given)), INSTALL)[-1]
    assert _env(deployment["spec"]["template"]).get("POINTSMAN_TRUST_REQUEST_MM_KWARGS") == trusted


@pytest.mark.parametrize(
    ("name", "value", "words"),
    [
        ("POINTSMAN_INPUT_BROADCAST_MODE", "fast", "is 'fast': write one of sync, async, delayed, combined, auto"),
        (
            "POINTSMAN_EMBEDDING_TRANSFER_TRANSPORTS",
            "rdma",
            "is 'rdma': write names of shared_memory, nixl, tcp, separated by commas",
        ),
        ("POINTSMAN_INPUT_BROADCAST_STALL_SECONDS", "0", "is '0': write a number of seconds above 0"),
        ("POINTSMAN_EMBEDDING_CACHE_BUFFER_SIZE", "-4", "is '-4': write a whole number of 1 or more"),
        ("POINTSMAN_EMBEDDING_CACHE_MIB", "64", "is set by spec.multimodal.cacheMiB: set it there"),
        ("POINTSMAN_EMBEDDING_PORT", "1", "is set by Pointsman: leave it out"),
    ],
)
def test_a_wrong_setting_is_refused_with_its_name_and_what_would_be_right(name: str, value: str, words: str) -> None:
    with pytest.raises(Refused) as refused:
        VllmAdapter().check(with_encode(template=_template(**{name: value})))
    assert str(refused.value) == f"spec.encode.template.spec.containers[name=engine].env {name} {words}"
    assert refused.value.reason is Reason.TEMPLATE_REFUSED


@pytest.mark.parametrize(
    ("fields", "words"),
    [
        ({"args": ["--no-mm-encoder-only"]}, "spec.encode.args has --no-mm-encoder-only"),
        ({"args": ["--port=1"]}, "spec.encode.args has --port=1"),
        (
            {"template": {"spec": {"containers": [{"name": "engine", "args": ["x"]}]}}},
            "spec.encode.template.spec.containers[name=engine].args is set by Pointsman: use spec.encode.args",
        ),
    ],
)
def test_what_admission_should_have_refused_is_refused_by_the_operator(fields: dict[str, Any], words: str) -> None:
    with pytest.raises(Refused) as refused:
        VllmAdapter().check(with_encode(**fields))
    assert words in str(refused.value)


def test_a_template_that_cannot_be_merged_is_refused_with_its_own_path() -> None:
    wanted = with_encode(template={"spec": {"volumes": [{"emptyDir": {}}]}})
    with pytest.raises(NotMergeable, match=r"spec\.encode\.template: spec\.volumes\[0\] has no name"):
        _pod(wanted, Role.ENCODE)


def test_the_last_encode_worker_may_be_evicted() -> None:
    budget = disruption_budget(service(with_encode()), Role.ENCODE, 1)
    assert budget["spec"]["minAvailable"] == 0
    assert disruption_budget(service(), Role.DECODE, 1)["spec"]["minAvailable"] == 1


def test_the_summary_is_in_the_order_of_a_request() -> None:
    assert workers_in_words({Role.PREFILL: 2, Role.DECODE: 4, Role.ENCODE: 1}) == "1E2P4D"
    assert workers_in_words({Role.PREFILL: 2, Role.DECODE: 4}) == "2P4D"


@pytest.mark.parametrize(("source", "target"), [(Role.ENCODE, Role.DECODE), (Role.PREFILL, Role.ENCODE)])
def test_a_switch_into_or_out_of_encode_ends_at_once_and_moves_nothing(source: Role, target: Role) -> None:
    it = World(service=service(spec(encode=(2, 0, 4), decode=(2, 1, 4), prefill=(2, 1, 4))), dice=random.Random(1))
    assert it.run(100)
    before = dict(it.pods)
    it.switches["s"] = Switch(
        name="by-hand",
        uid="s",
        created_s=it.now_s,
        spec=RoleSwitchSpec.model_validate({"serviceRef": {"name": "chat"}, "from": source, "to": target}),
    )
    it.reconcile()
    status = it.switches["s"].status
    assert (status.phase, status.reason) == (SwitchPhase.FAILED, SwitchReason.ROLE_IS_FIXED)
    assert status.message is not None
    assert "a worker cannot switch to or from the role Encode" in status.message
    assert it.pods == before


def _budget(gpus: int) -> Policy:
    wanted = {"mode": "Active", "objectives": {"ttftMs": 1000, "tpotMs": 50}, "budget": {"maxGpus": gpus}}
    return Policy(name="chat", spec=PlannerPolicySpec.model_validate(wanted))


def test_workers_of_each_role_take_their_own_gpus_of_the_budget() -> None:
    wanted = spec(prefill=(1, 1, 4), decode=(1, 1, 4), encode=(3, 0, 4), worker={"gpus": 4})  # an encode worker: 1 GPU
    it = World(service=service(wanted), dice=random.Random(1), policy=_budget(10))
    created = [action for action in decide(it.snapshot(), Render()).actions if isinstance(action, act.CreateWorker)]
    assert [action.role for action in created] == [Role.PREFILL, Role.DECODE, Role.ENCODE, Role.ENCODE]


def test_a_minimum_of_encode_workers_is_kept_free_in_the_budget() -> None:
    it = World(service=service(spec(decode=(4, 1, 4), encode=(2, 2, 4))), dice=random.Random(1), policy=_budget(5))
    created = [action for action in decide(it.snapshot(), Render()).actions if isinstance(action, act.CreateWorker)]
    assert [action.role for action in created].count(Role.ENCODE) == 2
    assert len(created) == 5


def test_a_budget_below_all_minimums_is_a_contradiction_that_names_both_fields() -> None:
    wanted = spec(encode=(2, 2, 4), worker={"gpus": 4})
    assert contradiction(_budget(10).spec, "chat", wanted) is None
    found = contradiction(_budget(9).spec, "chat", wanted)
    assert found is not None
    assert "the minReplicas of chat need 10 GPUs (worker.gpus and encode.gpus)" in found[1]


def _plan(**pools: int) -> Plan:
    written = PlanObject.model_validate(
        {
            "metadata": {"name": "chat-1"},
            "spec": {
                "serviceRef": {"name": "chat"},
                "sequence": 1,
                "mode": Mode.ACTIVE,
                "observedAt": "1970-01-01T00:10:00Z",
                "expiresAt": "2100-01-01T00:00:00Z",
                "pools": {name: {"replicas": replicas} for name, replicas in pools.items()},
                "routing": {"maxLocalPrefillTokens": 512, "maxPrefillQueueSize": 8},
                "changesLayout": True,
                "reason": "EncodeShort",
                "message": "images wait",
            },
        }
    )
    return Plan(name="chat-1", uid="p", spec=written.spec)


def test_a_plan_with_encode_workers_for_a_service_without_them_is_not_carried_out() -> None:
    it = World(service=service(), dice=random.Random(1), policy=_budget(8))
    it.plans["p"] = _plan(prefill=1, decode=1, encode=2)
    it.reconcile()
    assert it.plans["p"].status.message == "the plan has 2 encode workers, but the service has no spec.encode"


def test_a_plan_without_encode_workers_leaves_their_pool_and_counts_their_gpus() -> None:
    it = World(service=service(spec(encode=(2, 0, 4))), dice=random.Random(1), policy=_budget(4))
    it.plans["p"] = _plan(prefill=1, decode=2)
    it.reconcile()
    assert it.plans["p"].status.message == "the plan needs 5 GPUs, more than budget.maxGpus of the policy (4)"
    it.plans["p"] = replace(_plan(prefill=1, decode=1), uid="p")
    assert it.run(100)
    assert it.pools[Role.ENCODE].replicas == 2
    assert it.plans["p"].ended
