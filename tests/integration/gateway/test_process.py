"""The process: settings it refuses, in words."""

import os
import subprocess
import sys

import pytest


@pytest.mark.parametrize(
    ("environment", "says"),
    [
        ({}, "POINTSMAN_SERVICE: Field required"),
        ({"POINTSMAN_SERVICE": "chat", "POINTSMAN_PORT": "99999"}, "POINTSMAN_PORT: Input should be less than"),
        ({"POINTSMAN_SERVICE": "chat", "POINTSMAN_ROUTER": "fastest"}, "'overlap-ratio'"),
        ({"POINTSMAN_SERVICE": "chat", "POINTSMAN_NATS_USER": "u"}, "nats_user and nats_password are set together"),
    ],
)
def test_wrong_settings_end_the_process_with_the_name_of_the_setting(environment: dict[str, str], says: str) -> None:
    clean = {k: v for k, v in os.environ.items() if not k.startswith("POINTSMAN_")}
    ended = subprocess.run(
        [sys.executable, "-m", "pointsman.gateway"],
        env=clean | environment,
        capture_output=True,
        text=True,
        timeout=240,
    )
    assert ended.returncode == 2
    assert says in ended.stderr
    assert "Traceback" not in ended.stderr
