"""Which quota counts, in control groups of both versions, and when it stops a process."""

from __future__ import annotations

from pathlib import Path

from tests.measure.fake_machine import CGROUP1, CGROUP2, add_group1, add_group2, be_in
from tunefarm.measure.cpus import Throttling, read_quota


def test_no_group_has_no_quota(tmp_path: Path) -> None:
    assert read_quota(tmp_path) is None
    be_in(tmp_path, [CGROUP2.format("/")], "0::/user.slice")
    add_group2(tmp_path, "user.slice", "max 100000")
    assert read_quota(tmp_path) is None


def test_the_tightest_of_nested_groups_counts(tmp_path: Path) -> None:
    be_in(tmp_path, [CGROUP2.format("/")], "0::/pods/job/task")
    add_group2(tmp_path, "pods", "800000 100000")
    tight = add_group2(tmp_path, "pods/job", "150000 100000")
    add_group2(tmp_path, "pods/job/task", "max 100000")
    found = read_quota(tmp_path)
    assert found is not None and (found.cpus, found.folder) == (1.5, tight)
    assert str(found) == "a CPU quota of 1.5"


def test_a_group_above_may_be_the_tightest(tmp_path: Path) -> None:
    be_in(tmp_path, [CGROUP2.format("/")], "0::/a/b")
    add_group2(tmp_path, "a", "50000 100000")
    add_group2(tmp_path, "a/b", "200000 100000")
    found = read_quota(tmp_path)
    assert found is not None and found.cpus == 0.5 and len(found.stats) == 2


def test_in_a_container_the_topmost_group_is_its_own(tmp_path: Path) -> None:
    be_in(tmp_path, [CGROUP2.format("/")], "0::/")
    add_group2(tmp_path, "", "250000 100000")
    found = read_quota(tmp_path)
    assert found is not None and found.cpus == 2.5


def test_a_group_outside_of_what_is_seen_stands_for_the_topmost(tmp_path: Path) -> None:
    be_in(tmp_path, [CGROUP2.format("/")], "0::/../other")
    add_group2(tmp_path, "", "300000 100000")
    found = read_quota(tmp_path)
    assert found is not None and found.cpus == 3.0


def test_version_1_is_read_below_where_it_is_mounted(tmp_path: Path) -> None:
    be_in(tmp_path, [CGROUP1.format("/docker/4f")], "4:cpu,cpuacct:/docker/4f/inner", "1:name=x:/")
    add_group1(tmp_path, "", 400000, 100000)
    add_group1(tmp_path, "inner", 25000, 50000)
    found = read_quota(tmp_path)
    assert found is not None and found.cpus == 0.5


def test_no_limit_of_version_1_is_no_quota(tmp_path: Path) -> None:
    be_in(tmp_path, [CGROUP1.format("/")], "4:cpu,cpuacct:/")
    add_group1(tmp_path, "", -1, 100000)
    assert read_quota(tmp_path) is None


def test_both_versions_at_once_count_both(tmp_path: Path) -> None:
    mounts = [CGROUP1.format("/"), CGROUP2.format("/").replace("cgroup rw", "cgroup/unified rw")]
    be_in(tmp_path, mounts, "4:cpu,cpuacct:/job", "0::/job")
    add_group1(tmp_path, "job", 100000, 100000)
    found = read_quota(tmp_path)
    assert found is not None and found.cpus == 1.0


def test_damaged_files_are_no_quota(tmp_path: Path) -> None:
    be_in(tmp_path, ["a line", CGROUP2.format("/"), "1 2 3 / x - cgroup2"], "0", "0::/g", "x:cpu")
    add_group2(tmp_path, "g", "100000 0")
    add_group2(tmp_path, "", "nothing")
    assert read_quota(tmp_path) is None


def test_throttling_counts_all_groups_with_a_quota(tmp_path: Path) -> None:
    be_in(tmp_path, [CGROUP2.format("/")], "0::/a/b")
    add_group2(tmp_path, "a", "100000 100000", throttled=3)
    add_group2(tmp_path, "a/b", "100000 100000", throttled=4)
    found = read_quota(tmp_path)
    assert found is not None
    throttling = Throttling(found.stats)
    assert throttling.count() == 7
    add_group2(tmp_path, "a", "100000 100000", throttled=5)
    assert throttling.count() == 9
    throttling.close()
    throttling.close()
    assert throttling.count() == 0
