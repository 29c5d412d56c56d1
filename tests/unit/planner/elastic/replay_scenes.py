"""An elastic group and its plan for replays."""

from collections.abc import Mapping
from typing import Any

PREFILLS = [
    {"degree": 1, "alphaMs": 5, "betaMsPerToken": 0.2, "gammaMsPerSquaredToken": 1e-6, "errorPercent": 3},
    {"degree": 2, "alphaMs": 7, "betaMsPerToken": 0.11, "gammaMsPerSquaredToken": 6e-7, "errorPercent": 3},
]


def group(**status: Any) -> dict[str, Any]:
    """As ``kubectl get eg long-chat -o yaml`` prints it."""
    return {
        "apiVersion": "pointsman.dev/v1alpha1",
        "kind": "ElasticGroup",
        "metadata": {"name": "long-chat", "namespace": "default", "uid": "u", "managedFields": []},
        "spec": {
            "model": {"source": "hf://test/tiny"},
            "instances": {"replicas": 1, "maxReplicas": 4},
            "parallelism": {"maxDegree": 2},
        },
        "status": {
            "instances": {"joined": 2}, "slots": {"total": 120_000, "free": 7}, "latencyModel": PREFILLS, **status
        },
    }  # fmt: skip


def plan(sequence: int, inputs: Mapping[str, float], name: str = "long-chat") -> dict[str, Any]:
    """One of the group's, as in a cluster."""
    return {
        "apiVersion": "pointsman.dev/v1alpha1",
        "kind": "Plan",
        "metadata": {"name": f"{name}-{sequence}", "namespace": "default", "uid": f"p{sequence}"},
        "spec": {
            "serviceRef": {"kind": "ElasticGroup", "name": name, "uid": "u"},
            "sequence": sequence, "mode": "Active", "observedAt": "2026-11-27T01:00:00Z", "changesLayout": True,
            "instances": {"replicas": 2}, "reason": "InstancesShort", "message": "x",
            "expiresAt": "2026-11-27T01:10:00Z",
            "inputs": [{"name": key, "value": f"{value:g}"} for key, value in inputs.items()],
        },
    }  # fmt: skip


STEP = {"stepSeconds": 0.01, "stepSecondsPerRequest": 0.001}
