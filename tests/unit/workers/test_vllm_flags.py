"""The command line and environment of vLLM."""

import importlib.util
import json
import tempfile
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pointsman.api.protocol.names import EmbeddingRole, Role
from pointsman.api.v1alpha1.engine_flags import OWNED_FLAGS
from pointsman.workers.event_sockets import kv_event_endpoints
from pointsman.workers.settings import WorkerSettings
from pointsman.workers.vllm.flags import FlagNotAllowed, engine_environment, refused_environment, vllm_arguments


def settings(**changes: Any) -> WorkerSettings:
    values: dict[str, Any] = {
        "namespace": "prod",
        "service": "chat",
        "service_uid": "uid",
        "worker": "chat-5f7f-0",
        "pod_ip": "10.1.2.3",
        "kv_compatibility": "same",
        "block_size": 16,
        "model": "/models/llama",
        "served_name": "llama",
        "control_token": "0123456789abcdef",
        "gpus": 1,
    }
    return WorkerSettings(**(values | changes))


def value_of(arguments: list[str], flag: str) -> str:
    assert arguments.count(flag) == 1
    return arguments[arguments.index(flag) + 1]


def json_of(arguments: list[str], flag: str) -> dict[str, Any]:
    value: dict[str, Any] = json.loads(value_of(arguments, flag))
    return value


@st.composite
def spellings(draw: st.DrawFn) -> str:
    """An owned flag as vLLM's parser would accept it: underscores, ``=``, dotted JSON, a beginning of it."""
    flag = draw(st.sampled_from(OWNED_FLAGS))
    beginning = flag[2 : draw(st.integers(3, len(flag)))]
    name = "--" + beginning.replace("-", draw(st.sampled_from("-_")))
    return name + draw(st.sampled_from(["", "=x", ".key=x", ".list+=x"]))


@given(spellings())
def test_a_flag_that_pointsman_owns_is_refused_in_every_spelling(argument: str) -> None:
    with pytest.raises(FlagNotAllowed, match="is set by Pointsman; leave it out"):
        vllm_arguments(settings(), ["--max-model-len=4096", argument])


def test_the_users_arguments_come_last_and_unchanged() -> None:
    user = ["--max-model-len=4096", "--dtype", "float32"]
    assert vllm_arguments(settings(), user)[-3:] == user


def test_the_revision_of_a_hub_model_is_passed_on() -> None:
    hub = settings(model="meta/llama", model_revision="v1.2")
    assert value_of(vllm_arguments(hub, []), "--revision") == "v1.2"
    assert "--revision" not in vllm_arguments(settings(), [])


def test_every_worker_may_take_every_role() -> None:
    for gpus in (0, 1, 8):
        assert json_of(vllm_arguments(settings(gpus=gpus), []), "--kv-transfer-config")["kv_role"] == "kv_both"


def test_the_engine_keeps_prefilled_kv_as_long_as_the_workers_reckon() -> None:
    transfer = json_of(vllm_arguments(settings(lease_seconds=12), []), "--kv-transfer-config")
    assert transfer["kv_connector_extra_config"] == {"kv_lease_duration": 12}


def test_kv_that_cannot_be_fetched_is_computed_again() -> None:
    transfer = json_of(vllm_arguments(settings(), []), "--kv-transfer-config")
    assert transfer["kv_load_failure_policy"] == "recompute"


def test_nothing_meant_for_cpu_reaches_a_gpu() -> None:
    gpu = vllm_arguments(settings(gpus=1), [])
    assert "--enforce-eager" not in gpu
    assert "--kv-cache-memory-bytes" not in gpu
    assert "kv_buffer_device" not in json_of(gpu, "--kv-transfer-config")
    environment = engine_environment(settings(gpus=1), {})
    assert not [name for name in environment if "CPU" in name or "OMP" in name or "UCX" in name]
    assert "VLLM_ENABLE_V1_MULTIPROCESSING" not in environment


def test_several_gpus_are_used_unless_the_user_says_how() -> None:
    assert value_of(vllm_arguments(settings(gpus=4), []), "--tensor-parallel-size") == "4"
    assert "--tensor-parallel-size" not in vllm_arguments(settings(gpus=4), ["-tp", "2"])
    assert "--tensor-parallel-size" not in vllm_arguments(settings(gpus=4), ["--pipeline_parallel_size=4"])
    assert "--tensor-parallel-size" not in vllm_arguments(settings(gpus=1), [])


def test_only_several_ranks_get_their_inputs_by_broadcast() -> None:
    flag = "--distributed-executor-backend"
    assert value_of(vllm_arguments(settings(gpus=2, input_broadcast=True), []), flag).endswith(".BroadcastExecutor")
    assert flag in vllm_arguments(settings(gpus=0, input_broadcast=True), ["--tensor-parallel-size=2"])
    assert flag not in vllm_arguments(settings(gpus=1, input_broadcast=True), [])
    assert flag not in vllm_arguments(settings(gpus=2), [])
    for role in EmbeddingRole:
        assert flag in vllm_arguments(settings(gpus=2, embedding_role=role), [])
        assert flag not in vllm_arguments(settings(gpus=2, embedding_role=role, input_broadcast=False), [])
    assert value_of(vllm_arguments(settings(gpus=2, input_broadcast=True), [flag, "mp"]), flag) == "mp"


def test_on_cpu_a_users_own_choice_replaces_the_default() -> None:
    arguments = vllm_arguments(settings(gpus=0), ["--kv_cache_memory_bytes=64M", "--no-enforce-eager"])
    assert not [a for a in arguments if a in {"--kv-cache-memory-bytes", "--enforce-eager"}]


@pytest.mark.parametrize("bind_host", ["0.0.0.0", "::", "127.1.2.3", "10.1.2.3"])
def test_kv_events_carry_the_workers_name_and_no_other_pod_reaches_them(bind_host: str) -> None:
    own = settings(bind_host=bind_host)
    events = json_of(vllm_arguments(own, []), "--kv-events-config")
    assert events["topic"] == "kv@chat-5f7f-0"
    assert (events["endpoint"], events["replay_endpoint"]) == kv_event_endpoints(own)
    assert all(endpoint.startswith("ipc:///") for endpoint in kv_event_endpoints(own))


def test_workers_that_share_a_disk_do_not_share_kv_events(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    assert len({*kv_event_endpoints(settings()), *kv_event_endpoints(settings(pod_ip="10.1.2.4"))}) == 4
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / ("deep" * 30)))
    assert all(len(endpoint) < 107 for endpoint in kv_event_endpoints(settings()))


def test_peers_are_told_the_pods_address() -> None:
    environment = engine_environment(settings(), {})
    assert environment["VLLM_NIXL_SIDE_CHANNEL_HOST"] == "10.1.2.3"
    assert environment["VLLM_NIXL_SIDE_CHANNEL_PORT"] == "5600"


def test_a_loopback_pod_opens_no_other_interface() -> None:
    assert engine_environment(settings(gpus=0, pod_ip="127.9.8.7"), {})["UCX_NET_DEVICES"] == "lo"
    assert "UCX_NET_DEVICES" not in engine_environment(settings(gpus=0), {})


def test_a_users_variable_stays_where_pointsman_has_no_say() -> None:
    current = {"OMP_NUM_THREADS": "16", "VLLM_NIXL_SIDE_CHANNEL_HOST": "localhost"}
    environment = engine_environment(settings(gpus=0), current)
    assert "OMP_NUM_THREADS" not in environment
    assert environment["VLLM_NIXL_SIDE_CHANNEL_HOST"] == "10.1.2.3"


def test_no_secret_is_on_the_command_line() -> None:
    arguments = vllm_arguments(settings(nats_password="hidden-password"), [])
    assert not [a for a in arguments if "0123456789abcdef" in a or "hidden-password" in a]


def test_a_service_without_encode_workers_has_nothing_of_them() -> None:
    assert not [
        argument for argument in vllm_arguments(settings(), []) if "ec" in argument.split("-") or "mm" in argument
    ]


def test_an_encode_worker_runs_the_encoder_alone_and_publishes_what_it_computes() -> None:
    arguments = vllm_arguments(settings(embedding_role="ec_producer"), ["--max-model-len=4096"])
    assert {"--mm-encoder-only", "--no-enable-prefix-caching"} <= set(arguments)
    assert not [argument for argument in arguments if argument.startswith(("--kv-", "--enable-prefix", "--prefix"))]
    config = json_of(arguments, "--ec-transfer-config")
    assert config["ec_role"] == "ec_producer"
    module = importlib.util.find_spec(config["ec_connector_module_path"])
    assert module is not None and module.origin is not None
    assert f"class {config['ec_connector']}" in Path(module.origin).read_text()
    assert settings(embedding_role="ec_producer").possible_roles == (Role.ENCODE,)


def test_workers_of_a_service_with_encode_workers_fetch_embeddings_beside_their_kv() -> None:
    consumer = settings(embedding_role="ec_consumer")
    arguments = vllm_arguments(consumer, [])
    assert json_of(arguments, "--ec-transfer-config")["ec_role"] == "ec_consumer"
    assert json_of(arguments, "--kv-transfer-config")["kv_role"] == "kv_both"
    assert consumer.possible_roles == (Role.PREFILL, Role.DECODE)


def test_what_only_pointsman_may_set_is_removed_wherever_it_comes_from() -> None:
    from_env_from = {
        "VLLM_SERVER_DEV_MODE": "1",
        "VLLM_PLUGINS": "",
        "VLLM_PORT": "tcp://10.0.0.1",
        "HF_HUB_OFFLINE": "1",
    }
    rendered = {"POINTSMAN_SERVICE": "chat", "POD_IP": "10.1.2.3", "PATH": "/bin"}
    assert sorted(refused_environment(from_env_from | rendered)) == [
        "VLLM_PLUGINS",
        "VLLM_PORT",
        "VLLM_SERVER_DEV_MODE",
    ]
