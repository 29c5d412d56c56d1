"""What a node without namespaces and mounts cannot give a pod, said in sentences before anything is started."""

from collections.abc import Iterator
from pathlib import PurePosixPath
from typing import Final

from pointsman.local.node.core.types import Object

TOKEN_PATH: Final = "/var/run/secrets/kubernetes.io/serviceaccount"

# Directories that are there, writable and meant for passing files: an empty volume at one of them is nothing new.
_SCRATCH: Final = ("/tmp", "/var/tmp", "/dev/shm")
_SHARES_ALL: Final = "pods of the process node share this computer's files"


def refusals(pod: Object) -> list[str]:
    """One sentence for each thing in the pod's spec that the node cannot do; empty if it can run."""
    spec = pod["spec"]
    volumes = {volume["name"]: volume for volume in spec.get("volumes") or ()}
    found = []
    for field in ("initContainers", "containers"):
        for container in spec.get(field) or ():
            where = f'{field} "{container["name"]}"'
            found += [sentence for mount in _mounts(container) for sentence in _mount_refusal(where, mount, volumes)]
            found += _container_refusals(where, container)
    return found


def wants_token(container: Object) -> bool:
    """Whether the container would find its service account's token mounted: here it gets a kubeconfig instead."""
    return any(mount["mountPath"].rstrip("/") == TOKEN_PATH for mount in _mounts(container))


def _mounts(container: Object) -> list[Object]:
    return list(container.get("volumeMounts") or ())


def _mount_refusal(where: str, mount: Object, volumes: dict[str, Object]) -> Iterator[str]:
    volume = volumes.get(mount["name"], {})
    path = str(PurePosixPath(mount["mountPath"]))
    if "emptyDir" in volume:
        if path not in _SCRATCH:
            yield (
                f'{where} mounts the empty volume "{mount["name"]}" at {path}: {_SHARES_ALL}, so only '
                f"{', '.join(_SCRATCH)} can be had; use one of them or $TMPDIR"
            )
    elif "hostPath" in volume:
        there = str(PurePosixPath(volume["hostPath"]["path"]))
        if there != path or mount.get("subPath"):
            yield (
                f'{where} mounts the host path {there} of volume "{mount["name"]}" at {path}: {_SHARES_ALL}, so it can '
                f"only be mounted at {there}"
            )
    elif path != TOKEN_PATH:
        kind = next((key for key in volume if key != "name"), "unknown")
        yield (
            f'{where} mounts the {kind} volume "{mount["name"]}" at {path}: {_SHARES_ALL}, so it cannot be mounted; '
            "pass its content by env, envFrom or args"
        )


def _container_refusals(where: str, container: Object) -> Iterator[str]:
    if container.get("restartPolicy"):
        yield f"{where}.restartPolicy is {container['restartPolicy']!r}: sidecar containers are not supported here"
    if container.get("volumeDevices"):
        yield f"{where}.volumeDevices: block devices are not supported here"
    if "postStart" in (container.get("lifecycle") or {}):
        yield f"{where}.lifecycle.postStart is not supported here; start other programs from the command"
    for probe in ("startupProbe", "readinessProbe", "livenessProbe"):
        if "grpc" in (container.get(probe) or {}):
            yield f"{where}.{probe}.grpc is not supported here; use httpGet, tcpSocket or exec"
