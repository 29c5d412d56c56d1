"""The gateway of a service: what the user may set of its pods and its Service, its number, why it is not ready."""

import copy
import re
from dataclasses import replace
from typing import Any

import pytest

from pointsman.api.protocol import names
from pointsman.api.v1alpha1.conditions import Reason
from pointsman.api.v1alpha1.gateway import GatewaySpec
from pointsman.operator.core.children import is_current, stamped, with_live_replicas
from pointsman.operator.core.gateway import gateway_objects
from pointsman.operator.core.gateway_status import Gateways, gateway_problems, gateway_ready
from pointsman.operator.core.install import Install
from pointsman.operator.core.problems import Verdict
from pointsman.operator.core.snapshot import GatewayDeployment, GatewayPod
from pointsman.operator.errors import Refused
from pointsman.operator.permissions import CLUSTER_RULES
from unit.operator.world import service, spec

INSTALL = Install(worker_image="worker:1", gateway_image="gateway:1", nats_url="nats://nats:4222")


def objects(**gateway: Any) -> dict[str, dict[str, Any]]:
    """The gateway's objects by kind; ``gateway``: fields of spec.gateway."""
    return {item["kind"]: item for item in gateway_objects(service(spec(gateway=gateway)), INSTALL)}


def pod(**template_spec: Any) -> dict[str, Any]:
    """The gateway's pod spec with fields of the user's template."""
    made = objects(replicas=1, template={"spec": template_spec})
    found: dict[str, Any] = made["Deployment"]["spec"]["template"]["spec"]
    return found


# --- placement ---


def test_a_gateway_takes_scheduling_from_its_template() -> None:
    scheduling = {
        "nodeSelector": {"pool": "llm"},
        "tolerations": [{"key": "dedicated", "value": "llm", "effect": "NoSchedule"}],
        "priorityClassName": "serving",
        "topologySpreadConstraints": [
            {"topologyKey": "kubernetes.io/hostname", "maxSkew": 1, "whenUnsatisfiable": "DoNotSchedule"}
        ],
    }
    assert scheduling.items() <= pod(**scheduling).items()


def test_a_spread_that_others_add_costs_no_write() -> None:
    """The API server merges the list by topologyKey, so an apply would not remove theirs, at every look."""
    spread = {"topologyKey": "kubernetes.io/hostname", "maxSkew": 1, "whenUnsatisfiable": "DoNotSchedule"}
    made = objects(template={"spec": {"topologySpreadConstraints": [spread]}})["Deployment"]
    live = copy.deepcopy(made)
    theirs = {**spread, "topologyKey": "topology.kubernetes.io/zone"}
    live["spec"]["template"]["spec"]["topologySpreadConstraints"].append(theirs)
    assert is_current(live, made)


def test_resources_and_environment_are_merged_into_the_gateways_container() -> None:
    more = {
        "name": "gateway",
        "resources": {"limits": {"memory": "2Gi"}, "requests": {"cpu": "2"}},
        "env": [{"name": "HTTPS_PROXY", "value": "http://proxy:3128"}],
    }
    (container,) = pod(containers=[more])["containers"]
    (plain,) = pod()["containers"]
    assert container["resources"] == {"limits": {"memory": "2Gi"}, "requests": {"cpu": "2", "memory": "512Mi"}}
    assert container["env"] == [*plain["env"], *more["env"]]
    assert {**container, "resources": None, "env": None} == {**plain, "resources": None, "env": None}


def test_annotations_and_labels_reach_the_pods_and_the_selector_stays() -> None:
    meta = {"labels": {"team": "search"}, "annotations": {"sidecar.istio.io/inject": "false"}}
    deployment = objects(template={"metadata": meta})["Deployment"]["spec"]
    found = deployment["template"]["metadata"]
    assert found["annotations"] == meta["annotations"]
    assert found["labels"].items() >= {**meta["labels"], **deployment["selector"]["matchLabels"]}.items()
    assert "team" not in deployment["selector"]["matchLabels"]


@pytest.mark.parametrize(
    "field", ["args", "command", "envFrom", "lifecycle", "livenessProbe", "ports", "readinessProbe", "startupProbe"]
)
def test_what_pointsman_sets_in_the_gateways_container_is_refused_by_name(field: str) -> None:
    with pytest.raises(Refused, match=rf"spec.gateway.template.*{field} is set by Pointsman") as refused:
        pod(containers=[{"name": "gateway", field: []}])
    assert refused.value.reason is Reason.TEMPLATE_REFUSED
    assert len(pod(containers=[{"name": "beside", field: []}])["containers"]) == 2


def test_a_template_that_cannot_be_merged_is_refused_with_its_own_path() -> None:
    with pytest.raises(Refused, match=re.escape("spec.gateway.template: spec.volumes[0] has no name")):
        pod(volumes=[{"emptyDir": {}}])


# --- the Service ---


def test_the_service_takes_what_a_cloud_asks_for_in_one_object_from_its_creation_on() -> None:
    written = {
        "type": "LoadBalancer",
        "annotations": {"example.com/load-balancer-scheme": "internal"},
        "loadBalancerClass": "example.com/internal",
        "loadBalancerSourceRanges": ["10.0.0.0/8", "fd00::/8"],
        "externalTrafficPolicy": "Local",
        "ipFamilyPolicy": "PreferDualStack",
    }
    made = objects(service=written)["Service"]
    assert made["metadata"]["annotations"].items() >= written.pop("annotations").items()  # type: ignore[attr-defined]
    assert made["spec"].items() >= written.items()


# --- rights ---


def test_a_gateways_rights_are_a_role_of_its_service_and_no_more_than_the_operator_has() -> None:
    made = objects()
    role, binding = made["Role"], made["RoleBinding"]
    assert binding["roleRef"] == {"apiGroup": "rbac.authorization.k8s.io", "kind": "Role", "name": "chat-gateway"}
    assert role["metadata"]["ownerReferences"][0]["uid"] == "u-chat"
    held = {(rule.group, kind, verb) for rule in CLUSTER_RULES for kind in rule.resources for verb in rule.verbs}
    given = {
        (group, kind, verb)
        for rule in role["rules"]
        for group in rule["apiGroups"]
        for kind in rule["resources"]
        for verb in rule["verbs"]
    }
    assert given <= held, "the API server would refuse the Role"
    assert {verb for _, _, verb in given} == {"list", "watch"}


def test_one_gateway_is_evicted_at_a_time_and_the_only_one_may_be() -> None:
    budget = objects()["PodDisruptionBudget"]["spec"]
    assert budget["maxUnavailable"] == 1
    labels = objects()["Deployment"]["spec"]["template"]["metadata"]["labels"]
    assert budget["selector"]["matchLabels"].items() <= labels.items()


# --- how many ---


def test_two_gateways_are_the_default_and_a_stored_one_stays() -> None:
    assert objects()["Deployment"]["spec"]["replicas"] == 2
    assert objects(replicas=1)["Deployment"]["spec"]["replicas"] == 1
    assert "replicas" not in GatewaySpec().manifest(), "an absent number is stored as absent"


def live(replicas: int, of: dict[str, Any]) -> dict[str, Any]:
    """A Deployment that was made of a manifest and scaled since."""
    return {
        **of,
        "metadata": {**of["metadata"], "resourceVersion": "42", "uid": "u-d"},
        "spec": {**of["spec"], "replicas": replicas},
        "status": {},
    }


def test_a_number_that_an_autoscaler_wrote_is_left_alone() -> None:
    made = objects(replicas=2)["Deployment"]
    scaled = live(5, made)
    assert is_current(scaled, with_live_replicas(made, scaled)), "no write"
    another = objects(replicas=2, limits={"maxBodyMiB": 64})["Deployment"]
    desired = with_live_replicas(another, scaled)
    assert not is_current(scaled, desired)
    assert desired["spec"]["replicas"] == 5
    assert desired["metadata"]["resourceVersion"] == "42", "one that it writes meanwhile is not put back"


def test_a_changed_number_in_the_spec_is_written_once() -> None:
    scaled = live(5, objects(replicas=2)["Deployment"])
    changed = objects(replicas=3)["Deployment"]
    assert with_live_replicas(changed, scaled) == changed
    after = live(6, changed)
    assert is_current(after, with_live_replicas(changed, after))


def test_a_deployment_of_an_earlier_version_gets_the_specs_number() -> None:
    made = objects(replicas=2)["Deployment"]
    earlier = live(2, stamped({**made, "metadata": {**made["metadata"], "annotations": {}}}))
    assert with_live_replicas(made, earlier) == made


def test_objects_without_a_copied_number_are_compared_as_they_are() -> None:
    budget = objects()["PodDisruptionBudget"]
    assert with_live_replicas(budget, {**budget, "metadata": {**budget["metadata"], "resourceVersion": "1"}}) == budget
    assert names.COPIED_REPLICAS_ANNOTATION not in budget["metadata"]["annotations"]


# --- why it is not ready ---

GOOD = GatewayPod(name="g-0", ready=True)
STARTING = GatewayPod(name="g-1", ready=False)
UNPLACED = replace(STARTING, unschedulable="0/2 nodes are available: 2 node(s) had untolerated taint(s)")
CRASHING = replace(STARTING, waiting_reason="CrashLoopBackOff", message="OSError: no space")
QUOTA = 'pods "chat-gateway-5d9-x" is forbidden: failed quota: team: must specify limits.cpu'


def verdict(
    *pods: GatewayPod, replicas: int | None = None, desired: int | None = None, refused: str | None = None
) -> tuple[Verdict, list[Reason]]:
    """GatewayReady, and the reasons of the problems; ``replicas`` of the spec, ``desired`` of the Deployment."""
    of = GatewaySpec(replicas=replicas)
    deployment = GatewayDeployment(replicas=of.desired_replicas if desired is None else desired, refused=refused)
    gateways = Gateways(spec=of, deployment=deployment, pods=pods)
    problems = gateway_problems(gateways)
    return gateway_ready(gateways, problems), [problem.reason for problem in problems]


def test_a_gateway_without_a_node_says_so_in_the_schedulers_words() -> None:
    found, problems = verdict(UNPLACED, replicas=1)
    assert (found.status, found.reason, problems) == (False, Reason.UNSCHEDULABLE, [Reason.UNSCHEDULABLE])
    assert "0 of 1 gateway is ready; gateway g-1 waits for a node: 0/2 nodes" in found.message


def test_a_gateway_that_a_quota_refuses_says_so_in_the_api_servers_words() -> None:
    found, problems = verdict(replicas=1, refused=QUOTA)
    assert (found.status, found.reason, problems) == (False, Reason.GATEWAY_REFUSED, [Reason.GATEWAY_REFUSED])
    assert QUOTA in found.message


@pytest.mark.parametrize("refused", [None, QUOTA])
def test_the_second_gateway_is_made_only_where_the_cluster_has_room(refused: str | None) -> None:
    pods = (GOOD, UNPLACED) if refused is None else (GOOD,)
    found, problems = verdict(*pods, refused=refused)
    assert (found.status, problems) == (True, [])
    assert "1 of 2 gateways are ready" in found.message
    assert "one is enough, because spec.gateway.replicas is not set" in found.message


def test_a_second_gateway_that_somebody_asked_for_is_missed() -> None:
    found, problems = verdict(GOOD, UNPLACED, replicas=2)
    assert (found.status, problems) == (False, [Reason.UNSCHEDULABLE])


def test_without_any_gateway_the_default_does_not_hide_what_is_wrong() -> None:
    found, problems = verdict(UNPLACED, replace(UNPLACED, name="g-2"))
    assert (found.status, found.reason) == (False, Reason.UNSCHEDULABLE)
    assert problems == [Reason.UNSCHEDULABLE] * 2


def test_a_second_gateway_that_crashes_is_a_failure() -> None:
    found, problems = verdict(GOOD, CRASHING)
    assert (found.status, found.reason, problems) == (False, Reason.GATEWAY_NOT_READY, [Reason.GATEWAY_NOT_READY])
    assert "OSError: no space" in found.message


def test_a_second_gateway_that_starts_is_awaited() -> None:
    found, problems = verdict(GOOD, STARTING)
    assert (found.status, found.reason, problems) == (False, Reason.GATEWAY_STARTING, [])


def test_readiness_counts_what_the_deployment_asks_for() -> None:
    assert verdict(GOOD, STARTING, replicas=1, desired=2)[0].message == "1 of 2 gateways are ready"
    assert verdict(GOOD, replicas=3, desired=1)[0].status


def test_a_deployment_that_somebody_scaled_to_none_is_said() -> None:
    found, _ = verdict(replicas=1, desired=0)
    assert (found.status, found.reason) == (False, Reason.GATEWAY_NOT_READY)
    assert "scaled to 0" in found.message
