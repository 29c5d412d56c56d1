"""Every admission rule against the real API server, good and bad: a refusal names field, value and what is right."""

import copy
import json
import re
import secrets
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any, Final

import pytest
import yaml

from fixtures.kube_calls import STRICT, dry_create, patch_with
from pointsman.api.v1alpha1 import OWNED_FLAGS, LLMService, owned_flag
from pointsman.kube import resources
from pointsman.kube.client import Kube
from pointsman.kube.errors import Invalid
from pointsman.local.control_plane import ControlPlane

Change = dict[str, Any]
TESTS: Final = Path(__file__).parents[2]
POLICIES_BEFORE: Final = json.loads((TESTS / "unit" / "api" / "policies_d8eedd12.json").read_text())
CRDS: Final = sorted((Path(__file__).parents[3] / "crds").glob("*.yaml"))
RESOURCES: Final = {
    resource.kind: resource
    for resource in (
        resources.LLM_SERVICES,
        resources.WORKER_POOLS,
        resources.PLANNER_POLICIES,
        resources.ROLE_SWITCHES,
        resources.PLANS,
        resources.ELASTIC_GROUPS,
    )
}


def service(name: str = "chat", **spec: Any) -> dict[str, Any]:
    """A minimal LLMService with ``spec`` merged in."""
    manifest: dict[str, Any] = {
        "apiVersion": "pointsman.dev/v1alpha1",
        "kind": "LLMService",
        "metadata": {"name": name},
        "spec": {"model": {"source": "file:///models/tiny"}},
    }
    return merged(manifest, {"spec": spec})


def pool(**changes: Any) -> dict[str, Any]:
    """The prefill pool of service ``chat``."""
    manifest: dict[str, Any] = {
        "apiVersion": "pointsman.dev/v1alpha1",
        "kind": "WorkerPool",
        "metadata": {"name": "chat-prefill"},
        "spec": {"serviceRef": {"name": "chat"}, "role": "Prefill", "replicas": 1},
    }
    return merged(manifest, changes)


def switch(**spec: Any) -> dict[str, Any]:
    """A switch of one decode worker of service ``chat``."""
    manifest: dict[str, Any] = {
        "apiVersion": "pointsman.dev/v1alpha1",
        "kind": "RoleSwitch",
        "metadata": {"name": "chat-1"},
        "spec": {"serviceRef": {"name": "chat"}, "from": "Decode", "to": "Prefill"},
    }
    return merged(manifest, {"spec": spec})


def policy(**spec: Any) -> dict[str, Any]:
    """A policy that says no more than it must."""
    manifest: dict[str, Any] = {
        "apiVersion": "pointsman.dev/v1alpha1",
        "kind": "PlannerPolicy",
        "metadata": {"name": "chat"},
        "spec": {"objectives": {"ttftMs": 1500, "tpotMs": 40}, "budget": {"maxGpus": 8}},
    }
    return merged(manifest, {"spec": spec})


def plan(**spec: Any) -> dict[str, Any]:
    """A plan as the planner writes it."""
    manifest: dict[str, Any] = {
        "apiVersion": "pointsman.dev/v1alpha1",
        "kind": "Plan",
        "metadata": {"name": "chat-1"},
        "spec": {
            "serviceRef": {"name": "chat"},
            "sequence": 1,
            "mode": "Approve",
            "observedAt": "2026-01-01T00:00:00Z",
            "expiresAt": "2026-01-01T00:15:00Z",
            "pools": {"prefill": {"replicas": 2}, "decode": {"replicas": 1}},
            "switches": [{"from": "Decode", "to": "Prefill", "count": 1}],
            "changesLayout": True,
            "change": "1P2D -> 2P1D",
            "gpus": 3,
            "attainment": "33% -> 85%",
            "reason": "PrefillShort",
            "message": "prompts wait",
            "inputs": [{"name": "arrivals_per_s", "value": 3.5}],
            "approval": {"required": True},
        },
    }
    return merged(manifest, {"spec": spec})


def group_plan() -> dict[str, Any]:
    """The plan of an elastic group."""
    made = plan(serviceRef={"kind": "ElasticGroup"}, instances={"replicas": 3}, reason="InstancesShort")
    for name in ("pools", "switches"):
        del made["spec"][name]
    return made


def group(name: str = "long-chat", **spec: Any) -> dict[str, Any]:
    """A minimal ElasticGroup with ``spec`` merged in."""
    manifest: dict[str, Any] = {
        "apiVersion": "pointsman.dev/v1alpha1",
        "kind": "ElasticGroup",
        "metadata": {"name": name},
        "spec": {"model": {"source": "file:///models/tiny"}, "instances": {"replicas": 2}},
    }
    return merged(manifest, {"spec": spec})


def as_group(manifest: dict[str, Any]) -> dict[str, Any] | None:
    """What a service says, said of a group; None if a group has no such fields."""
    spec = manifest.get("spec", {})
    worker, engine = spec.get("worker", {}), spec.get("engine", {})
    if manifest["kind"] != "LLMService" or "source" not in spec.get("model", {}):
        return None
    if not (spec.keys() <= {"model", "engine", "gateway", "worker"} and engine.keys() <= {"args"}):
        return None
    if not worker.keys() <= {"template"}:
        return None
    shared = {name: spec[name] for name in ("model", "engine", "gateway") if name in spec}
    return group(manifest["metadata"]["name"], **shared, **({"instance": worker} if worker else {}))


def engine_container(**fields: Any) -> Change:
    """A pod template with one container, the engine's."""
    return {"worker": {"template": {"spec": {"containers": [{"name": "engine", **fields}]}}}}


def engine_template(name: str, value: str) -> Change:
    """A pod template that sets one variable of the engine."""
    template: Change = engine_container(env=[{"name": name, "value": value}])["worker"]["template"]
    return template


def as_encode(manifest: dict[str, Any]) -> dict[str, Any] | None:
    """A service whose pod template is that of its encode workers; None where it has no template."""
    worker = manifest["spec"].get("worker", {}) if manifest["kind"] == "LLMService" else {}
    return service(encode=worker) if worker.keys() == {"template"} else None


def merged(below: dict[str, Any], above: dict[str, Any]) -> dict[str, Any]:
    result = copy.deepcopy(below)
    for key, value in above.items():
        both = isinstance(result.get(key), dict) and isinstance(value, dict)
        result[key] = merged(result[key], value) if both else value
    return result


class Api:
    """What a user creates and changes in one namespace, under the strict validation that kubectl asks for."""

    def __init__(self, kube: Kube, control_plane: ControlPlane, namespace: str) -> None:
        self._kube = kube
        self._control_plane = control_plane
        self._namespace = namespace

    async def create(self, manifest: dict[str, Any]) -> None:
        resource = RESOURCES[manifest["kind"]]
        await self._kube.create(resource, manifest, self._namespace, field_validation="Strict")

    async def refusal(self, manifest: dict[str, Any]) -> str:
        """What the API server says to ``manifest``; nothing is stored."""
        with pytest.raises(Invalid) as refused:
            await dry_create(self._kube, RESOURCES[manifest["kind"]], manifest, self._namespace)
        return refused.value.message

    async def change(self, manifest: dict[str, Any], spec: Change) -> None:
        """``kubectl patch --type=merge`` of the spec of the object of that kind and name."""
        resource, name = RESOURCES[manifest["kind"]], manifest["metadata"]["name"]
        await patch_with(self._kube, STRICT, resource, name, self._namespace, {"spec": spec})

    async def refused_change(self, manifest: dict[str, Any], spec: Change) -> str:
        """What the API server says to the change."""
        with pytest.raises(Invalid) as refused:
            await self.change(manifest, spec)
        return refused.value.message

    def kubectl(self, *arguments: str, stdin: str | None = None) -> str:
        return self._control_plane.kubectl("-n", self._namespace, *arguments, stdin=stdin)


@pytest.fixture
async def kube(control_plane: ControlPlane) -> AsyncIterator[Kube]:
    async with await Kube.connect(control_plane.kubeconfig, field_manager="test") as client:
        yield client


@pytest.fixture
def dry(kube: Kube, control_plane: ControlPlane) -> Api:
    """For what is only tried: nothing is stored, so no namespace is needed."""
    return Api(kube, control_plane, "default")


@pytest.fixture
def api(kube: Kube, control_plane: ControlPlane, namespace: str) -> Api:
    """For what is stored, in a namespace of the test's own."""
    return Api(kube, control_plane, namespace)


GOOD: dict[str, dict[str, Any]] = {
    "nothing but a model": service(),
    "a name of 40 characters": service("a" * 40),
    "a hub model with a token": service(
        model={"source": "hf://meta-llama/Llama-3.1-8B", "tokenSecretRef": {"name": "hf"}}
    ),
    "a hub model of a revision": service(model={"source": "hf://Qwen/Qwen3-8B@main"}),
    "a model in a claim": service(model={"source": "pvc://models/llama/8b"}),
    "replicas at both bounds": service(pools={"decode": {"replicas": 3, "minReplicas": 3, "maxReplicas": 3}}),
    "the user's own flags": service(
        engine={"args": ["--max-model-len=32768", "--dtype", "float32", "-tp", "2", "--model-impl=auto"]}
    ),
    "a CPU block size": service(worker={"gpus": 0}, engine={"blockSize": 64}),
    "a GPU block size": service(worker={"gpus": 1}, engine={"blockSize": 16}),
    "a template with what is the user's": service(
        worker={
            "gpus": 0,
            "template": {
                "metadata": {"labels": {"team": "a"}, "annotations": {"example.com/a": "b"}},
                "spec": {
                    "nodeSelector": {"disk": "fast"},
                    "restartPolicy": "Always",
                    "enableServiceLinks": False,
                    "containers": [
                        {"name": "engine", "env": [{"name": "UCX_TLS", "value": "tcp"}], "resources": {}},
                        {"name": "beside", "image": "x", "command": ["a"], "args": ["--port=1"]},
                    ],
                },
            },
        }
    ),
    "a template with resources as a pod takes them": service(
        **engine_container(resources={"limits": {"cpu": 0.5, "memory": "4Gi", "example.com/nic": 1}, "requests": {}})
    ),
    "how long a worker may load and its node may be silent": service(
        worker={"gpus": 0, "startupTimeoutSeconds": 14_400, "lostNodeSeconds": 0}
    ),
    "paused": service(paused=True),
    "the type of the gateway's Service": service(gateway={"replicas": 2, "service": {"type": "NodePort", "port": 80}}),
    "a router and limits of the gateway": service(
        gateway={
            "router": "least-loaded",
            "limits": {
                "maxBodyMiB": 256,
                "maxHeaderKiB": 128,
                "maxQueuedRequests": 0,
                "firstTokenTimeoutSeconds": 3600,
            },
        }
    ),
    "a gateway that is placed": service(
        gateway={
            "service": {
                "type": "LoadBalancer",
                "annotations": {"example.com/scheme": "internal"},
                "loadBalancerClass": "example.com/internal",
                "loadBalancerSourceRanges": ["10.0.0.0/8", "fd00::/8"],
                "externalTrafficPolicy": "Local",
                "ipFamilyPolicy": "PreferDualStack",
            },
            "template": {
                "metadata": {"labels": {"team": "a"}, "annotations": {"example.com/a": "b"}},
                "spec": {
                    "tolerations": [{"key": "dedicated", "operator": "Exists"}],
                    "containers": [
                        {
                            "name": "gateway",
                            "env": [{"name": "HTTPS_PROXY", "value": "http://proxy:3128"}],
                            "resources": {"limits": {"memory": "2Gi"}},
                        },
                        {"name": "beside", "image": "x", "env": [{"name": "POD_IP", "value": "x"}]},
                    ],
                },
            },
        }
    ),
    "encode workers of the default kind": service(encode={}),
    "encode workers with what is their own": service(
        encode={
            "gpus": 0,
            "args": ["--max-num-batched-tokens=16384"],
            "template": {"spec": {"nodeSelector": {"gpu": "small"}}},
        },
        pools={"encode": {"replicas": 0, "maxReplicas": 8}},
        multimodal={
            "maxImages": 4,
            "maxImageMiB": 5,
            "maxImageMegapixels": 16,
            "allowedDomains": ["example.com", "images.example.org", "localhost"],
            "fetchTimeoutSeconds": 2,
            "maxRedirects": 0,
            "cacheMiB": 64,
            "bypassBelowTokens": 0,
        },
    ),
    "settings of transfer and broadcast": service(
        encode={"template": engine_template("POINTSMAN_EMBEDDING_TRANSFER_TRANSPORTS", "nixl,tcp")},
        worker={"template": engine_template("POINTSMAN_INPUT_BROADCAST_MODE", "async")},
    ),
    "limits of images without encode workers": service(multimodal={"maxImages": 1}),
    "an encode pool of nothing": pool(spec={"role": "Encode", "replicas": 0}, metadata={"name": "chat-encode"}),
    "a plan with encode workers": plan(pools={"encode": {"replicas": 0}}),
    "limits of workers": service(worker={"limits": {"maxConcurrentPrefills": 2, "leaseSeconds": 120}}),
    "a pool": pool(),
    "a service with a policy": service(policyRef={"name": "chat"}),
    "a policy": policy(mode="Active", metrics={"intervalSeconds": 5}),
    "a policy with a Secret for its Prometheus": policy(
        metrics={
            "prometheusUrl": "https://prometheus:9090",
            "prometheusSecretRef": {"name": "pointsman-prometheus"},
        }
    ),
    "a policy as earlier versions stored it": policy(forecast={"model": "Kalman", "seasonality": "None"}),
    **{f"a policy of the version before: {name}": policy(**spec) for name, spec in POLICIES_BEFORE.items()},
    "a Prometheus beside the source that was stored by default": policy(
        metrics={"source": "Direct", "prometheusUrl": "http://prometheus:9090"}
    ),
    "a policy with a table of its own": policy(performance={"configMap": {"name": "chat-table"}}),
    "a plan": plan(),
    "a plan of an earlier planner": plan(routing={"maxLocalPrefillTokens": 512, "maxPrefillQueueSize": 8}),
    "a group with a policy": group(policyRef={"name": "chat"}),
    "a plan of a group": group_plan(),
    "a role switch": switch(workerName="chat-0", drainFirst=False, drainTimeoutSeconds=5),
    "an elastic group": group(
        engine={"args": ["--dtype=float32", "--max-model-len=4096"]},
        instance={"gpus": 0, "kvTokens": 3000},
        instances={"replicas": 3, "minReplicas": 1, "maxReplicas": 3},
        parallelism={"minDegree": 2, "maxDegree": 3},
    ),
    "an elastic group of few instances with the default degree": group(instances={"replicas": 1, "maxReplicas": 2}),
}


def test_what_is_right_is_accepted_by_kubectl_without_a_warning(dry: Api) -> None:
    everything = json.dumps({"apiVersion": "v1", "kind": "List", "items": list(GOOD.values())})
    flags = ("--dry-run=server", "--validate=strict", "--warnings-as-errors", "-o", "name")
    accepted = dry.kubectl("create", *flags, "-f", "-", stdin=everything)
    assert len(accepted.splitlines()) == len(GOOD)


# name of the case: (manifest, words of the refusal: where, what was written, what is right)
BAD: dict[str, tuple[dict[str, Any], tuple[str, ...]]] = {
    "a name of 41 characters": (
        service("a" * 41),
        ("metadata.name is '" + "a" * 41, "(41 characters)", "write at most 40"),
    ),
    "a name with a dot": (service("a.b"), ("metadata.name is 'a.b'", "write a DNS label that begins with a letter")),
    "a name that begins with a digit": (service("8b"), ("metadata.name is '8b'", "begins with a letter")),
    "no model": (
        {"apiVersion": "pointsman.dev/v1alpha1", "kind": "LLMService", "metadata": {"name": "a"}, "spec": {}},
        ("spec.model", "Required value"),
    ),
    "an unknown scheme": (
        service(model={"source": "s3://bucket/llama"}),
        ("spec.model.source", "'s3://bucket/llama' has an unsupported scheme", "hf://", "pvc://", "file:///"),
    ),
    "a relative path": (service(model={"source": "file://models"}), ("'file://models' is not complete", "file:///")),
    "a path with ..": (service(model={"source": "file:///a/../etc"}), ("'file:///a/../etc' is not complete",)),
    "a hub model without organisation": (service(model={"source": "hf://llama"}), ("'hf://llama' is not complete",)),
    "a token for a file": (
        service(model={"tokenSecretRef": {"name": "hf"}}),
        ("spec.model.tokenSecretRef", "source is file:///models/tiny", "leave it out"),
    ),
    "an engine that is not built": (
        service(engine={"type": "SGLang"}),
        ("spec.engine.type", "SGLang is not built yet", "use VLLM"),
    ),
    "another engine that is not built": (
        service(engine={"type": "Simulated"}),
        ("spec.engine.type", "Simulated is not built yet", "use VLLM"),
    ),
    "an unknown engine": (
        service(engine={"type": "TGI"}),
        ("spec.engine.type", "'TGI' is not a supported engine", "use VLLM"),
    ),
    "a CPU block size of 16": (
        service(worker={"gpus": 0}, engine={"blockSize": 16}),
        ("spec.engine.blockSize", "engine.blockSize is 16 and worker.gpus is 0", "write a multiple of 32"),
    ),
    "a block size of nothing": (
        service(engine={"blockSize": 0}),
        ("spec.engine.blockSize", "0", "greater than or equal to 1"),
    ),
    "more replicas than the maximum": (
        service(pools={"decode": {"replicas": 9, "maxReplicas": 8}}),
        ("spec.pools.decode.replicas", "replicas is 9", "from minReplicas 1 to maxReplicas 8"),
    ),
    "fewer replicas than the minimum": (
        service(pools={"prefill": {"replicas": 1, "minReplicas": 2}}),
        ("spec.pools.prefill.replicas", "replicas is 1", "from minReplicas 2"),
    ),
    "a minimum above the maximum": (
        service(pools={"prefill": {"replicas": 3, "minReplicas": 4, "maxReplicas": 2}}),
        ("spec.pools.prefill.minReplicas", "minReplicas 4 is above maxReplicas 2", "write minReplicas <= replicas"),
    ),
    "a minimum of decode workers above the maximum": (
        service(pools={"decode": {"replicas": 3, "minReplicas": 4, "maxReplicas": 2}}),
        ("spec.pools.decode.minReplicas", "minReplicas 4 is above maxReplicas 2"),
    ),
    "no replica": (
        service(pools={"decode": {"replicas": 0}}),
        ("spec.pools.decode.replicas", "0", "greater than or equal to 1"),
    ),
    "too many GPUs": (service(worker={"gpus": 17}), ("spec.worker.gpus", "17", "less than or equal to 16")),
    "a drain in the past": (
        service(drain={"timeoutSeconds": -1}),
        ("spec.drain.timeoutSeconds", "-1", "greater than or equal to 0"),
    ),
    "a Service type": (
        service(gateway={"service": {"type": "Headless"}}),
        ("spec.gateway.service.type", "Headless", "ClusterIP", "NodePort", "LoadBalancer"),
    ),
    "a router that is none": (
        service(gateway={"router": "Random"}),
        (
            "spec.gateway.router",
            "'Random' is not a router",
            "use one of token-load, overlap-ratio, least-loaded, round-robin",
        ),
    ),
    "a load balancer class of a Service that has none": (
        service(gateway={"service": {"loadBalancerClass": "example.com/internal"}}),
        ("spec.gateway.service.loadBalancerClass", "is for type LoadBalancer", "type is ClusterIP", "leave it out"),
    ),
    "source ranges of a Service that has no load balancer": (
        service(gateway={"service": {"type": "NodePort", "loadBalancerSourceRanges": ["10.0.0.0/8"]}}),
        ("spec.gateway.service.loadBalancerSourceRanges", "is for type LoadBalancer", "type is NodePort"),
    ),
    "a source range that is none": (
        service(gateway={"service": {"type": "LoadBalancer", "loadBalancerSourceRanges": ["10.0.0.1"]}}),
        ("spec.gateway.service.loadBalancerSourceRanges[0]", "10.0.0.1"),
    ),
    "an external policy of a Service that is internal": (
        service(gateway={"service": {"externalTrafficPolicy": "Local"}}),
        ("spec.gateway.service.externalTrafficPolicy", "type is ClusterIP", "leave it out"),
    ),
    "an annotation of the gateway's Service that is ours": (
        service(gateway={"service": {"annotations": {"pointsman.dev/applied-hash": "x"}}}),
        ("spec.gateway.service.annotations", "pointsman.dev/applied-hash", "belongs to Pointsman"),
    ),
    "the gateway's image": (
        service(gateway={"template": {"spec": {"containers": [{"name": "gateway", "image": "x"}]}}}),
        ("spec.gateway.template.spec.containers[0].image", "is set by Pointsman", "images.gateway"),
    ),
    "environment of the gateway that is ours": (
        service(
            gateway={
                "template": {"spec": {"containers": [{"name": "gateway", "env": [{"name": "POINTSMAN_MAX_BODY_MIB"}]}]}}
            }
        ),
        ("spec.gateway.template.spec.containers[0].env", "POINTSMAN_MAX_BODY_MIB", "is set by Pointsman"),
    ),
    "another account of the gateway": (
        service(gateway={"template": {"spec": {"serviceAccountName": "mine"}}}),
        ("spec.gateway.template.spec.serviceAccountName", "mine", "leave it out"),
    ),
    "service links of the gateway": (
        service(gateway={"template": {"spec": {"enableServiceLinks": True}}}),
        ("spec.gateway.template.spec.enableServiceLinks", "is true", "leave the field out"),
    ),
    "a grace period of the gateway": (
        service(gateway={"template": {"spec": {"terminationGracePeriodSeconds": 5}}}),
        ("spec.gateway.template.spec.terminationGracePeriodSeconds", "5", "spec.drain.timeoutSeconds"),
    ),
    "a label of the gateway that is ours": (
        service(gateway={"template": {"metadata": {"labels": {"pointsman.dev/service": "x"}}}}),
        ("spec.gateway.template.metadata.labels", "pointsman.dev/service", "belongs to Pointsman"),
    ),
    "an annotation of the gateway that is ours": (
        service(gateway={"template": {"metadata": {"annotations": {"pointsman.dev/x": "y"}}}}),
        ("spec.gateway.template.metadata.annotations", "pointsman.dev/x", "belongs to Pointsman"),
    ),
    "a body of nothing": (
        service(gateway={"limits": {"maxBodyMiB": 0}}),
        ("spec.gateway.limits.maxBodyMiB", "0", "greater than or equal to 1"),
    ),
    "a limit in another unit": (
        service(gateway={"limits": {"maxBodyMiB": "64Mi"}}),
        ("spec.gateway.limits.maxBodyMiB", "string", "integer"),
    ),
    "a lease that ends at once": (
        service(worker={"limits": {"leaseSeconds": 5}}),
        ("spec.worker.limits.leaseSeconds", "5", "greater than or equal to 6"),
    ),
    "the engine's command": (
        service(**engine_container(command=["sh"])),
        ("spec.worker.template.spec.containers[0].command", "is Pointsman's", "spec.engine.image"),
    ),
    "the engine's args": (
        service(**engine_container(args=["--port=9", "--dtype=auto"])),
        ("containers[0].args", "--port=9", "move", "to spec.engine.args"),
    ),
    "GPUs that budgets do not count": (
        service(**engine_container(resources={"limits": {"nvidia.com/gpu": 8}})),
        ("template.spec.containers[0].resources", "nvidia.com/gpu of container 'engine'", "is not counted by budgets"),
    ),
    "GPUs that are only requested": (
        service(**engine_container(resources={"requests": {"nvidia.com/gpu": "8"}})),
        ("containers[0].resources", "nvidia.com/gpu of container 'engine'", "leave it out"),
    ),
    "a start without time": (
        service(worker={"startupTimeoutSeconds": 0}),
        ("spec.worker.startupTimeoutSeconds", "0", "greater than or equal to 1"),
    ),
    "environment that is ours": (
        service(**engine_container(env=[{"name": "A"}, {"name": "POINTSMAN_NATS_URL", "value": "x"}])),
        ("containers[0].env", "POINTSMAN_NATS_URL", "is set by Pointsman", "leave it out"),
    ),
    "environment that sets an owned option": (
        service(**engine_container(env=[{"name": "VLLM_NIXL_SIDE_CHANNEL_PORT", "value": "1"}])),
        ("VLLM_NIXL_SIDE_CHANNEL_PORT", "is set by Pointsman"),
    ),
    "environment that opens the admin API": (
        service(**engine_container(env=[{"name": "VLLM_SERVER_DEV_MODE", "value": "1"}])),
        ("VLLM_SERVER_DEV_MODE", "is set by Pointsman"),
    ),
    "a label of ours": (
        service(worker={"template": {"metadata": {"labels": {"pointsman.dev/role": "decode"}}}}),
        ("template.metadata.labels", "pointsman.dev/role", "belongs to Pointsman"),
    ),
    "an annotation of ours": (
        service(worker={"template": {"metadata": {"annotations": {"pointsman.dev/x": "y"}}}}),
        ("template.metadata.annotations", "pointsman.dev/x", "belongs to Pointsman"),
    ),
    "a restart policy": (
        service(worker={"template": {"spec": {"restartPolicy": "Never"}}}),
        ("template.spec.restartPolicy", "restartPolicy is Never", "leave it out"),
    ),
    "service links": (
        service(worker={"template": {"spec": {"enableServiceLinks": True}}}),
        ("template.spec.enableServiceLinks", "enableServiceLinks is true", "leave the field out"),
    ),
    "a grace period": (
        service(worker={"template": {"spec": {"terminationGracePeriodSeconds": 5}}}),
        ("terminationGracePeriodSeconds is 5", "set spec.drain.timeoutSeconds instead"),
    ),
    "a policy of an unknown mode": (
        policy(mode="On"),
        ("spec.mode", '"On"', '"Shadow"', '"Approve"', '"Active"', '"External"'),
    ),
    "a policy without objectives": (
        merged(policy(), {"spec": {"objectives": None}}),
        ("spec.objectives", "Required value"),
    ),
    "no time to the first token": (
        policy(objectives={"ttftMs": 0}),
        ("spec.objectives.ttftMs", "0", "should be greater than 0"),
    ),
    "an attainment of more than all": (
        policy(objectives={"attainment": 95}),
        ("spec.objectives.attainment", "95", "should be less than 1"),
    ),
    "a budget upside down": (
        policy(budget={"maxGpus": 2, "minGpus": 4}),
        ("spec.budget", "minGpus 4 is above maxGpus 2", "write minGpus <= maxGpus"),
    ),
    "a Prometheus without its address": (
        policy(metrics={"source": "Prometheus"}),
        ("spec.metrics", "source is Prometheus, so prometheusUrl is required", "write the address"),
    ),
    "a Secret that nobody needs": (
        policy(metrics={"prometheusSecretRef": {"name": "pointsman-prometheus"}}),
        ("spec.metrics", "prometheusSecretRef is set, so prometheusUrl is required", "write the address"),
    ),
    "a user twice": (
        policy(
            metrics={
                "prometheusUrl": "https://u:p@prometheus",
                "prometheusSecretRef": {"name": "pointsman-prometheus"},
            }
        ),
        ("spec.metrics", "prometheusUrl has a user and prometheusSecretRef is set", "move user and password"),
    ),
    "an address that is none": (
        policy(metrics={"prometheusUrl": "prometheus:9090"}),
        ("spec.metrics.prometheusUrl", "prometheus:9090"),
    ),
    "two performance tables": (
        policy(performance={"table": {"model": "m", "gpu": "h100_sxm"}, "configMap": {"name": "chat-table"}}),
        ("spec.performance", "table and configMap are both set", "write one of them"),
    ),
    "an unknown source": (
        policy(metrics={"source": "Graphite"}),
        ("spec.metrics.source", "Graphite", '"Direct"', '"Prometheus"'),
    ),
    "a season that YAML 1.1 reads as a boolean": (
        policy(forecast={"seasonality": False}),
        ("spec.forecast.seasonality",),
    ),
    "a season there is not": (
        policy(forecast={"seasonality": "Off"}),
        ("spec.forecast.seasonality", "Off", '"Auto"', '"None"'),
    ),
    "convertible decode workers, which are not built": (
        policy(actions={"convertibleDecode": {"enabled": True}}),
        ("spec.actions.convertibleDecode", "is not built yet", "leave convertibleDecode out"),
    ),
    "a misspelt action": (policy(actions={"roleSwich": {}}), ('unknown field "spec.actions.roleSwich"',)),
    "a plan that empties a pool": (
        plan(pools={"decode": {"replicas": 0}}),
        ("spec.pools.decode.replicas", "greater than or equal to 1"),
    ),
    "a rollout, which is not built": (
        service(rollout={"maxSurge": 1}),
        ("spec.rollout", "rollout is not built yet", "leave rollout out"),
    ),
    "an unknown field": (service(modle={}), ('unknown field "spec.modle"',)),
    "a role there is not": (
        pool(spec={"role": "Embed"}, metadata={"name": "chat-embed"}),
        ("spec.role", "'Embed' is no role", "write Prefill, Decode or Encode"),
    ),
    "a pool of another name": (
        pool(metadata={"name": "mine"}),
        ("metadata.name is mine", "the Prefill pool of service chat is named chat-prefill"),
    ),
    "a switch to the same role": (
        switch(to="Decode"),
        ("spec.to", "from and to are both Decode", "from one role to the other"),
    ),
    "a switch to a role there is not": (
        switch(to="Embed"),
        ("spec.to", "'Embed' is no role", "write Prefill or Decode"),
    ),
    "a switch from a role there is not": (
        switch(**{"from": "Embed"}),
        ("spec.from", "'Embed' is no role", "write Prefill or Decode"),
    ),
    "a switch into Encode": (
        switch(to="Encode"),
        ("spec.to", "a worker cannot switch to or from the role Encode", "change spec.pools.encode.replicas instead"),
    ),
    "a switch out of Encode": (
        switch(**{"from": "Encode"}),
        ("spec.from", "a worker cannot switch to or from the role Encode", "change spec.pools.encode.replicas"),
    ),
    "a plan that switches into Encode": (
        plan(switches=[{"from": "Decode", "to": "Encode", "count": 1}]),
        ("spec.switches[0].to", "a worker cannot switch to or from the role Encode"),
    ),
    "a plan that switches out of Encode": (
        plan(switches=[{"from": "Encode", "to": "Decode", "count": 1}]),
        ("spec.switches[0].from", "a worker cannot switch to or from the role Encode"),
    ),
    "a pool of encode workers without encode": (
        service(pools={"encode": {"replicas": 2}}),
        (
            "spec.pools.encode",
            "pools.encode has 2 encode workers and encode is unset",
            "write encode: {} as well",
        ),
    ),
    "more encode workers than the maximum": (
        service(encode={}, pools={"encode": {"replicas": 9, "maxReplicas": 8}}),
        ("spec.pools.encode.replicas", "replicas is 9", "from minReplicas 0 to maxReplicas 8"),
    ),
    "a minimum of encode workers above the maximum": (
        service(encode={}, pools={"encode": {"minReplicas": 4, "maxReplicas": 2}}),
        ("spec.pools.encode.minReplicas", "minReplicas 4 is above maxReplicas 2"),
    ),
    "the flag that makes an encode worker": (
        service(encode={"args": ["--no_mm_encoder_only"]}),
        ("spec.encode.args", '["--no-mm-encoder-only"] is set by Pointsman', "leave it out"),
    ),
    "a domain with a scheme": (
        service(multimodal={"allowedDomains": ["example.com", "https://example.com"]}),
        ("spec.multimodal.allowedDomains[1]", "'https://example.com' is not a valid domain", "e.g. images.example.com"),
    ),
    "no image at all": (
        service(multimodal={"maxImages": 0}),
        ("spec.multimodal.maxImages", "0", "greater than or equal to 1"),
    ),
    "a switch that asks for approval, which is not built": (
        switch(approval={"required": True}),
        ("spec.approval", "approval is not built yet", "leave approval out"),
    ),
    "a pool of nothing": (
        pool(spec={"replicas": 0}),
        ("spec.replicas", "replicas is 0; write 1 or more", "only an Encode pool may be empty"),
    ),
}


BAD |= {
    "a type of numbers that the elastic engine does not have": (
        group(engine={"args": ["--dtype=float16"]}),
        ("spec.engine.args", '["--dtype=float16"] is not supported', "--dtype=bfloat16"),
    ),
    "a flag that the instances do not know": (
        group(engine={"args": ["--hf_overrides={}", "--max-model-len=9", "--quant=awq", "-tp=2"]}),
        (
            "spec.engine.args",
            '["--hf-overrides", "--quant", "-tp"] is not supported by the elastic engine; leave it out',
        ),
    ),
    "a type of numbers apart from its flag": (
        group(engine={"args": ["--dtype", "float32"]}),
        ("args has --dtype and its value apart", "--dtype=bfloat16"),
    ),
    "bounds of instances that contradict each other": (
        group(instances={"replicas": 2, "minReplicas": 3, "maxReplicas": 2}),
        ("minReplicas 3 is above maxReplicas 2", "write minReplicas <= replicas <= maxReplicas"),
    ),
    "instances outside of their bounds": (
        group(instances={"replicas": 5, "maxReplicas": 4}),
        ("replicas is 5", "write a number from minReplicas 1 to maxReplicas 4"),
    ),
    "a degree that is never reached": (
        group(instances={"replicas": 2, "maxReplicas": 2}, parallelism={"maxDegree": 4}),
        ("parallelism.maxDegree is 4 and instances.maxReplicas is 2", "write at most as many"),
    ),
    "a group's name of 41 characters": (group("a" * 41), ("(41 characters)", "write at most 40")),
    "a group's name that begins with a digit": (group("8b"), ("metadata.name is '8b'", "begins with a letter")),
    "fewer GPUs than share the model of an instance": (
        group(instance={"tensorParallel": 2}),
        ("spec.instance.gpus", "gpus is 1 and tensorParallel is 2; write the same number, or gpus: 0 for CPU"),
    ),
    "more GPUs than a node has": (
        group(instance={"gpus": 16, "tensorParallel": 16}),
        ("spec.instance.tensorParallel", "less than or equal to 8"),
    ),
    "a least degree above the largest": (
        group(parallelism={"minDegree": 3, "maxDegree": 2}),
        ("spec.parallelism.minDegree", "minDegree is 3; write at most maxDegree, which is 2"),
    ),
    "a least degree above the default": (
        group(parallelism={"minDegree": 5}),
        ("minDegree is 5; write at most maxDegree, which is 4",),
    ),
    "a plan of a group with pools": (
        plan(serviceRef={"kind": "ElasticGroup"}, instances={"replicas": 2}),
        ("serviceRef.kind is ElasticGroup; write instances, and no pools, routing or switches",),
    ),
    "a plan of a service with instances": (
        plan(instances={"replicas": 2}),
        ("serviceRef.kind is LLMService; write pools, and no instances",),
    ),
    **{
        f"{name}, in a group": (of_group, tuple(word.replace("spec.worker.", "spec.instance.") for word in words))
        for name, (manifest, words) in BAD.items()
        if (of_group := as_group(manifest)) is not None and "name" not in name
    },
    **{
        f"{name}, of encode workers": (
            of_encode,
            tuple(word.replace("spec.worker.", "spec.encode.") for word in words),
        )
        for name, (manifest, words) in BAD.items()
        if (of_encode := as_encode(manifest)) is not None
    },
    "a setting that instances of a group do not have": (
        group(instance={"template": engine_template("POINTSMAN_INPUT_BROADCAST_MODE", "auto")}),
        ("spec.instance.template", "containers[0].env", '["POINTSMAN_INPUT_BROADCAST_MODE"]', "is set by Pointsman"),
    ),
    "an owned flag, in a group": (group(engine={"args": ["--port=9"]}), ("--port", "is set by Pointsman")),
}


async def test_the_error_about_args_in_a_groups_template_names_fields_of_a_group(dry: Api) -> None:
    container = {"name": "engine", "args": ["--dtype=auto"]}
    refusal = await dry.refusal(group(instance={"template": {"spec": {"containers": [container]}}}))
    assert "move" in refusal and "to spec.engine.args" in refusal
    assert "spec.encode" not in refusal


@pytest.mark.parametrize(("manifest", "words"), BAD.values(), ids=BAD.keys())
async def test_what_is_wrong_is_refused_with_field_value_and_what_is_right(
    dry: Api, manifest: dict[str, Any], words: tuple[str, ...]
) -> None:
    refusal = await dry.refusal(manifest)
    for word in words:
        assert word in refusal


@pytest.mark.parametrize(
    "argument",
    [
        "--kv-transfer-config={}",
        "--kv_transfer_config",
        "--kv-transfer-config.kv_role=kv_producer",
        "--kv_transfer-config.kv_connector_extra_config.x+=1",
        "--kv-tr={}",
        "--port=9",
        "--por",
        "--no-enable-prefix-caching",
        "--no_enable_prefix_caching",
        "-n2",
        "-dp=2",
        "--config=/etc/vllm.yaml",
    ],
)
async def test_an_owned_flag_is_refused_by_name_in_every_spelling(dry: Api, argument: str) -> None:
    refusal = await dry.refusal(service(engine={"args": ["--dtype=auto", argument, "7"]}))
    assert "spec.engine.args" in refusal
    name = argument.split("=")[0].split(".")[0].replace("_", "-")
    assert f'["{name}"] is set by Pointsman' in refusal


async def test_scale_empties_a_pool_of_encode_workers_and_no_other(api: Api) -> None:
    await api.create(pool())
    await api.create(pool(spec={"role": "Encode"}, metadata={"name": "chat-encode"}))
    api.kubectl("scale", "wpool/chat-encode", "--replicas=0")
    assert api.kubectl("get", "wpool", "chat-encode", "-o", "jsonpath={.spec.replicas}") == "0"
    refusal = await api.refused_change(pool(), {"replicas": 0})
    assert "replicas is 0; write 1 or more" in refusal


async def test_the_api_server_and_the_operator_know_the_same_owned_flags(dry: Api) -> None:
    arguments = [*OWNED_FLAGS, "-dpl", "-r", "--model-impl", "--max-num-seqs", "--enforce-eager"]
    refusal = await dry.refusal(service(engine={"args": arguments}))
    owned = [argument for argument in arguments if owned_flag(argument)]
    assert f"{json.dumps(owned)} is set by Pointsman" in refusal


APPROVED: Final = {"approval": {"decision": "Denied", "by": "ann"}}
NOT_YET: Final = ("cannot be changed yet", "another name")
WHOLE_PLAN: Final = ("a plan cannot be changed but for approval.decision",)

# name of the case: (what is there, changes that are made, the change that is refused, words of the refusal)
FIXED: dict[str, tuple[dict[str, Any], tuple[Change, ...], Change, tuple[str, ...]]] = {
    "a model": (service(), (), {"model": {"source": "file:///other"}}, ("spec.model", *NOT_YET)),
    "an engine": (service(), (), {"engine": {"image": "other"}}, ("spec.engine", *NOT_YET)),
    "the GPUs of a worker": (service(), (), {"worker": {"gpus": 2}}, ("spec.worker.gpus", *NOT_YET)),
    "the model of a group": (group(), (), {"model": {"source": "file:///other"}}, ("spec.model", *NOT_YET)),
    "the engine of a group": (group(), (), {"engine": {"image": "other"}}, ("spec.engine", *NOT_YET)),
    "the instances of a group": (group(), (), {"instance": {"gpus": 0}}, ("spec.instance", *NOT_YET)),
    "the degrees of a group": (group(), (), {"parallelism": {"maxDegree": 2}}, ("spec.parallelism", *NOT_YET)),
    "the service of a pool": (
        pool(),
        (),
        {"serviceRef": {"name": "x"}},
        ("serviceRef is chat and cannot become x; a pool stays with its service",),
    ),
    "the role of a pool": (pool(), (), {"role": "Decode"}, ("role is Prefill and cannot become Decode",)),
    "a switch": (
        switch(),
        (),
        {"drainFirst": False},
        ("spec cannot be changed; delete this switch and create another one",),
    ),
    "the pools of a plan": (plan(), (), {"pools": {"prefill": {"replicas": 9}}}, WHOLE_PLAN),
    "the instances of a plan": (group_plan(), (), {"instances": {"replicas": 9}}, WHOLE_PLAN),
    "the change of a plan": (plan(), (), {"change": "1P2D -> 9P9D"}, WHOLE_PLAN),
    "the GPUs of a plan": (plan(), (), {"gpus": 1}, WHOLE_PLAN),
    "the attainment of a plan": (plan(), (), {"attainment": "100%"}, WHOLE_PLAN),
    "the switches of a plan": (plan(), (), {"switches": []}, WHOLE_PLAN),
    "the message of a plan": (plan(), (), {"message": "because"}, WHOLE_PLAN),
    "the inputs of a plan": (plan(), (), {"inputs": [{"name": "arrivals_per_s", "value": 4}]}, WHOLE_PLAN),
    "the time of a plan": (plan(), (), {"expiresAt": "2027-01-01T00:00:00Z"}, WHOLE_PLAN),
    "whether a plan needs approval": (
        plan(),
        (),
        {"approval": {"required": False}},
        ("approval.required is the planner's and cannot be changed",),
    ),
    **{
        f"an approval that was given: {name}": (
            plan(),
            (APPROVED,),
            {"approval": second},
            ("approval.decision is Denied already and stays",),
        )
        for name, second in {
            "the other one": {"decision": "Approved"},
            "none": {"decision": None},
            "another person": {"by": "bob"},
        }.items()
    },
}


@pytest.mark.parametrize(("manifest", "before", "change", "words"), FIXED.values(), ids=FIXED.keys())
async def test_what_is_fixed_cannot_be_changed(
    api: Api, manifest: dict[str, Any], before: tuple[Change, ...], change: Change, words: tuple[str, ...]
) -> None:
    refusal = await _refused_change(api, manifest, before, change)
    for word in words:
        assert word in refusal


async def _refused_change(api: Api, manifest: dict[str, Any], before: tuple[Change, ...], change: Change) -> str:
    await api.create(manifest)
    for allowed in before:
        await api.change(manifest, allowed)
    return await api.refused_change(manifest, change)


async def test_scaling_draining_and_pausing_can_be_changed(api: Api) -> None:
    made = service(pools={"decode": {"maxReplicas": 8}})
    await api.create(made)
    await api.change(made, {"pools": {"decode": {"replicas": 2}}})
    await api.change(made, {"drain": {"timeoutSeconds": 5}, "paused": True, "gateway": {"replicas": 2}})


def rules(schema: dict[str, Any], path: str = "") -> Iterator[re.Pattern[str]]:
    """For each rule of a schema, what a refusal by it looks like: the field's path, and the message around values."""
    for rule in schema.get("x-kubernetes-validations", ()):
        if "message" in rule:
            message = re.escape(rule["message"])
        else:
            text = rule["messageExpression"].partition(".format(")[0].strip("'").replace("\\'", "'")
            message = ".*".join(re.escape(part.replace("%%", "%")) for part in text.split("%s"))
        yield re.compile(path + re.escape(rule.get("fieldPath", "")) + ".*" + message, re.DOTALL)
    for name, part in schema.get("properties", {}).items():
        yield from rules(part, f"{path}{re.escape('.') if path else ''}{re.escape(name)}")
    if "items" in schema:
        yield from rules(schema["items"], path + r"\[\d+\]")


async def test_every_rule_of_the_crds_refuses_one_of_these_cases(kube: Kube, control_plane: ControlPlane) -> None:
    tried = Api(kube, control_plane, "default")
    said = [await tried.refusal(manifest) for manifest, _ in BAD.values()]
    said.append(await tried.refusal(service(engine={"args": ["--port=9"]})))
    for number, (manifest, before, change, _) in enumerate(FIXED.values()):
        namespace = f"rules-{number}-{secrets.token_hex(4)}"
        await kube.create(resources.NAMESPACES, {"metadata": {"name": namespace}})
        said.append(await _refused_change(Api(kube, control_plane, namespace), manifest, before, change))
        await kube.delete(resources.NAMESPACES, namespace)
    silent = [
        f"{path.stem}: {rule.pattern}"
        for path in CRDS
        for rule in rules(yaml.safe_load(path.read_text())["spec"]["versions"][0]["schema"]["openAPIV3Schema"])
        if not any(rule.search(refusal) for refusal in said)
    ]
    assert silent == [], "write a case for each into BAD or FIXED"


async def test_kubectl_scale_works_on_a_pool_and_shows_its_selector(api: Api) -> None:
    await api.create(pool())
    api.kubectl("scale", "wpool/chat-prefill", "--replicas=3")
    selector = "pointsman.dev/service=chat,pointsman.dev/role=prefill"
    status = json.dumps({"status": {"existing": 2, "selector": selector}})
    api.kubectl("patch", "wpool", "chat-prefill", "--subresource=status", "--type=merge", f"--patch={status}")
    scale = json.loads(api.kubectl("get", "wpool", "chat-prefill", "--subresource=scale", "-o", "json"))
    assert scale["spec"]["replicas"] == 3
    assert scale["status"] == {"replicas": 2, "selector": selector}


async def test_the_server_fills_in_the_defaults_the_models_have(api: Api) -> None:
    manifest = service()
    await api.create(manifest)
    stored = json.loads(api.kubectl("get", "llms", "chat", "-o", "json"))
    assert LLMService.model_validate(stored).spec == LLMService.model_validate(manifest).spec
    assert stored["spec"]["pools"]["decode"] == {"replicas": 1, "minReplicas": 1, "maxReplicas": 1000}


async def test_kubectl_get_shows_what_a_person_looks_for(api: Api) -> None:
    await api.create(service())
    condition = {
        "type": "Ready",
        "status": "False",
        "reason": "WorkersStarting",
        "message": "2 of 3 workers serve",
        "lastTransitionTime": "2026-01-01T00:00:00Z",
    }
    status = {"status": {"summary": "1P1D", "endpoint": "http://chat-gateway/v1", "conditions": [condition]}}
    api.kubectl("patch", "llms", "chat", "--subresource=status", "--type=merge", f"--patch={json.dumps(status)}")
    header, row = api.kubectl("get", "pointsman").splitlines()[:2]
    assert header.split() == ["NAME", "WORKERS", "READY", "REASON", "ENDPOINT", "AGE"]
    assert row.split()[1:5] == ["1P1D", "False", "WorkersStarting", "http://chat-gateway/v1"]


async def test_a_template_keeps_the_fields_the_schema_does_not_know(api: Api) -> None:
    template = {"spec": {"containers": [{"name": "engine", "resources": {"limits": {"cpu": "2"}}}], "hostIPC": True}}
    await api.create(service(worker={"template": template}))
    stored = json.loads(api.kubectl("get", "llms", "chat", "-o", "json"))
    assert stored["spec"]["worker"]["template"] == template
