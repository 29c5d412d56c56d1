"""``python -m pointsman.operator.uninstall``: what the chart runs before it is deleted.

The operator is stopped first (it would put its finalizer back), then the finalizer is taken off every LLMService, so
that services can be deleted without an operator. No service is deleted and no worker is touched: they go on serving.
"""

import argparse
import asyncio
import logging
import os
import sys
import time
from collections.abc import Sequence
from typing import Any, Final

from pointsman.api.protocol.names import FINALIZER
from pointsman.kube.client import Kube
from pointsman.kube.errors import Conflict, KubeError, NotFound
from pointsman.kube.resources import DEPLOYMENTS, LLM_SERVICES, PODS
from pointsman.process.logs import configure_logs

log = logging.getLogger(__name__)

_POLL_S: Final = 0.5
_ATTEMPTS: Final = 5  # others may write a service between our read and our patch


async def stop_operator(kube: Kube, namespace: str, deployment: str, deadline_s: float) -> None:
    """Scale the operator to none and wait until its pods are gone, at most until ``deadline_s`` (monotonic).

    Raises TimeoutError.
    """
    try:
        found = await kube.patch(DEPLOYMENTS, deployment, namespace, {"spec": {"replicas": 0}})
    except NotFound:
        log.info("deployment does not exist", extra={"deployment": f"{namespace}/{deployment}"})
        return
    selector = ",".join(f"{key}={value}" for key, value in found["spec"]["selector"]["matchLabels"].items())
    while pods := (await kube.list(PODS, namespace, label_selector=selector)).items:
        if time.monotonic() >= deadline_s:
            raise TimeoutError(f"operator pods are still there: {', '.join(pod['metadata']['name'] for pod in pods)}")
        await asyncio.sleep(_POLL_S)
    log.info("deployment stopped", extra={"deployment": f"{namespace}/{deployment}"})


async def strip_finalizers(kube: Kube, watch_namespace: str | None) -> int:
    """Take our finalizer off all LLMServices (of one namespace, or of all). Returns of how many."""
    stripped = 0
    for service in (await kube.list(LLM_SERVICES, watch_namespace)).items:
        stripped += await _strip(kube, service)
    return stripped


async def _strip(kube: Kube, service: dict[str, Any]) -> bool:
    name, namespace = service["metadata"]["name"], service["metadata"]["namespace"]
    for last in (*(False,) * (_ATTEMPTS - 1), True):
        finalizers: list[str] = service["metadata"].get("finalizers") or []
        if FINALIZER not in finalizers:
            return False
        remaining = [finalizer for finalizer in finalizers if finalizer != FINALIZER]
        try:
            await kube.patch(
                LLM_SERVICES,
                name,
                namespace,
                {"metadata": {"finalizers": remaining}},
                resource_version=service["metadata"]["resourceVersion"],
            )
        except NotFound:
            return False
        except Conflict:
            if last:
                raise
            selector = f"metadata.name={name}"
            found = (await kube.list(LLM_SERVICES, namespace, field_selector=selector)).items
            if not found:
                return False
            service = found[0]
        else:
            log.info("finalizer removed", extra={"service": f"{namespace}/{name}"})
            return True
    return False


async def uninstall(
    namespace: str, deployment: str, watch_namespace: str | None, timeout_s: float, kubeconfig: str | None
) -> int:
    """Stop the operator, strip the finalizers. Returns how many services had one."""
    deadline_s = time.monotonic() + timeout_s
    async with await Kube.connect(kubeconfig, field_manager="pointsman-uninstall") as kube:
        await stop_operator(kube, namespace, deployment, deadline_s)
        return await strip_finalizers(kube, watch_namespace)


def main(arguments: Sequence[str] | None = None) -> int:
    """Returns 0, or 1 with a sentence on standard error."""
    parser = argparse.ArgumentParser(prog="python -m pointsman.operator.uninstall", description=__doc__)
    parser.add_argument("--namespace", required=True, help="namespace of the operator")
    parser.add_argument("--deployment", required=True, help="name of its Deployment")
    parser.add_argument("--watch-namespace", default="", help="the namespace it watched; empty: all")
    parser.add_argument(
        "--timeout-seconds", type=float, default=120, help="time to wait for the end of the operator's pods"
    )
    given = parser.parse_args(arguments)
    configure_logs("info", "text", {})
    try:
        count = asyncio.run(
            uninstall(
                given.namespace,
                given.deployment,
                given.watch_namespace or None,
                given.timeout_seconds,
                os.environ.get("KUBECONFIG"),
            )
        )
    except (KubeError, TimeoutError) as error:
        print(f"uninstall: {error}", file=sys.stderr)
        return 1
    print(f"{count} LLMServices can now be deleted without the operator; they continue to serve")
    return 0


if __name__ == "__main__":
    sys.exit(main())
