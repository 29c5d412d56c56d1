"""Quotas of a namespace, in force."""

from typing import Final

from fixtures.kube_calls import dry_create
from pointsman.kube.errors import Forbidden
from pointsman.kube.resources import Resource
from waiting import eventually

from .conftest import Cluster

QUOTAS: Final = Resource("", "v1", "resourcequotas", "ResourceQuota")
_POD_TEMPLATES: Final = Resource("", "v1", "podtemplates", "PodTemplate")


async def enforce_quota(cluster: Cluster, **hard: str) -> None:
    """Make the quota ``team`` and wait until it is enforced.

    The API server admits everything until a controller has written the quota's status and the API server has seen that.
    So the quota forbids pod templates too, which nobody needs, and one is tried.
    """
    body = {"metadata": {"name": "team"}, "spec": {"hard": {"count/podtemplates": "0", **hard}}}
    await cluster.kube.create(QUOTAS, body, cluster.namespace)
    pod = {"metadata": {"labels": {"app": "any"}}, "spec": {"containers": [{"name": "c", "image": "i"}]}}

    async def forbids() -> bool:
        try:
            await dry_create(
                cluster.kube, _POD_TEMPLATES, {"metadata": {"name": "tried"}, "template": pod}, cluster.namespace
            )
        except Forbidden as error:
            assert "exceeded quota: team" in str(error)
            return True
        return False

    await eventually(forbids, "the quota is enforced")
