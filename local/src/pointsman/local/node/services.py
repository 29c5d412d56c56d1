"""What every pod of one node uses."""

from dataclasses import dataclass
from pathlib import Path

import aiohttp

from pointsman.kube.client import Kube
from pointsman.kube.events import EventRecorder
from pointsman.local.node.images import ImageStore
from pointsman.local.node.pod_addresses import PodAddresses
from pointsman.local.processes import ProcessId


@dataclass(frozen=True)
class Services:
    """Made once when the node starts.

    ``pods_directory``  each pod has a directory in it
    ``authority``       certificate of the API server's authority, for the pods' kubeconfigs
    ``owner``           when this process ends, so do all containers; None: they stay
    ``allocatable``     the node's made-up resources
    """

    kube: Kube
    images: ImageStore
    events: EventRecorder
    addresses: PodAddresses
    session: aiohttp.ClientSession
    pods_directory: Path
    authority: Path
    owner: ProcessId | None
    allocatable: dict[str, str]
    restart_first_s: float
