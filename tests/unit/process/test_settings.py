"""What a process may be told, and what it says of what is wrong."""

import pytest
from pydantic import Field, SecretStr, model_validator
from pydantic_settings import SettingsConfigDict

from pointsman.process.errors import BadSettings
from pointsman.process.settings import LeaderSettings, ProcessSettings


class Settings(ProcessSettings):
    model_config = SettingsConfigDict(cli_prog_name="python -m example")

    gpus: int = Field(ge=1)
    token: SecretStr | None = Field(default=None, min_length=8)
    user: str = ""

    @model_validator(mode="after")
    def _a_user_has_a_token(self) -> "Settings":
        if self.user and self.token is None:
            raise ValueError("user is set and token is not")
        return self


@pytest.fixture(autouse=True)
def clean_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("GPUS", "TOKEN", "USER", "LOG_LEVEL", "NAMESPACE", "POD_NAME"):
        monkeypatch.delenv(f"POINTSMAN_{name}", raising=False)


def test_a_flag_beats_the_environment_and_both_set_the_field(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("POINTSMAN_GPUS", "2")
    monkeypatch.setenv("POINTSMAN_LOG_LEVEL", "DEBUG")
    assert Settings.read().gpus == 2
    assert Settings.read(["--gpus", "3"]).gpus == 3
    assert Settings.read().log_level == "debug"


def test_every_wrong_setting_is_named_as_the_environment_has_it_with_its_value(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("POINTSMAN_LOG_LEVEL", "loud")
    with pytest.raises(BadSettings) as refused:
        Settings.read(["--gpus", "0"])
    said = str(refused.value)
    assert "POINTSMAN_GPUS: Input should be greater than or equal to 1 (got '0')" in said
    assert "POINTSMAN_LOG_LEVEL: Input should be 'debug', 'info', 'warning' or 'error' (got 'loud')" in said
    with pytest.raises(BadSettings, match="POINTSMAN_GPUS: Field required"):
        Settings.read()


def test_no_message_shows_a_secret(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("POINTSMAN_TOKEN", "hush")
    with pytest.raises(BadSettings) as refused:
        Settings.read(["--gpus", "1"])
    assert "POINTSMAN_TOKEN" in str(refused.value)
    assert "hush" not in str(refused.value)

    class Broken(Settings):
        @model_validator(mode="after")
        def _never(self) -> "Broken":
            raise ValueError("these do not go together")

    monkeypatch.setenv("POINTSMAN_TOKEN", "hush-hush-hush")
    with pytest.raises(BadSettings, match="these do not go together") as refused:
        Broken.read(["--gpus", "1"])
    assert "hush" not in str(refused.value)


def test_a_flag_that_does_not_exist_is_refused_by_name() -> None:
    with pytest.raises(BadSettings, match="--gpu-count"):
        Settings.read(["--gpus", "1", "--gpu-count", "2"])


def test_a_leader_is_named_by_its_pod_else_by_its_host(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOSTNAME", "a-host")
    arguments = ["--namespace", "here", "--lease-name", "the-lease"]
    assert LeaderSettings.read(arguments).identity == "a-host"
    monkeypatch.setenv("POINTSMAN_POD_NAME", "a-pod")
    assert LeaderSettings.read(arguments).identity == "a-pod"
