"""CPU limits of containers, kept by the kernel's control groups, as a kubelet's are."""

import contextlib
import time
from dataclasses import dataclass
from decimal import Decimal
from pathlib import Path
from typing import Final

from pointsman.local.node.core.environment import quantity
from pointsman.local.node.core.types import Object

GROUP_VARIABLE: Final = "POINTSMAN_CPU_GROUP"
"""In a container's environment: the control group its processes join; who starts some for it elsewhere reads it."""

# A kubelet's period is 100 ms: a program with half a core computes for 50 ms and is stopped for as long. In short
# periods a limited engine is a slower one, and not one that stumbles.
_PERIOD_US: Final = 10_000
_LONG_PERIOD_US: Final = 100_000
_LEAST_QUOTA_US: Final = 1_000  # the kernel's
_LEFT_S: Final = 60.0  # an empty group is joined within a moment, or never


class NoCpuLimit(Exception):
    """The limit cannot be kept here; the message says why."""


def cpu_limit(container: Object) -> Decimal | None:
    """``resources.limits.cpu`` of a container's spec, cores; None without one, which 0 is. Raises ValueError."""
    amount = ((container.get("resources") or {}).get("limits") or {}).get("cpu")
    return None if amount is None else quantity(str(amount)) or None


def quota_us(cores: Decimal) -> tuple[int, int]:
    """(quota, period) in microseconds of CPU and of time."""
    period_us = _PERIOD_US if cores * _PERIOD_US >= _LEAST_QUOTA_US else _LONG_PERIOD_US
    return max(_LEAST_QUOTA_US, int(cores * period_us)), period_us


@dataclass(frozen=True, slots=True)
class CpuGroups:
    """Where control groups are made. ``unified``: cgroup v2, else v1's controller ``cpu``."""

    directory: Path
    unified: bool

    @classmethod
    def find(cls, mounts: Path = Path("/sys/fs/cgroup"), own: Path = Path("/proc/self/cgroup")) -> "CpuGroups":
        """Those of this computer: v1's below this process's own, v2's at the root. Raises NoCpuLimit if there are none.

        Elsewhere than at the root, a v2 group that holds processes can have no limited groups below it.
        """
        for line in own.read_text().splitlines() if own.exists() else ():  # a kernel may be without
            _, controllers, path = line.split(":", 2)
            if "cpu" in controllers.split(","):
                at = mounts / controllers
                nested = at / path.lstrip("/")
                within = nested if (nested / "cgroup.procs").exists() else at  # the rest of the path may not be mounted
                return cls(within / "pointsman", unified=False)
        offered = mounts / "cgroup.controllers"
        if not offered.exists() or "cpu" not in offered.read_text().split():
            raise NoCpuLimit(f"no control group of {mounts} limits CPU")
        if (mounts / "cgroup.type").exists():
            raise NoCpuLimit(f"{mounts} is not the root of the control groups but a container's")
        return cls(mounts / "pointsman", unified=True)

    def make(self, name: str, cores: Decimal) -> Path:
        """An empty group with this limit; processes join by writing their number to ``cgroup.procs``.

        Raises NoCpuLimit.
        """
        group = self.directory / name
        quota, period = quota_us(cores)
        try:
            self.directory.mkdir(exist_ok=True)
            self._sweep()
            if self.unified:
                for each in (self.directory.parent, self.directory):
                    (each / "cgroup.subtree_control").write_text("+cpu")
            group.mkdir(exist_ok=True)
            if self.unified:
                (group / "cpu.max").write_text(f"{quota} {period}")
            else:
                (group / "cpu.cfs_period_us").write_text(str(period))
                (group / "cpu.cfs_quota_us").write_text(str(quota))
        except OSError as error:
            with contextlib.suppress(OSError):
                group.rmdir()
            raise NoCpuLimit(f"{error.filename or group}: {error.strerror}") from error
        return group

    def _sweep(self) -> None:
        """Remove what killed shims left: empty ones, but for those that somebody is about to join."""
        for group in self.directory.iterdir():
            with contextlib.suppress(OSError):  # not empty, or gone
                if group.is_dir() and time.time() - group.stat().st_ctime > _LEFT_S:
                    group.rmdir()
