"""CPU limits as control groups have them."""

from decimal import Decimal
from pathlib import Path

import pytest

from pointsman.local.node.cpu_limits import CpuGroups, NoCpuLimit, cpu_limit, quota_us


def test_a_limit_is_a_share_of_a_short_period_and_a_tiny_one_of_a_long() -> None:
    assert quota_us(Decimal("0.35")) == (3_500, 10_000)
    assert quota_us(Decimal(2)) == (20_000, 10_000)
    assert quota_us(Decimal("0.05")) == (5_000, 100_000)
    assert quota_us(Decimal("0.001")) == (1_000, 100_000), "the kernel takes no less"


def test_the_limit_of_a_container() -> None:
    assert cpu_limit({"name": "main", "resources": {"limits": {"cpu": "350m"}}}) == Decimal("0.35")
    assert cpu_limit({"name": "main", "resources": {"requests": {"cpu": "1"}}}) is None
    assert cpu_limit({"name": "main"}) is None
    with pytest.raises(ValueError, match="quantity"):
        cpu_limit({"name": "main", "resources": {"limits": {"cpu": "half"}}})


def test_a_group_of_the_first_version(tmp_path: Path) -> None:
    (tmp_path / "cpu,cpuacct").mkdir()
    (tmp_path / "cpu,cpuacct" / "cgroup.procs").touch()

    group = CpuGroups.find(tmp_path).make("a", Decimal("0.5"))

    assert group == tmp_path / "cpu,cpuacct" / "pointsman" / "a"
    assert (group / "cpu.cfs_quota_us").read_text() == "5000"
    assert (group / "cpu.cfs_period_us").read_text() == "10000"


def test_a_group_of_the_second_version(tmp_path: Path) -> None:
    (tmp_path / "cgroup.controllers").write_text("cpuset cpu io\n")

    group = CpuGroups.find(tmp_path).make("a", Decimal("0.5"))

    assert (group / "cpu.max").read_text() == "5000 10000"
    assert (tmp_path / "cgroup.subtree_control").read_text() == "+cpu"
    assert (tmp_path / "pointsman" / "cgroup.subtree_control").read_text() == "+cpu"


def test_where_no_group_limits_cpu_it_says_so(tmp_path: Path) -> None:
    (tmp_path / "cgroup.controllers").write_text("memory\n")
    with pytest.raises(NoCpuLimit, match="limits CPU"):
        CpuGroups.find(tmp_path)


def test_a_group_that_cannot_be_made_is_named(tmp_path: Path) -> None:
    (tmp_path / "pointsman").write_text("in the way")
    with pytest.raises(NoCpuLimit, match="pointsman"):
        CpuGroups(tmp_path / "pointsman", unified=False).make("a", Decimal(1))
