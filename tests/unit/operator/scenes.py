"""Snapshots, workers and pools as the tests of decisions see them."""

from typing import Any

from pointsman.api.protocol.names import LANGUAGE_ROLES, Role
from pointsman.operator.core.snapshot import (
    Container,
    DrainReason,
    GatewayPod,
    Pool,
    Snapshot,
    Worker,
)
from unit.operator.world import KV, service, state


def worker(name: str = "chat-r-0", role: Role = Role.DECODE, **fields: Any) -> Worker:
    """A worker that serves; keyword arguments make it something else."""
    return Worker(
        **{
            "name": name,
            "uid": f"u-{name}",
            "resource_version": "1",
            "created_s": 0.0,
            "role": role,
            "revision": "r",
            "kv_compatibility": KV,
            "phase": "Running",
            "pod_ip": "127.0.0.9",
            "pod_ready": True,
            "routable_label": True,
            "verified_container": f"{role.label}/c",
            "container": Container(id="c", running=True),
            "state": state(name, role=role, verified=role),
            **fields,
        }
    )


def snapshot(*workers: Worker, **fields: Any) -> Snapshot:
    """A service with these workers and one gateway that uses none of them."""
    pools = {role: Pool(uid=role, resource_version="1", replicas=1, copied_replicas=1) for role in LANGUAGE_ROLES}
    gateways = (GatewayPod(name="g", ready=True, uses=frozenset()),)
    return Snapshot(
        **{"now_s": 100.0, "service": service(), "pools": pools, "gateways": gateways, "workers": workers, **fields}
    )


def leaving(role: Role = Role.DECODE, **fields: Any) -> Worker:
    """A worker whose drain began ten seconds ago."""
    told = {"drain_started_s": 90.0, "drain_reason": DrainReason.SCALE_DOWN, "routable_label": False}
    return worker(role=role, **{**told, **fields})
