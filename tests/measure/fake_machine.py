"""Folders proc and sys as kernels of other machines fill them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

CGROUP2 = "30 23 0:26 {} /sys/fs/cgroup rw - cgroup2 cgroup2 rw"
CGROUP1 = "33 32 0:30 {} /sys/fs/cgroup/cpu,cpuacct rw - cgroup cgroup rw,cpu,cpuacct"


def write(path: Path, text: str) -> None:
    """Write a file, in folders that are made."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(f"{text}\n")


def add_cores(
    root: Path,
    cores: Sequence[int],
    siblings: Mapping[int, str] | None = None,
    *,
    online: str = "",
    capacity: int = 0,
    kilohertz: int = 0,
    model: str = "",
    caches: Mapping[int, str] | None = None,
) -> None:
    """Add cores that are alike; `siblings` are the lists of threads, `caches` sizes by level."""
    cpus = root / "sys/devices/system/cpu"
    if online:
        write(cpus / "online", online)
    for core in cores:
        folder = cpus / f"cpu{core}"
        if siblings is not None:
            write(folder / "topology/core_cpus_list", siblings[core])
            write(folder / "topology/thread_siblings_list", siblings[core])
        if capacity:
            write(folder / "cpu_capacity", str(capacity))
        if kilohertz:
            write(folder / "cpufreq/cpuinfo_max_freq", str(kilohertz))
        if model:
            write(folder / "regs/identification/midr_el1", model)
        for number, (level, size) in enumerate((caches or {}).items()):
            write(folder / f"cache/index{number}/level", str(level))
            write(folder / f"cache/index{number}/type", "Unified" if level > 1 else "Data")
            write(folder / f"cache/index{number}/size", size)


def hybrid_intel(root: Path) -> None:
    """A Core i5-1240P: four P cores of two threads (0 to 7), eight E cores (8 to 15)."""
    pairs = {core: f"{core // 2 * 2}-{core // 2 * 2 + 1}" for core in range(8)}
    add_cores(
        root, range(8), pairs, online="0-15", kilohertz=4400000, caches={1: "48K", 2: "1280K"}
    )
    alone = {core: str(core) for core in range(8, 16)}
    add_cores(root, range(8, 16), alone, kilohertz=3300000, caches={1: "32K", 2: "2048K"})
    write(root / "sys/devices/cpu_core/cpus", "0-7")
    write(root / "sys/devices/cpu_atom/cpus", "8-15")


def desktop_amd(root: Path) -> None:
    """A Ryzen 7: eight cores, whose second threads are 8 to 15; two have a higher clock."""
    pairs = {core: f"{core % 8},{core % 8 + 8}" for core in range(16)}
    caches = {1: "32K", 2: "1024K", 3: "32768K"}
    for core in range(16):
        clock = 5450000 if core % 8 in (2, 5) else 5250000
        add_cores(root, [core], pairs, online="0-15", kilohertz=clock, caches=caches)


def big_little_arm(root: Path) -> None:
    """Four little cores (0 to 3), three big ones (4 to 6), one that is faster still (7)."""
    alone = {core: str(core) for core in range(8)}
    add_cores(root, range(4), alone, online="0-7", capacity=324, model="0x411fd050")
    add_cores(root, (4, 5, 6), alone, capacity=870, model="0x411fd410")
    add_cores(root, (7,), alone, capacity=1024, model="0x411fd440")


def add_group2(root: Path, path: str, quota: str, throttled: int = 0) -> Path:
    """A control group of version 2 with this cpu.max."""
    folder = root / "sys/fs/cgroup" / path
    write(folder / "cpu.max", quota)
    stat = f"usage_usec 900\nnr_periods 40\nnr_throttled {throttled}\nthrottled_usec 5"
    write(folder / "cpu.stat", stat)
    return folder


def add_group1(root: Path, path: str, quota: int, period: int, throttled: int = 0) -> Path:
    """A control group of version 1 with this quota."""
    folder = root / "sys/fs/cgroup/cpu,cpuacct" / path
    write(folder / "cpu.cfs_quota_us", str(quota))
    write(folder / "cpu.cfs_period_us", str(period))
    write(folder / "cpu.stat", f"nr_periods 40\nnr_throttled {throttled}\nthrottled_time 5000")
    return folder


def be_in(root: Path, mounts: Sequence[str], *groups: str) -> None:
    """Be a process of these groups (lines of /proc/self/cgroup), with these mounts."""
    write(root / "proc/self/cgroup", "\n".join(groups))
    write(root / "proc/self/mountinfo", "\n".join(mounts))
