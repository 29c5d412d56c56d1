"""Pod addresses from 127.0.0.0/8: each node on this computer takes a range of 253 for itself."""

import fcntl
import random
from pathlib import Path
from typing import Final

from pointsman.local.cache import cache_directory
from pointsman.local.errors import NodeError

_PODS: Final = range(2, 255)


class PodAddresses:
    """The addresses of one node's pods.

    The range is claimed by a file that names the node's directory: it is free again when that directory is gone. So
    a node that was killed finds its own range, and no other node takes it meanwhile.
    """

    def __init__(self, pods_directory: Path) -> None:
        pods_directory.mkdir(parents=True, exist_ok=True, mode=0o700)
        self._prefix = _claim(pods_directory)
        self._taken: set[str] = set()

    @property
    def host_ip(self) -> str:
        """The node's own address in the range."""
        return f"{self._prefix}.1"

    def keep(self, address: str) -> None:
        """This address is in use, since before this node started."""
        self._taken.add(address)

    def take(self) -> str:
        """An address no pod has. Raises NodeError if there is none left."""
        free = [address for n in _PODS if (address := f"{self._prefix}.{n}") not in self._taken]
        if not free:
            raise NodeError(f"all {len(_PODS)} pod addresses of {self._prefix}.0/24 are taken")
        # Not the one given back last: what still talks to the pod that is gone must not reach another.
        address = random.choice(free)
        self._taken.add(address)
        return address

    def give_back(self, address: str) -> None:
        """No pod has it any more."""
        self._taken.discard(address)


def _claim(directory: Path) -> str:
    claims = cache_directory() / "addresses"
    claims.mkdir(parents=True, exist_ok=True)
    with (claims / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        taken = {claim.name: Path(claim.read_text()) for claim in claims.glob("127.*")}
        for prefix, owner in taken.items():
            if owner == directory:
                return prefix
        free = [
            prefix
            for second in range(1, 255)
            for third in range(1, 255)
            if (prefix := f"127.{second}.{third}") not in taken or not taken[prefix].exists()
        ]
        prefix = random.choice(free)
        (claims / prefix).write_text(str(directory))
        return prefix
