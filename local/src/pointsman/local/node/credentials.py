"""A pod's own identity: a token bound to the pod, in a kubeconfig file that is rewritten before the token ends.

On a real node the token is mounted at a fixed path that all pods share here; a kubeconfig says the same.
"""

import asyncio
import base64
import logging
from datetime import UTC, datetime
from pathlib import Path
from typing import Final

import yaml

from pointsman.kube.client import Kube
from pointsman.kube.errors import KubeError
from pointsman.kube.resources import SERVICE_ACCOUNTS
from pointsman.local.node.core.types import Object

log = logging.getLogger(__name__)

EXPIRES_S: Final = 3607  # what the ServiceAccount admission plugin asks for
_REFRESH_AT: Final = 0.8  # of the token's life, as a kubelet does
_RETRY_S: Final = 10.0


class PodCredentials:
    """The kubeconfig of one pod's service account, in ``directory``."""

    def __init__(self, kube: Kube, pod: Object, directory: Path, authority: Path) -> None:
        self._kube = kube
        self._pod = pod
        self._directory = directory
        self._authority = authority
        self.kubeconfig: Final = directory / "kubeconfig"

    async def refresh(self) -> float:
        """Get a token and write it; seconds until it should be done again. Raises KubeError."""
        metadata = self._pod["metadata"]
        request = {
            "apiVersion": "authentication.k8s.io/v1",
            "kind": "TokenRequest",
            "spec": {
                "expirationSeconds": EXPIRES_S,
                # A node may ask for tokens of its own pods only, and the token ends with the pod.
                "boundObjectRef": {
                    "apiVersion": "v1",
                    "kind": "Pod",
                    "name": metadata["name"],
                    "uid": metadata["uid"],
                },
            },
        }
        account = self._pod["spec"].get("serviceAccountName") or "default"
        answer = await self._kube.create(
            SERVICE_ACCOUNTS, request, metadata["namespace"], name=account, subresource="token"
        )
        self._write(answer["status"]["token"])
        expires_at = datetime.fromisoformat(answer["status"]["expirationTimestamp"])
        return (expires_at - datetime.now(UTC)).total_seconds() * _REFRESH_AT

    async def keep_fresh(self, due_s: float) -> None:
        """Refresh for ever, the first time in ``due_s`` seconds."""
        while True:
            await asyncio.sleep(due_s)
            try:
                due_s = await self.refresh()
            except KubeError as error:
                name = f"{self._pod['metadata']['namespace']}/{self._pod['metadata']['name']}"
                log.warning("token not renewed, trying again", extra={"pod": name, "why": str(error)})
                due_s = _RETRY_S

    def _write(self, token: str) -> None:
        token_file = self._directory / "token"
        cluster = {
            "server": self._kube.server,
            "certificate-authority-data": base64.b64encode(self._authority.read_bytes()).decode(),
        }
        config = {
            "apiVersion": "v1",
            "kind": "Config",
            "current-context": "pod",
            "clusters": [{"name": "cluster", "cluster": cluster}],
            # The token stands here for clients that know no tokenFile, in the file for those that read it again.
            "users": [{"name": "pod", "user": {"token": token, "tokenFile": str(token_file)}}],
            "contexts": [
                {
                    "name": "pod",
                    "context": {"cluster": "cluster", "user": "pod", "namespace": self._pod["metadata"]["namespace"]},
                }
            ],
        }
        for path, text in ((token_file, token), (self.kubeconfig, yaml.safe_dump(config))):
            partial = path.with_name(f".{path.name}")
            partial.touch(mode=0o600)
            partial.write_text(text)
            partial.replace(path)
