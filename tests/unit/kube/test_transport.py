"""Where the cluster is found, and who we are there."""

import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest.mock import patch

import aiohttp
import certifi
import pytest
import yaml

from fakes.clock import FakeClock
from pointsman.kube import transport
from pointsman.kube.errors import NotConfigured
from pointsman.kube.transport import Call, Transport, connect


def kubeconfig(path: Path, server: str = "http://127.0.0.1:1", **user: Any) -> Path:
    path.write_text(
        yaml.safe_dump(
            {
                "apiVersion": "v1",
                "kind": "Config",
                "clusters": [{"name": "c", "cluster": {"server": server}}],
                "users": [{"name": "u", "user": user}],
                "contexts": [{"name": "x", "context": {"cluster": "c", "user": "u"}}],
                "current-context": "x",
            }
        )
    )
    return path


@pytest.fixture(autouse=True)
def no_cluster(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.delenv("KUBECONFIG", raising=False)
    monkeypatch.delenv("KUBERNETES_SERVICE_HOST", raising=False)
    monkeypatch.setenv("HOME", str(tmp_path / "home"))


async def authorization(transport: Transport) -> str | None:
    """What the next request sends."""
    sent: dict[str, str] = {}

    async def call_api(_: str, __: object, headers: dict[str, str], *___: object, **____: object) -> Any:
        sent.update(headers)
        return SimpleNamespace(response=SimpleNamespace(status=200))

    await transport.refresh()  # may make a new client
    with patch.object(transport._client, "call_api", call_api):
        await transport.send(Call("GET", "/api", {}), aiohttp.ClientTimeout(total=1))
    return sent.get("authorization")


async def test_without_any_cluster_the_message_says_where_it_was_looked_for(tmp_path: Path) -> None:
    with pytest.raises(NotConfigured, match=r"KUBECONFIG is not set.*KUBERNETES_SERVICE_HOST.*home/\.kube/config"):
        await connect()


async def test_an_argument_goes_before_the_environment_and_that_before_the_home(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "home/.kube").mkdir(parents=True)
    kubeconfig(tmp_path / "home/.kube/config", "http://home")
    assert (await connect()).server == "http://home"
    monkeypatch.setenv("KUBECONFIG", str(kubeconfig(tmp_path / "env", "http://env")))
    assert (await connect()).server == "http://env"
    assert (await connect(kubeconfig(tmp_path / "argument", "http://argument"))).server == "http://argument"


async def test_the_namespace_is_the_contexts_as_for_kubectl(tmp_path: Path) -> None:
    path = kubeconfig(tmp_path / "config")
    assert (await connect(path)).namespace == "default"
    written = yaml.safe_load(path.read_text())
    written["contexts"][0]["context"]["namespace"] = "serving"
    path.write_text(yaml.safe_dump(written))
    assert (await connect(path)).namespace == "serving"


async def test_a_pods_namespace_is_its_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    account = tmp_path / "namespace"
    account.write_text("serving")
    monkeypatch.setattr(transport, "_SERVICE_ACCOUNT_NAMESPACE", account)
    assert transport._pods_namespace() == "serving"
    account.unlink()
    assert transport._pods_namespace() == "default"


@pytest.mark.parametrize("text", ["", "[]", "{", "current-context: x"])
async def test_a_file_that_is_no_kubeconfig_is_named(tmp_path: Path, text: str) -> None:
    path = tmp_path / "broken"
    path.write_text(text)
    with pytest.raises(NotConfigured, match="broken cannot be used"):
        await connect(path)


async def test_a_kubeconfig_that_does_not_exist_is_named(tmp_path: Path) -> None:
    with pytest.raises(NotConfigured, match="missing does not exist"):
        await connect(tmp_path / "missing")


async def test_a_pod_without_its_token_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("KUBERNETES_SERVICE_HOST", "10.0.0.1")
    monkeypatch.setenv("KUBERNETES_SERVICE_PORT", "443")
    with pytest.raises(NotConfigured, match="token file does not exist"):
        await connect()


async def test_a_token_file_is_read_again_each_minute_and_its_newline_is_dropped(tmp_path: Path) -> None:
    clock, token = FakeClock(), tmp_path / "token"
    token.write_text("first\n")
    transport = await connect(kubeconfig(tmp_path / "config", tokenFile=str(token)), clock=clock)
    assert await authorization(transport) == "Bearer first"
    token.write_text("second\n")
    await clock.advance(59)
    assert await authorization(transport) == "Bearer first"
    await clock.advance(2)
    assert await authorization(transport) == "Bearer second"


async def test_a_kubeconfig_that_was_rewritten_is_read_again(tmp_path: Path) -> None:
    clock = FakeClock()
    path = kubeconfig(tmp_path / "config", token="first")
    transport = await connect(path, clock=clock)
    assert await authorization(transport) == "Bearer first"
    kubeconfig(path, token="second")
    await clock.advance(61)
    assert await authorization(transport) == "Bearer second"


async def test_only_a_certificate_that_really_changed_makes_a_new_connection(tmp_path: Path) -> None:
    clock, authority = FakeClock(), tmp_path / "ca.crt"
    first, second = _certificates(2)
    authority.write_text(first)
    config = yaml.safe_load(kubeconfig(tmp_path / "config", "https://127.0.0.1:6443", token="t").read_text())
    config["clusters"][0]["cluster"]["certificate-authority"] = str(authority)
    (tmp_path / "config").write_text(yaml.safe_dump(config))
    transport = await connect(tmp_path / "config", clock=clock)
    client = transport._client
    authority.write_text(first)  # as the kubelet does with each token
    await clock.advance(61)
    await transport.refresh()
    assert transport._client is client
    authority.write_text(second)
    await clock.advance(61)
    await transport.refresh()
    assert transport._client is not client


def _certificates(count: int) -> list[str]:
    """The first certificates of this computer's bundle."""
    end = "-----END CERTIFICATE-----\n"
    return [text + end for text in Path(certifi.where()).read_text().split(end)[:count]]


async def test_credentials_that_cannot_be_read_again_stay_as_they_were(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    clock, token = FakeClock(), tmp_path / "token"
    token.write_text("first")
    transport = await connect(kubeconfig(tmp_path / "config", tokenFile=str(token)), clock=clock)
    token.unlink()
    await clock.advance(61)
    assert await authorization(transport) == "Bearer first"
    assert "keeping the old ones" in caplog.text


async def test_an_exec_plugin_is_asked_again_only_when_its_token_ends(tmp_path: Path) -> None:
    calls = tmp_path / "calls"
    plugin = tmp_path / "plugin"
    plugin.write_text(
        f"""#!{sys.executable}
import json, pathlib
calls = pathlib.Path({str(calls)!r})
number = len(calls.read_text()) + 1 if calls.exists() else 1
calls.write_text("x" * number)
year = 2999 if number > 1 else 2000
status = {{"token": f"token-{{number}}", "expirationTimestamp": f"{{year}}-01-01T00:00:00Z"}}
print(json.dumps({{"apiVersion": "client.authentication.k8s.io/v1", "kind": "ExecCredential", "status": status}}))
"""
    )
    plugin.chmod(0o755)
    clock = FakeClock()
    user: dict[str, Any] = {"exec": {"apiVersion": "client.authentication.k8s.io/v1", "command": str(plugin)}}
    transport = await connect(kubeconfig(tmp_path / "config", **user), clock=clock)
    assert await authorization(transport) == "Bearer token-1"
    for _ in range(3):
        await clock.advance(61)
        assert await authorization(transport) == "Bearer token-2"


async def test_a_proxy_of_the_environment_is_not_asked_for_a_local_cluster(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def asks_the_environment(transport: Transport) -> bool:
        return bool(transport._configuration.client_session_kwargs["trust_env"])

    monkeypatch.setenv("HTTPS_PROXY", "http://proxy.example:3128")
    assert not asks_the_environment(await connect(kubeconfig(tmp_path / "a", "https://127.0.0.1:6443")))
    assert not asks_the_environment(await connect(kubeconfig(tmp_path / "b", "https://localhost:6443")))
    assert asks_the_environment(await connect(kubeconfig(tmp_path / "c", "https://api.example.com")))


def test_the_whole_room_imports_in_less_than_90_mib() -> None:
    rooms = "client, errors, events, lease, mirror, objects, pods, resources"
    # Not getrusage: a child's ru_maxrss begins with what its parent, pytest, held when it forked.
    code = f"from pointsman.kube import {rooms}; print(open('/proc/self/status').read())"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    [peak_kib] = [line.split()[1] for line in done.stdout.splitlines() if line.startswith("VmHWM:")]
    assert int(peak_kib) < 90 * 1024
