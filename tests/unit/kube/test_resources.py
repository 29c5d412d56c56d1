"""Paths of kinds, objects and subresources."""

import pytest

from pointsman.kube import resources
from pointsman.kube.resources import DEPLOYMENTS, LLM_SERVICES, NODES, PODS, ROLE_BINDINGS, Resource


@pytest.mark.parametrize(
    ("path", "expected"),
    [
        (PODS.path(), "/api/v1/pods"),
        (PODS.path("a"), "/api/v1/namespaces/a/pods"),
        (PODS.path("a", "b"), "/api/v1/namespaces/a/pods/b"),
        (PODS.path("a", "b", "status"), "/api/v1/namespaces/a/pods/b/status"),
        (NODES.path(), "/api/v1/nodes"),
        (NODES.path(None, "n"), "/api/v1/nodes/n"),
        (DEPLOYMENTS.path("a", "b"), "/apis/apps/v1/namespaces/a/deployments/b"),
        (LLM_SERVICES.path("a", "b"), "/apis/pointsman.dev/v1alpha1/namespaces/a/llmservices/b"),
        (
            ROLE_BINDINGS.path("a", "system:x"),
            "/apis/rbac.authorization.k8s.io/v1/namespaces/a/rolebindings/system:x",
        ),
        (PODS.path("a", "../../secrets/s"), "/api/v1/namespaces/a/pods/..%2F..%2Fsecrets%2Fs"),
    ],
)
def test_a_path_is_what_the_api_server_serves(path: str, expected: str) -> None:
    assert path == expected


def test_a_name_that_is_only_dots_cannot_climb_out_of_its_collection() -> None:
    with pytest.raises(ValueError, match="'\\.\\.'"):
        PODS.path("a", "..")


def test_what_names_nothing_is_refused() -> None:
    with pytest.raises(ValueError, match="pods 'b' needs a namespace"):
        PODS.path(None, "b")
    with pytest.raises(ValueError, match="nodes is cluster-scoped: no namespace, got 'a'"):
        NODES.path("a", "n")
    with pytest.raises(ValueError, match="pods/status needs a name"):
        PODS.path("a", None, "status")
    with pytest.raises(ValueError, match="'' is no name"):
        PODS.path("a", "")


def test_names_are_those_of_rbac_and_of_manifests() -> None:
    assert (str(DEPLOYMENTS), DEPLOYMENTS.api_version) == ("deployments.apps", "apps/v1")
    assert (str(PODS), PODS.api_version) == ("pods", "v1")


def test_no_two_kinds_share_a_path() -> None:
    kinds = [value for value in vars(resources).values() if isinstance(value, Resource)]
    assert len({kind.path() for kind in kinds}) == len(kinds) >= 15
