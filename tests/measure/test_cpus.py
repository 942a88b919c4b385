"""Which cores may time at once, on machines of many kinds."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from tests.measure.fake_machine import add_cores, big_little_arm, desktop_amd, hybrid_intel, write
from tunefarm.measure.cpus import Cpus, parse_list, physical_cores, usable_cpus


def test_hybrid_intel_times_on_one_thread_of_each_p_core(tmp_path: Path) -> None:
    hybrid_intel(tmp_path)
    cpus = usable_cpus(tmp_path, range(16))
    assert cpus.timing == (0, 2, 4, 6)
    assert cpus.kinds == (frozenset(range(8)), frozenset(range(8, 16)))
    assert str(cpus) == "16 threads of 12 cores of 2 kinds"


def test_mask_that_holds_only_the_slower_kind_times_on_that(tmp_path: Path) -> None:
    hybrid_intel(tmp_path)
    assert usable_cpus(tmp_path, range(8, 12)).timing == (8, 9, 10, 11)
    assert usable_cpus(tmp_path, (5, 9, 10)).timing == (5,)


def test_hybrid_lists_decide_where_no_clock_is_known(tmp_path: Path) -> None:
    add_cores(tmp_path, range(6), online="0-5")
    write(tmp_path / "sys/devices/cpu_core/cpus", "4-5")
    write(tmp_path / "sys/devices/cpu_atom/cpus", "0-3")
    assert usable_cpus(tmp_path, range(6)).timing == (4, 5)


def test_big_little_times_on_the_fastest_model(tmp_path: Path) -> None:
    big_little_arm(tmp_path)
    assert usable_cpus(tmp_path, range(8)).timing == (7,)
    assert usable_cpus(tmp_path, range(7)).timing == (4, 5, 6)
    assert usable_cpus(tmp_path, range(4)).timing == (0, 1, 2, 3)


def test_second_threads_of_amd_cores_do_not_time(tmp_path: Path) -> None:
    desktop_amd(tmp_path)
    cpus = usable_cpus(tmp_path, range(16))
    assert cpus.timing == tuple(range(8))
    assert cpus.physical((3, 9, 11)) == (1, 3)
    assert usable_cpus(tmp_path, range(8, 16)).timing == tuple(range(8, 16))


def test_favoured_clocks_of_equal_cores_are_no_other_kind(tmp_path: Path) -> None:
    desktop_amd(tmp_path)
    assert len(usable_cpus(tmp_path, range(16)).kinds) == 1


def test_dense_cores_are_another_kind_by_their_clock(tmp_path: Path) -> None:
    alone = {core: str(core) for core in range(8)}
    add_cores(tmp_path, range(4), alone, online="0-7", kilohertz=3300000)
    add_cores(tmp_path, range(4, 8), alone, kilohertz=5100000)
    assert usable_cpus(tmp_path, range(8)).timing == (4, 5, 6, 7)


def test_of_kinds_that_are_nearly_as_fast_the_one_with_larger_caches_times(tmp_path: Path) -> None:
    alone = {core: str(core) for core in range(4)}
    large, small = {2: "1024K", 3: "98304K"}, {2: "1024K", 3: "32768K"}
    add_cores(tmp_path, (0, 1), alone, online="0-3", kilohertz=5250000, caches=large)
    add_cores(tmp_path, (2, 3), alone, kilohertz=5700000, caches=small)
    assert usable_cpus(tmp_path, range(4)).timing == (0, 1)


def test_caches_that_only_some_cores_list_tell_no_kinds_apart(tmp_path: Path) -> None:
    add_cores(tmp_path, (0, 1), online="0-3", caches={2: "1M"})
    add_cores(tmp_path, (2, 3))
    assert usable_cpus(tmp_path, range(4)).timing == (0, 1, 2, 3)


def test_without_topology_every_core_stands_for_itself(tmp_path: Path) -> None:
    cpus = usable_cpus(tmp_path, (2, 5))
    assert (cpus.cores, cpus.timing, str(cpus)) == ((2, 5), (2, 5), "2 cores")


def test_cores_that_are_offline_are_left_out_and_so_are_their_threads(tmp_path: Path) -> None:
    desktop_amd(tmp_path)
    write(tmp_path / "sys/devices/system/cpu/online", "0-2,8-15")
    cpus = usable_cpus(tmp_path, range(16))
    assert cpus.cores == (0, 1, 2, *range(8, 16))
    assert cpus.timing == (0, 1, 2, 11, 12, 13, 14, 15)
    assert cpus.siblings(11) == {11}


def test_cpuset_of_one_thread_of_each_core_times_on_all_of_it(tmp_path: Path) -> None:
    desktop_amd(tmp_path)
    assert usable_cpus(tmp_path, (4, 5, 6, 7)).timing == (4, 5, 6, 7)
    assert usable_cpus(tmp_path, (0, 8)).timing == (0,)


def test_sibling_lists_of_older_kernels_are_read(tmp_path: Path) -> None:
    for core in range(4):
        folder = tmp_path / f"sys/devices/system/cpu/cpu{core}"
        write(folder / "topology/thread_siblings_list", f"{core % 2},{core % 2 + 2}")
    assert usable_cpus(tmp_path, range(4)).timing == (0, 1)


def test_physical_cores_are_named_alike_from_every_thread(tmp_path: Path) -> None:
    desktop_amd(tmp_path)
    assert physical_cores((9,), tmp_path) == physical_cores((1,), tmp_path) == (1,)
    assert physical_cores((700,), tmp_path) == (700,)


@pytest.mark.parametrize(
    ("text", "found"),
    [("0-2,7", {0, 1, 2, 7}), ("4", {4}), ("", set()), ("a-b", set()), ("0-99999999", set())],
)
def test_lists_of_cores_are_read(text: str, found: set[int]) -> None:
    assert parse_list(text) == found


def test_what_this_machine_offers_may_be_used() -> None:
    cpus = usable_cpus()
    assert set(cpus.timing) <= set(cpus.cores) <= os.sched_getaffinity(0)
    assert cpus.timing


def test_no_core_at_all_has_no_kind() -> None:
    assert Cpus(()).timing == ()
