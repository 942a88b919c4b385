"""Limits of control groups of both versions, nested and in containers, from made-up trees."""

from __future__ import annotations

from pathlib import Path

import pytest

from tunefarm.compiler.machine.control_groups import ControlGroups

V2_MOUNT = "30 24 0:26 {root} /sys/fs/cgroup rw,nosuid shared:9 - cgroup2 cgroup2 rw,nsdelegate"
V1_MOUNT = "{n} 25 0:3{n} {root} /sys/fs/cgroup/{name} rw shared:{n} - cgroup cgroup rw,{name}"


class Tree:
    """A made-up machine: which groups are mounted and the process's, what their files say."""

    def __init__(self, root: Path, membership: str, *mounts: str) -> None:
        self.root = root
        (root / "proc").mkdir()
        (root / "proc" / "cgroup").write_text(membership + "\n")
        (root / "proc" / "mountinfo").write_text("\n".join(["1 1 8:1 / / rw - ext4 x rw", *mounts]))

    def write(self, path: str, text: str) -> None:
        file = self.root / "sys/fs/cgroup" / path
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text + "\n")

    @property
    def groups(self) -> ControlGroups:
        return ControlGroups(self.root, self.root / "proc")


def test_of_nested_groups_the_tightest_counts(tmp_path: Path) -> None:
    tree = Tree(tmp_path, "0::/slice/job", V2_MOUNT.format(root="/"))
    tree.write("slice/pids.max", "20")
    tree.write("slice/pids.current", "15")
    tree.write("slice/job/pids.max", "12")
    tree.write("slice/job/pids.current", "2")
    tree.write("slice/memory.max", "max")
    tree.write("slice/job/memory.max", "1000")
    assert tree.groups.free_threads() == 5
    assert tree.groups.memory_bytes() == 1000


def test_without_a_quota_there_is_no_limit(tmp_path: Path) -> None:
    tree = Tree(tmp_path, "0::/job", V2_MOUNT.format(root="/"))
    tree.write("job/memory.max", "max")
    assert (tree.groups.memory_bytes(), tree.groups.free_threads()) == (None, None)


@pytest.mark.parametrize("path", ["/", "/../../other"])
def test_in_a_container_the_group_that_is_mounted_is_its_own(tmp_path: Path, path: str) -> None:
    """With a namespace of its own the path is `/`; without one it is outside of the mount."""
    tree = Tree(tmp_path, f"0::{path}", V2_MOUNT.format(root="/docker/1234"))
    tree.write("memory.max", "500")
    assert tree.groups.memory_bytes() == 500


def test_a_group_below_the_part_that_is_mounted_is_found(tmp_path: Path) -> None:
    tree = Tree(tmp_path, "0::/docker/1234/inner", V2_MOUNT.format(root="/docker/1234"))
    tree.write("inner/memory.max", "700")
    assert tree.groups.memory_bytes() == 700


def test_the_first_version_has_a_tree_for_each_controller(tmp_path: Path) -> None:
    names = ("cpu", "memory", "pids")
    mounts = [V1_MOUNT.format(n=n, name=name, root="/") for n, name in enumerate(names)]
    tree = Tree(tmp_path, "3:pids:/a\n2:memory:/\n1:cpu,cpuacct:/a/b\n0::/", *mounts)
    for group in ("a", "a/b"):
        (tmp_path / "sys/fs/cgroup/cpu" / group).mkdir(parents=True)
    tree.write("memory/memory.limit_in_bytes", "2048")
    tree.write("pids/a/pids.max", "100")
    tree.write("pids/a/pids.current", "70")
    assert tree.groups.memory_bytes() == 2048
    assert tree.groups.free_threads() == 30
    found = [path.relative_to(tmp_path).as_posix() for path in tree.groups.folders("cpu")]
    assert found == [f"sys/fs/cgroup/cpu{group}" for group in ("/a/b", "/a", "")]


def test_a_machine_without_control_groups_has_no_limits(tmp_path: Path) -> None:
    groups = ControlGroups(tmp_path, tmp_path / "no proc")
    assert (groups.memory_bytes(), groups.free_threads()) == (None, None)
    assert list(groups.folders("cpu")) == []
