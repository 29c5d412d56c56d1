"""CPU limits of containers, kept by the kernel's control groups, as a kubelet's are."""

import os
from collections.abc import Sequence
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
_V1: Final = ("cpu", "cpu,cpuacct", "cpuacct,cpu")


class NoCpuLimit(Exception):
    """The limit cannot be kept here; the message says why."""


def cpu_limit(container: Object) -> Decimal | None:
    """``resources.limits.cpu`` of a container's spec, cores; None if it has none. Raises ValueError for no quantity."""
    amount = ((container.get("resources") or {}).get("limits") or {}).get("cpu")
    return None if amount is None else quantity(str(amount))


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
    def find(cls, mounts: Path = Path("/sys/fs/cgroup"), v1: Sequence[str] = _V1) -> "CpuGroups":
        """Those of this computer. Raises NoCpuLimit if none can limit CPU."""
        for name in v1:
            if (mounts / name / "cgroup.procs").exists():
                return cls(mounts / name / "pointsman", unified=False)
        controllers = mounts / "cgroup.controllers"
        if controllers.exists() and "cpu" in controllers.read_text().split():
            return cls(mounts / "pointsman", unified=True)
        raise NoCpuLimit(f"no control group of {mounts} limits CPU")

    def make(self, name: str, cores: Decimal) -> Path:
        """An empty group with this limit; processes join by writing their number to ``cgroup.procs``.

        Raises NoCpuLimit.
        """
        group = self.directory / name
        quota, period = quota_us(cores)
        try:
            self.directory.mkdir(exist_ok=True)
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
            raise NoCpuLimit(f"{error.filename or group}: {error.strerror}") from error
        return group

    def check(self) -> None:
        """Raises NoCpuLimit if no group can be made here."""
        self.make(f"check-{os.getpid()}", Decimal(1)).rmdir()
