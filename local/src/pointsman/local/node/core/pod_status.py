"""A pod's status, as a kubelet writes it, from what the node knows."""

from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from typing import Any

from pointsman.local.node.core.types import ContainerView, Finished, Object, PodView, Running, Waiting


def pod_status(pod: Object, view: PodView, now: datetime) -> dict[str, Any]:
    """The ``status`` to write. ``pod`` is the object as read: its conditions give transition times and gates.

    The condition PodScheduled is the scheduler's, those of readiness gates are their controllers': neither is here.
    """
    return {
        "observedGeneration": pod["metadata"].get("generation", 1),
        "phase": phase(pod, view),
        "startTime": _time(view.started_at),
        "hostIP": view.host_ip,
        "hostIPs": [{"ip": view.host_ip}],
        "podIP": view.pod_ip,
        "podIPs": [{"ip": view.pod_ip}],
        "qosClass": (pod.get("status") or {}).get("qosClass", "BestEffort"),
        "conditions": _conditions(pod, view, now),
        **({"initContainerStatuses": _statuses(view.init_containers)} if view.init_containers else {}),
        "containerStatuses": _statuses(view.containers),
    }


def phase(pod: Object, view: PodView) -> str:
    """Pending, Running, Succeeded or Failed; a pod that may restart is never finished unless it is being deleted."""
    policy = pod["spec"].get("restartPolicy", "Always")
    init = [container.state for container in view.init_containers]
    states = [container.state for container in view.containers]
    if any(isinstance(state, Finished) and state.exit_code != 0 for state in init) and policy == "Never":
        return "Failed"
    if all(isinstance(state, Finished) for state in states) and (policy != "Always" or view.terminating):
        failed = any(isinstance(state, Finished) and state.exit_code != 0 for state in states)
        if not failed:
            return "Succeeded"
        if policy == "Never" or view.terminating:
            return "Failed"
    if not _initialized(view) or any(
        isinstance(container.state, Waiting) and container.last is None for container in view.containers
    ):
        return "Pending"
    return "Running"


def _initialized(view: PodView) -> bool:
    return all(isinstance(c.state, Finished) and c.state.exit_code == 0 for c in view.init_containers)


def _conditions(pod: Object, view: PodView, now: datetime) -> list[dict[str, Any]]:
    final = phase(pod, view)
    unready = [c.name for c in view.containers if not (isinstance(c.state, Running) and c.state.ready)]
    incomplete = [
        c.name for c in view.init_containers if not (isinstance(c.state, Finished) and c.state.exit_code == 0)
    ]
    before = {condition["type"]: condition for condition in (pod.get("status") or {}).get("conditions") or ()}
    gates = [gate["conditionType"] for gate in pod["spec"].get("readinessGates") or ()]
    closed = [gate for gate in gates if (before.get(gate) or {}).get("status") != "True"]

    completed = ("PodCompleted", "") if final == "Succeeded" else None
    containers_reason = completed or ("ContainersNotReady", f"containers with unready status: [{' '.join(unready)}]")
    if unready:
        ready_reason = containers_reason
    else:
        ready_reason = ("ReadinessGatesNotReady", f"readiness gates not ready: [{' '.join(closed)}]")
    wanted = [
        ("PodReadyToStartContainers", final in {"Pending", "Running"}, None),
        (
            "Initialized",
            not incomplete,
            ("ContainersNotInitialized", f"containers with incomplete status: [{' '.join(incomplete)}]"),
        ),
        ("ContainersReady", not unready, containers_reason),
        ("Ready", not unready and not closed, ready_reason),
    ]
    conditions = []
    for kind, true, why in wanted:
        status = "True" if true else "False"
        old = before.get(kind) or {}
        since = old.get("lastTransitionTime") if old.get("status") == status else None
        condition: dict[str, Any] = {
            "type": kind,
            "status": status,
            "lastTransitionTime": since or _time(now),
            "observedGeneration": pod["metadata"].get("generation", 1),
        }
        if not true and why is not None:
            condition["reason"] = why[0]
            if why[1]:
                condition["message"] = why[1]
        conditions.append(condition)
    return conditions


def _statuses(containers: Sequence[ContainerView]) -> list[dict[str, Any]]:
    statuses = []
    for container in containers:
        state = container.state
        running = isinstance(state, Running)
        current = state.container_id if isinstance(state, Running | Finished) else ""
        statuses.append(
            {
                "name": container.name,
                "image": container.image,
                "imageID": container.image_id,
                "containerID": current or (container.last.container_id if container.last else ""),
                "ready": state.ready if isinstance(state, Running) else False,
                "started": state.started if isinstance(state, Running) else False,
                "restartCount": container.restarts,
                "state": _state(state),
                "lastState": {} if container.last is None else _state(container.last),
            }
        )
        if not running and not statuses[-1]["containerID"]:
            del statuses[-1]["containerID"]
    return statuses


def _state(state: Running | Waiting | Finished) -> Mapping[str, Any]:
    if isinstance(state, Running):
        return {"running": {"startedAt": _time(state.started_at)}}
    if isinstance(state, Waiting):
        return {"waiting": {"reason": state.reason, **({"message": state.message} if state.message else {})}}
    return {
        "terminated": {
            "exitCode": state.exit_code,
            "reason": state.reason,
            **({"message": state.message} if state.message else {}),
            **({"startedAt": _time(state.started_at)} if state.started_at else {}),
            "finishedAt": _time(state.finished_at),
            "containerID": state.container_id,
        }
    }


def _time(moment: datetime) -> str:
    return moment.astimezone(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
