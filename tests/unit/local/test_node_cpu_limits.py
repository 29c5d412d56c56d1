"""CPU limits as control groups have them."""

import time
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
    assert cpu_limit({"name": "main", "resources": {"limits": {"cpu": "0"}}}) is None, "as Kubernetes reads it"
    with pytest.raises(ValueError, match="quantity"):
        cpu_limit({"name": "main", "resources": {"limits": {"cpu": "half"}}})


@pytest.fixture
def own(tmp_path: Path) -> Path:
    """What /proc/self/cgroup says: of cgroup v2 only, until a test writes more."""
    file = tmp_path / "self"
    file.write_text("0::/user.slice\n")
    return file


@pytest.mark.parametrize(("path", "within"), [("/", ""), ("/job/7", "job/7"), ("/not/mounted/here", "")])
def test_a_group_of_the_first_version_is_below_the_processs_own(
    tmp_path: Path, own: Path, path: str, within: str
) -> None:
    own.write_text(f"4:memory:/\n3:cpu,cpuacct:{path}\n0::/\n")
    mount = tmp_path / "cpu,cpuacct"
    for made in (mount, mount / "job" / "7"):
        made.mkdir(parents=True)
        (made / "cgroup.procs").touch()

    group = CpuGroups.find(tmp_path, own).make("a", Decimal("0.5"))

    assert group == mount / within / "pointsman" / "a"
    assert (group / "cpu.cfs_quota_us").read_text() == "5000"
    assert (group / "cpu.cfs_period_us").read_text() == "10000"


def test_a_group_of_the_second_version(tmp_path: Path, own: Path) -> None:
    (tmp_path / "cgroup.controllers").write_text("cpuset cpu io\n")

    group = CpuGroups.find(tmp_path, own).make("a", Decimal("0.5"))

    assert (group / "cpu.max").read_text() == "5000 10000"
    assert (tmp_path / "cgroup.subtree_control").read_text() == "+cpu"
    assert (tmp_path / "pointsman" / "cgroup.subtree_control").read_text() == "+cpu"


def test_a_containers_groups_of_the_second_version_are_not_touched(tmp_path: Path, own: Path) -> None:
    (tmp_path / "cgroup.controllers").write_text("cpuset cpu io\n")
    (tmp_path / "cgroup.type").write_text("domain\n")
    with pytest.raises(NoCpuLimit, match="not the root"):
        CpuGroups.find(tmp_path, own)


def test_where_no_group_limits_cpu_it_says_so(tmp_path: Path, own: Path) -> None:
    (tmp_path / "cgroup.controllers").write_text("memory\n")
    for said in (own, tmp_path / "a kernel without"):
        with pytest.raises(NoCpuLimit, match="limits CPU"):
            CpuGroups.find(tmp_path, said)


def test_a_group_that_cannot_be_made_is_named(tmp_path: Path) -> None:
    (tmp_path / "pointsman").write_text("in the way")
    with pytest.raises(NoCpuLimit, match="pointsman"):
        CpuGroups(tmp_path / "pointsman", unified=False).make("a", Decimal(1))


def test_what_a_killed_shim_left_is_removed_and_what_is_new_or_used_stays(tmp_path: Path) -> None:
    groups = CpuGroups(tmp_path, unified=False)
    left, used = tmp_path / "left", tmp_path / "used"
    for group in (left, used):
        group.mkdir()
    (used / "process").touch()
    now = time.time()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(time, "time", lambda: now + 61)
        groups.make("a", Decimal(1))
    assert not left.exists()
    assert used.exists()
    groups.make("b", Decimal(1))
    assert (tmp_path / "b").exists()
    groups.make("c", Decimal(1))
    assert (tmp_path / "b").exists(), "somebody is about to join it"
