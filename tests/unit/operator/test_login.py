"""Which API server kopf talks to."""

import kopf

from pointsman.operator.handlers import at_the_pods_server

POD = kopf.ConnectionInfo(server="https://kubernetes.default.svc", token="t", ca_path="/ca.crt")


def test_in_a_pod_it_is_the_server_that_the_kubelet_names_not_one_that_dns_must_find() -> None:
    told = {"KUBERNETES_SERVICE_HOST": "10.96.0.1", "KUBERNETES_SERVICE_PORT": "443"}
    found = at_the_pods_server(POD, told)
    assert found is not None
    assert (found.server, found.token, found.ca_path) == ("https://10.96.0.1:443", "t", "/ca.crt")
    sixth = at_the_pods_server(POD, told | {"KUBERNETES_SERVICE_HOST": "fd00::1"})
    assert sixth is not None
    assert sixth.server == "https://[fd00::1]:443"


def test_outside_of_a_pod_nothing_is_made_up() -> None:
    assert at_the_pods_server(None, {"KUBERNETES_SERVICE_HOST": "10.96.0.1", "KUBERNETES_SERVICE_PORT": "443"}) is None
    assert at_the_pods_server(POD, {}) is POD
