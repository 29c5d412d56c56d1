"""The variables that a pod template may set are settings of workers, with the same bounds on both sides."""

import re

import pytest

from pointsman.api.protocol import names
from pointsman.api.v1alpha1.worker_environment import (
    EMBEDDING_TRANSPORTS,
    INPUT_BROADCAST_MODES,
    SETTABLE_ENVIRONMENT,
    SETTABLE_ENVIRONMENT_PATTERN,
    is_owned_variable,
)
from pointsman.process.errors import BadSettings
from pointsman.process.settings import ProcessSettings
from pointsman.workers.multimodal.broadcast.modes import Mode
from pointsman.workers.multimodal.broadcast.settings import InputBroadcastSettings
from pointsman.workers.multimodal.exchange.settings import ExchangeSettings
from pointsman.workers.multimodal.transfer.data_paths import TRANSPORTS
from pointsman.workers.settings import WorkerSettings

OPERATORS_OWN = {"embedding_port", "pod_ip", "control_token", *ProcessSettings.model_fields}
SETTINGS = (ExchangeSettings, InputBroadcastSettings)
VALUES = (
    "", "0", "1", "-1", "8", "0.5", "1.5", "nan", "many", "true", "false", "10485760", "auto", "sync", "async",
    "delayed", "combined", "none", "tcp", "nixl,tcp", "shared_memory,nixl,tcp", "tcp,rdma", "tcp,", "TCP",
)  # fmt: skip


@pytest.fixture(autouse=True)
def worker(monkeypatch: pytest.MonkeyPatch) -> None:
    """What the operator renders."""
    for name, value in {
        names.ENV_CONTROL_TOKEN: "the-token-of-the-service",
        names.ENV_NAMESPACE: "default",
        names.ENV_SERVICE: "chat",
        names.ENV_SERVICE_UID: "u-1",
        names.ENV_WORKER: "chat-0",
        names.ENV_KV_COMPATIBILITY: "c0ffee12",
        names.ENV_BLOCK_SIZE: "16",
        names.ENV_MODEL: "/models/tiny",
        names.ENV_SERVED_NAME: "chat",
    }.items():
        monkeypatch.setenv(name, value)


def variable(field: str) -> str:
    return f"POINTSMAN_{field.upper()}"


def test_all_settings_of_transfer_and_broadcast_can_be_set_but_for_what_the_operator_decides() -> None:
    fields = {field for settings in SETTINGS for field in settings.model_fields} - OPERATORS_OWN
    assert {variable(field) for field in fields} | {"POINTSMAN_INPUT_BROADCAST"} == set(SETTABLE_ENVIRONMENT)
    assert "input_broadcast" in WorkerSettings.model_fields
    assert set(EMBEDDING_TRANSPORTS) == set(TRANSPORTS)
    assert set(INPUT_BROADCAST_MODES) == set(Mode) - {Mode.NONE}


@pytest.mark.parametrize("name", SETTABLE_ENVIRONMENT)
def test_what_the_operator_takes_for_right_starts_a_worker(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    field = name.removeprefix("POINTSMAN_").lower()
    settings = next((each for each in SETTINGS if field in each.model_fields), WorkerSettings)
    right = [value for value in VALUES if SETTABLE_ENVIRONMENT[name].is_right(value)]
    assert right
    for value in VALUES:
        monkeypatch.setenv(name, value)
        if value in right:
            assert getattr(settings.read(), field) is not None
        elif field != "input_broadcast":  # pydantic takes more words for true and false
            with pytest.raises(BadSettings, match=name):
                settings.read()


def test_everything_else_of_pointsman_stays_the_operators() -> None:
    rendered = {value for name, value in vars(names).items() if name.startswith("ENV_")}
    users = {names.ENV_EMBEDDING_CACHE_MIB, names.ENV_TENSOR_TRANSPORT}
    for name in {*rendered, "POINTSMAN_EMBEDDING_PORT", "VLLM_PLUGINS"} - users:
        assert is_owned_variable(name)
        assert not re.match(SETTABLE_ENVIRONMENT_PATTERN, name), "the CRD refuses it"
    assert all(re.match(SETTABLE_ENVIRONMENT_PATTERN, name) for name in SETTABLE_ENVIRONMENT)
    assert not is_owned_variable("NCCL_DEBUG")
    assert not is_owned_variable("POINTSMAN_INPUT_BROADCAST_MODE")
    assert is_owned_variable("POINTSMAN_INPUT_BROADCAST_MODE", settable=False), "of an elastic group"
