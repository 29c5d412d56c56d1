"""Pod addresses from 127.0.0.0/8: each node on this computer takes a range of 253 for itself."""

import fcntl
import random
from pathlib import Path
from typing import Final

from pointsman.local.cache import cache_directory
from pointsman.local.errors import NodeFailed

ADDRESS_ANNOTATION: Final = "local.pointsman.dev/pod-ip"
"""On a pod: the address it gets, out of the first few, which are given by this annotation only.

On a cluster of machines a Service's name stands for a server whose address nobody knows beforehand; here it does not.
"""
_GIVEN: Final = range(2, 10)
_PODS: Final = range(10, 255)


class PodAddresses:
    """The addresses of one node's pods.

    The range is claimed by a file that names the node's directory: it is free again when that directory is gone. So
    a node that was killed finds its own range, and no other node takes it meanwhile.
    """

    def __init__(self, pods_directory: Path) -> None:
        pods_directory.mkdir(parents=True, exist_ok=True, mode=0o700)
        self._prefix = claim_range(pods_directory)
        self._taken: set[str] = set()

    @property
    def host_ip(self) -> str:
        """The node's own address in the range."""
        return f"{self._prefix}.1"

    def keep(self, address: str) -> None:
        """This address is in use, since before this node started."""
        self._taken.add(address)

    def numbered(self, number: int) -> str:
        """One of the addresses that are given by annotation only. Raises NodeFailed for another number."""
        if number not in _GIVEN:
            raise NodeFailed(f"{number} is no address to give: those are {_GIVEN.start} to {_GIVEN.stop - 1}")
        return f"{self._prefix}.{number}"

    def take(self, wanted: str | None = None) -> str:
        """An address no pod has, or the one that a pod's annotation wants.

        A wanted address is not kept from a pod whose predecessor is on its way out: that one's processes are gone by
        the time the next of its name exists. Raises NodeFailed if none is left, or the wanted one is not to be given.
        """
        if wanted is not None:
            if wanted not in {self.numbered(number) for number in _GIVEN}:
                first, last = self.numbered(_GIVEN.start), self.numbered(_GIVEN.stop - 1)
                raise NodeFailed(f"annotation {ADDRESS_ANNOTATION} is {wanted!r}: it must be one of {first} to {last}")
            return wanted
        free = [address for n in _PODS if (address := f"{self._prefix}.{n}") not in self._taken]
        if not free:
            raise NodeFailed(f"all {len(_PODS)} pod addresses of {self._prefix}.0/24 are taken")
        # Not the one given back last: what still talks to the pod that is gone must not reach another.
        address = random.choice(free)
        self._taken.add(address)
        return address

    def give_back(self, address: str) -> None:
        """No pod has it any more."""
        self._taken.discard(address)


def claim_range(directory: Path) -> str:
    """The first three numbers of a range in 127.0.0.0/8 that belongs to ``directory`` as long as it exists."""
    claims = cache_directory() / "addresses"
    claims.mkdir(parents=True, exist_ok=True)
    with (claims / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        taken = {claim.name: Path(claim.read_text()) for claim in claims.glob("127.*")}
        for prefix, owner in taken.items():
            if owner == directory:
                return prefix
        for prefix, owner in list(taken.items()):
            if not owner.exists():
                (claims / prefix).unlink()
                del taken[prefix]
        free = [
            prefix
            for second in range(1, 255)
            for third in range(1, 255)
            if (prefix := f"127.{second}.{third}") not in taken
        ]
        prefix = random.choice(free)
        (claims / prefix).write_text(str(directory))
        return prefix
