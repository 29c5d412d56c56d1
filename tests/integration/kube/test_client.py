"""Every verb of the client against the real API server, and its errors."""

import asyncio
import base64
from collections.abc import AsyncIterator
from contextlib import aclosing
from pathlib import Path
from typing import Any

import certifi
import pytest
import yaml

from fixtures.fault_proxy import Delay, FaultProxy, Refuse, Reply, Request
from fixtures.kube_calls import account_token, is_served, watch
from pointsman.kube.client import Kube
from pointsman.kube.errors import (
    AlreadyExists,
    Conflict,
    Forbidden,
    Gone,
    Invalid,
    NotFound,
    NotServed,
    ServerFault,
    Throttled,
    Unauthorized,
    Unreachable,
)
from pointsman.kube.request import RequestRecord
from pointsman.kube.resources import (
    CONFIG_MAPS,
    DEPLOYMENTS,
    LLM_SERVICES,
    NAMESPACES,
    POD_DISRUPTION_BUDGETS,
    PODS,
    ROLE_BINDINGS,
    ROLES,
    SECRETS,
    SERVICE_ACCOUNTS,
    Resource,
)
from pointsman.local.control_plane import ControlPlane

NOT_INSTALLED = Resource("pointsman.example", "v1", "things", "Thing")


def config_map(name: str, namespace: str, **data: str) -> dict[str, Any]:
    return {"metadata": {"name": name, "namespace": namespace}, "data": data}


async def test_an_object_is_created_read_replaced_and_deleted(kube: Kube, namespace: str) -> None:
    made = await kube.create(CONFIG_MAPS, config_map("a", namespace, x="1"))
    assert (made["kind"], made["data"]) == ("ConfigMap", {"x": "1"})
    with pytest.raises(AlreadyExists, match='configmaps "a" already exists'):
        await kube.create(CONFIG_MAPS, config_map("a", namespace))
    await kube.replace(CONFIG_MAPS, made | {"data": {"x": "2"}})
    assert (await kube.get(CONFIG_MAPS, "a", namespace))["data"] == {"x": "2"}
    with pytest.raises(Conflict, match="modified"):
        await kube.replace(CONFIG_MAPS, made | {"data": {"x": "3"}})
    with pytest.raises(Conflict):
        await kube.delete(CONFIG_MAPS, "a", namespace, uid="another")
    await kube.delete(CONFIG_MAPS, "a", namespace, uid=made["metadata"]["uid"])
    assert await kube.find(CONFIG_MAPS, "a", namespace) is None
    with pytest.raises(NotFound, match='configmaps "a" not found'):
        await kube.delete(CONFIG_MAPS, "a", namespace)


async def test_apply_owns_its_fields_and_takes_back_what_it_left_out(kube: Kube, namespace: str) -> None:
    await kube.apply(CONFIG_MAPS, config_map("a", namespace, ours="1", dropped="1"))
    await kube.patch(CONFIG_MAPS, "a", namespace, {"data": {"theirs": "1"}})
    applied = await kube.apply(CONFIG_MAPS, config_map("a", namespace, ours="2"), field_manager="pointsman")
    assert applied["data"] == {"ours": "2", "theirs": "1"}
    taken = await kube.apply(CONFIG_MAPS, config_map("a", namespace, ours="3"), field_manager="another")
    assert taken["data"]["ours"] == "3"


TEXTS = ("an emoji \U0001f600", "DEL \x7f and C1 \x9b", "a mark \ufeff", "none \ufffe\uffff", "C0 \x07\x1b[31m")
"""What logs and people's texts hold. The API server reads an apply as YAML, which takes fewer characters than JSON."""


@pytest.mark.parametrize("text", TEXTS)
async def test_every_character_is_written_as_it_is(kube: Kube, namespace: str, text: str) -> None:
    applied = await kube.apply(CONFIG_MAPS, config_map("applied", namespace, x=text))
    created = await kube.create(CONFIG_MAPS, config_map("created", namespace, x=text))
    patched = await kube.patch(CONFIG_MAPS, "created", namespace, {"data": {"y": text}})
    assert [applied["data"], created["data"], patched["data"]] == [{"x": text}, {"x": text}, {"x": text, "y": text}]


async def test_half_a_character_is_written_as_one_that_is_not_known(kube: Kube, namespace: str) -> None:
    applied = await kube.apply(CONFIG_MAPS, config_map("applied", namespace, x="half \ud83d"))
    assert applied["data"] == {"x": "half \ufffd"}


async def test_a_patch_keeps_to_its_preconditions(kube: Kube, namespace: str) -> None:
    body = {"data": {"x": "2"}}
    made = await kube.create(CONFIG_MAPS, config_map("a", namespace, x="1"))
    version, uid = made["metadata"]["resourceVersion"], made["metadata"]["uid"]
    patched = await kube.patch(CONFIG_MAPS, "a", namespace, body, resource_version=version, uid=uid)
    assert patched["data"] == {"x": "2"}
    with pytest.raises(Conflict):
        await kube.patch(CONFIG_MAPS, "a", namespace, body, resource_version=version)
    with pytest.raises(Conflict):
        await kube.patch(CONFIG_MAPS, "a", namespace, body, uid="another")


async def test_a_subresource_is_written_apart(kube: Kube, namespace: str) -> None:
    template = {"metadata": {"labels": {"a": "b"}}, "spec": {"containers": [{"name": "c", "image": "i"}]}}
    deployment = {
        "metadata": {"name": "d", "namespace": namespace},
        "spec": {"replicas": 0, "selector": {"matchLabels": {"a": "b"}}, "template": template},
    }
    await kube.apply(DEPLOYMENTS, deployment)
    scaled = await kube.patch(DEPLOYMENTS, "d", namespace, {"spec": {"replicas": 2}}, subresource="scale")
    assert scaled["kind"] == "Scale"
    await kube.patch(DEPLOYMENTS, "d", namespace, {"spec": {"replicas": 9}}, subresource="status")
    assert (await kube.get(DEPLOYMENTS, "d", namespace))["spec"]["replicas"] == 2


async def test_an_eviction_that_a_disruption_budget_does_not_allow_is_throttled(kube: Kube, namespace: str) -> None:
    pod = {"metadata": {"name": "p", "labels": {"a": "b"}}, "spec": {"containers": [{"name": "c", "image": "i"}]}}
    await kube.create(PODS, pod, namespace)
    ready = {"phase": "Running", "conditions": [{"type": "Ready", "status": "True"}]}
    await kube.patch(PODS, "p", namespace, {"status": ready}, subresource="status")
    budget = {"metadata": {"name": "b"}, "spec": {"minAvailable": 1, "selector": {"matchLabels": {"a": "b"}}}}
    await kube.create(POD_DISRUPTION_BUDGETS, budget, namespace)
    eviction = {"apiVersion": "policy/v1", "kind": "Eviction", "metadata": {"name": "p", "namespace": namespace}}
    with pytest.raises(Throttled, match="Cannot evict pod as it would violate the pod's disruption budget"):
        await kube.create(PODS, eviction, name="p", subresource="eviction")
    await kube.delete(POD_DISRUPTION_BUDGETS, "b", namespace)
    await kube.create(PODS, eviction, name="p", subresource="eviction")


async def test_an_invalid_object_is_refused_with_the_fields_at_fault(kube: Kube, namespace: str) -> None:
    with pytest.raises(Invalid) as refusal:
        await kube.create(CONFIG_MAPS, config_map("Not A Name", namespace))
    assert [cause.field for cause in refusal.value.causes] == ["metadata.name"]
    with pytest.raises(Invalid, match='unknown field "dta"'):
        await kube.create(CONFIG_MAPS, {"metadata": {"name": "a"}, "dta": {}}, namespace, field_validation="Strict")


async def test_a_list_reads_all_pages_and_keeps_to_its_selectors(kube: Kube, namespace: str) -> None:
    for number in range(7):
        body = config_map(f"m{number}", namespace)
        body["metadata"] |= {"labels": {"odd": str(number % 2)}}
        await kube.create(CONFIG_MAPS, body)
    listing = await kube.list(CONFIG_MAPS, namespace, label_selector="odd", limit=2)
    assert [item["metadata"]["name"] for item in listing.items] == [f"m{number}" for number in range(7)]
    assert {(item["apiVersion"], item["kind"]) for item in listing.items} == {("v1", "ConfigMap")}
    odd = await kube.list(CONFIG_MAPS, namespace, label_selector="odd=1")
    assert [item["metadata"]["name"] for item in odd.items] == ["m1", "m3", "m5"]
    one = await kube.list(CONFIG_MAPS, namespace, field_selector="metadata.name=m4")
    assert len(one.items) == 1
    assert len((await kube.list(CONFIG_MAPS, label_selector="odd")).items) == 7


async def test_a_watch_tells_what_happens_after_a_list(kube: Kube, namespace: str) -> None:
    listing = await kube.list(CONFIG_MAPS, namespace)
    made = await kube.create(CONFIG_MAPS, config_map("a", namespace))
    await kube.delete(CONFIG_MAPS, "a", namespace)
    told = []
    async with asyncio.timeout(60):
        async with aclosing(watch(kube, CONFIG_MAPS, namespace, listing.resource_version)) as events:
            async for kind, item in events:
                name = item["metadata"]["name"]
                if name == "kube-root-ca.crt":
                    continue  # Kubernetes gives it to every namespace, some moment after it is made
                told.append((kind, name))
                if kind == "DELETED":
                    break
    assert told == [("ADDED", made["metadata"]["name"]), ("DELETED", made["metadata"]["name"])]


async def test_a_watch_from_before_the_servers_memory_is_gone(
    kube: Kube, installed_crds: ControlPlane, namespace: str
) -> None:
    # Of a kind that was installed later the API server remembers nothing as old as version 1. It answers a first watch
    # with 429 while it prepares the kind's storage; the list waits for that.
    await kube.list(LLM_SERVICES, namespace)
    with pytest.raises(Gone, match="too old resource version"):
        async with asyncio.timeout(60), aclosing(watch(kube, LLM_SERVICES, namespace, "1")) as events:
            async for _ in events:
                pass


async def test_a_kind_that_is_not_installed_is_not_served(kube: Kube, namespace: str) -> None:
    assert await is_served(kube, PODS)
    assert not await is_served(kube, NOT_INSTALLED)
    with pytest.raises(NotServed):
        await kube.list(NOT_INSTALLED, namespace)


async def test_a_namespace_that_goes_away_takes_nothing_new(kube: Kube, namespace: str) -> None:
    body = {"metadata": {"name": f"{namespace}-ends"}, "spec": {"finalizers": ["kubernetes"]}}
    await kube.create(NAMESPACES, body)
    held = config_map("held", f"{namespace}-ends")
    held["metadata"] |= {"finalizers": ["pointsman.dev/test"]}
    await kube.create(CONFIG_MAPS, held)
    await kube.delete(NAMESPACES, f"{namespace}-ends")
    with pytest.raises(Forbidden) as refusal:
        await kube.create(CONFIG_MAPS, config_map("late", f"{namespace}-ends"))
    assert refusal.value.namespace_terminating
    await kube.patch(CONFIG_MAPS, "held", f"{namespace}-ends", {"metadata": {"finalizers": None}})


# --- who we are ---


@pytest.fixture
async def account(kube: Kube, namespace: str) -> str:
    """A service account that may read ConfigMaps of its namespace, and nothing else."""
    await kube.create(SERVICE_ACCOUNTS, {"metadata": {"name": "reader", "namespace": namespace}})
    rule = {"apiGroups": [""], "resources": ["configmaps"], "verbs": ["get", "list"]}
    await kube.create(ROLES, {"metadata": {"name": "reader", "namespace": namespace}, "rules": [rule]})
    binding = {
        "metadata": {"name": "reader", "namespace": namespace},
        "roleRef": {"apiGroup": "rbac.authorization.k8s.io", "kind": "Role", "name": "reader"},
        "subjects": [{"kind": "ServiceAccount", "name": "reader", "namespace": namespace}],
    }
    await kube.create(ROLE_BINDINGS, binding)
    return "reader"


def kubeconfig_with_token_file(control_plane: ControlPlane, directory: Path, token: str) -> tuple[Path, Path]:
    admin = yaml.safe_load(control_plane.kubeconfig.read_text())
    token_file = directory / "token"
    token_file.write_text(token + "\n")
    path = directory / "account.kubeconfig"
    config = admin | {
        "users": [{"name": entry["name"], "user": {"tokenFile": str(token_file)}} for entry in admin["users"]]
    }
    path.write_text(yaml.safe_dump(config))
    return path, token_file


async def test_a_service_account_does_what_its_role_allows(
    kube: Kube, control_plane: ControlPlane, namespace: str, account: str, tmp_path: Path
) -> None:
    token = await account_token(kube, account, namespace)
    path, _ = kubeconfig_with_token_file(control_plane, tmp_path, token)
    async with await Kube.connect(path) as reader:
        await reader.list(CONFIG_MAPS, namespace)
        with pytest.raises(
            Forbidden, match=f'User "system:serviceaccount:{namespace}:reader" cannot list resource "secrets"'
        ):
            await reader.list(SECRETS, namespace)


async def test_a_token_that_was_rotated_on_disk_is_read_again(
    kube: Kube, control_plane: ControlPlane, namespace: str, account: str, tmp_path: Path
) -> None:
    path, token_file = kubeconfig_with_token_file(control_plane, tmp_path, "expired")
    async with await Kube.connect(path) as reader:
        with pytest.raises(Unauthorized):
            await reader.list(CONFIG_MAPS, namespace)
        token_file.write_text(await account_token(kube, account, namespace))
        listing = await reader.list(CONFIG_MAPS, namespace)
        async with asyncio.timeout(60):
            events = watch(reader, CONFIG_MAPS, namespace, listing.resource_version)
            with pytest.raises(Forbidden, match="cannot watch"):
                await anext(events)


async def test_in_a_pod_the_mounted_service_account_is_used(
    kube: Kube,
    control_plane: ControlPlane,
    namespace: str,
    account: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    cluster = yaml.safe_load(control_plane.kubeconfig.read_text())["clusters"][0]["cluster"]
    host, port = cluster["server"].removeprefix("https://").split(":")
    data = cluster.get("certificate-authority-data")
    authority = base64.b64decode(data) if data else Path(cluster["certificate-authority"]).read_bytes()
    (tmp_path / "ca.crt").write_bytes(authority)
    (tmp_path / "token").write_text(await account_token(kube, account, namespace))
    # No root here, so the two files cannot lie where the kubelet mounts them.
    loader = "kubernetes.aio.config.incluster_config"
    monkeypatch.setattr(f"{loader}.SERVICE_TOKEN_FILENAME", str(tmp_path / "token"))
    monkeypatch.setattr(f"{loader}.SERVICE_CERT_FILENAME", str(tmp_path / "ca.crt"))
    monkeypatch.delenv("KUBECONFIG", raising=False)
    monkeypatch.setenv("KUBERNETES_SERVICE_HOST", host)
    monkeypatch.setenv("KUBERNETES_SERVICE_PORT", port)
    async with await Kube.connect() as reader:
        assert (await reader.list(CONFIG_MAPS, namespace)).items is not None
        with pytest.raises(Forbidden):
            await reader.list(SECRETS, namespace)


async def test_a_server_that_is_not_who_it_should_be_is_not_spoken_to(
    control_plane: ControlPlane, tmp_path: Path
) -> None:
    config = yaml.safe_load(control_plane.kubeconfig.read_text())
    other = tmp_path / "other.crt"
    bundle = Path(certifi.where()).read_text()
    other.write_text(bundle[: bundle.index("-----END CERTIFICATE-----") + 26])
    for entry in config["clusters"]:
        entry["cluster"].pop("certificate-authority-data", None)
        entry["cluster"]["certificate-authority"] = str(other)
    path = tmp_path / "kubeconfig"
    path.write_text(yaml.safe_dump(config))
    async with await Kube.connect(path) as stranger:
        with pytest.raises(Unreachable, match="certificate verify failed"):
            await stranger.list(NAMESPACES)


# --- what was asked of the API server ---


async def test_every_request_is_reported_with_its_rbac_verb(control_plane: ControlPlane, namespace: str) -> None:
    records: list[RequestRecord] = []
    async with await Kube.connect(control_plane.kubeconfig, on_request=records.append) as kube:
        await kube.apply(CONFIG_MAPS, config_map("a", namespace))
        await kube.apply(CONFIG_MAPS, config_map("a", namespace))
        made = await kube.get(CONFIG_MAPS, "a", namespace)
        await kube.replace(CONFIG_MAPS, made)
        listing = await kube.list(CONFIG_MAPS, namespace)
        async with aclosing(watch(kube, CONFIG_MAPS, namespace, listing.resource_version, timeout_s=1)) as events:
            async for _ in events:
                pass
        await kube.delete(CONFIG_MAPS, "a", namespace)
        with pytest.raises(NotFound):
            await account_token(kube, "nobody", namespace)
    assert [(record.verb, record.subresource, record.status) for record in records] == [
        ("patch", None, 201),
        ("create", None, 201),  # an apply that makes the object needs both
        ("patch", None, 200),
        ("get", None, 200),
        ("update", None, 200),
        ("list", None, 200),
        ("watch", None, 200),
        ("delete", None, 200),
        ("create", "token", 404),
    ]
    assert all(record.duration_s >= 0 for record in records)


# --- bad days ---


@pytest.fixture
async def shaky(proxy: FaultProxy) -> AsyncIterator[Kube]:
    async with await Kube.connect(proxy.kubeconfig) as client:
        yield client


@pytest.mark.parametrize("fault", [Reply(429, 0), Reply(500), Reply(500, 0)])
async def test_a_read_that_was_turned_away_is_tried_again(
    shaky: Kube, proxy: FaultProxy, namespace: str, fault: Reply
) -> None:
    faults = iter([fault, fault])
    proxy.plan = lambda _: next(faults, None)
    await shaky.list(CONFIG_MAPS, namespace)
    assert len(proxy.requests) == 3


async def test_a_read_gives_up_in_its_time(shaky: Kube, proxy: FaultProxy, namespace: str) -> None:
    proxy.plan = lambda _: Reply(429, 5)
    with pytest.raises(Throttled) as refusal:
        await shaky.get(CONFIG_MAPS, "a", namespace, timeout_s=2)
    assert (len(proxy.requests), refusal.value.retry_after_s) == (1, 5)
    proxy.plan = lambda _: Reply(500)
    with pytest.raises(ServerFault):
        await shaky.list(CONFIG_MAPS, namespace)
    assert len(proxy.requests) == 1 + 4


@pytest.mark.parametrize("fault", [Reply(429, 0), Reply(500)])
async def test_a_write_is_never_repeated(shaky: Kube, proxy: FaultProxy, namespace: str, fault: Reply) -> None:
    proxy.plan = lambda _: fault
    with pytest.raises((Throttled, ServerFault)):
        await shaky.create(CONFIG_MAPS, config_map("a", namespace))
    assert len(proxy.requests) == 1


async def test_no_answer_is_unreachable_and_in_time(shaky: Kube, proxy: FaultProxy, namespace: str) -> None:
    proxy.plan = lambda _: Delay(30)
    with pytest.raises(Unreachable, match=r"no answer within 0.3 s"):
        await shaky.create(CONFIG_MAPS, config_map("a", namespace), timeout_s=0.3)
    proxy.plan = lambda _: Refuse()
    with pytest.raises(Unreachable):
        await shaky.create(CONFIG_MAPS, config_map("a", namespace))


async def test_a_continue_token_that_expired_starts_the_list_over(
    shaky: Kube, kube: Kube, proxy: FaultProxy, namespace: str
) -> None:
    for number in range(5):
        await kube.create(CONFIG_MAPS, config_map(f"m{number}", namespace, ours="1"))
    pages = iter([None, Reply(410)])

    def expire_the_second_page(_: Request) -> Reply | None:
        return next(pages, None)

    proxy.plan = expire_the_second_page
    names = [item["metadata"]["name"] for item in (await shaky.list(CONFIG_MAPS, namespace, limit=3)).items]
    assert [name for name in names if name.startswith("m")] == [f"m{number}" for number in range(5)]
