"""Why records were not applied: which part of their key differs, how many, and what to type."""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import onnx
import pytest

from tests.end_to_end.tiny_model import tiny_model
from tests.targets import target_named
from tests.tuner.fleet import record_kernel
from tunefarm import compiler, tuner
from tunefarm.compiler.errors import TunefarmError
from tunefarm.compiler.kernels.kernel import KernelCall
from tunefarm.compiler.kernels.workload_key import workload_key
from tunefarm.compiler.pipeline import kernels_of
from tunefarm.compiler.target import Target, host_target
from tunefarm.configs.settings import load_settings
from tunefarm.db.records import JobTask, TargetRecord, TaskKey, TrialRecord, WorkloadRecord
from tunefarm.db.store import Store
from tunefarm.tuner.building.flow import build
from tunefarm.tuner.building.request import BuildRequest, BuildResult
from tunefarm.tuner.commands.database_commands import show_lines
from tunefarm.tuner.records.trials import task_key
from tunefarm.tuner.records.unapplied import MOST_LINES, Unapplied, Wanted, unapplied

HOST = host_target()
ZEN4 = replace(target_named("znver4"), cpu="zen-x")  # whatever runs the tests is another CPU
V3 = replace(target_named("x86-64-v3"), cpu="old")
V1 = target_named("neoverse-v1")
MASKED = replace(ZEN4, features=tuple(f for f in ZEN4.features if f != "avx512bf16"))
"""The same CPU under a hypervisor that hides a feature which schedules use."""
OTHER_CACHES = replace(ZEN4, l2_bytes=512 << 10, l3_bytes=0, cores=64)
HASH = "model's hash"
UNTUNED = {"k0": "conv", "k1": "matmul"}


@pytest.fixture
def store() -> Iterator[Store]:
    with Store.open(":memory:") as opened:
        yield opened


def remember(
    store: Store,
    target: Target,
    count: int,
    *workloads: str,
    numerics: str = "",
    version: str = compiler.VERSION,
    status: str = "ok",
    threads: int = 1,
    admitted: str = "default",
) -> None:
    """So many records of each workload; of a job in a precision if `numerics` names one."""
    store.add([TargetRecord(target.key, target.to_json())])
    store.add([WorkloadRecord(name, name, {}) for name in workloads])
    keys = [TaskKey(name, target.key, threads, admitted, version) for name in workloads]
    latency = 1.0 if status == "ok" else None
    store.add(
        TrialRecord(key, f"{version}-{n}", "tiled", {}, [[n]], status, latency)
        for key in keys
        for n in range(count)
    )
    if numerics:
        settings = {"compile": {"numerics": numerics}}
        store.start_job("model", HASH, settings, [JobTask(key, 1) for key in keys])


def left(store: Store, target: Target = ZEN4, precision: str = "default") -> list[Unapplied]:
    like = task_key("", target, 1, precision)
    wanted = Wanted(like, target, precision, HASH, {*UNTUNED, "tuned"}, UNTUNED)
    return unapplied(store, wanted)


def texts(store: Store, target: Target = ZEN4, precision: str = "default") -> list[str]:
    return [str(item) for item in left(store, target, precision)]


def test_records_for_other_threads_name_both_ways(store: Store) -> None:
    remember(store, ZEN4, 6, "k0", "k1", threads=2)
    (found,) = left(store)
    assert str(found) == (
        "12 records of 2 kernels are for 2 threads: "
        "build with --threads 2, or tune with --threads 1"
    )
    assert Unapplied.from_json(found.to_json()) == found


def test_records_for_another_cpu_say_what_this_one_lacks(store: Store) -> None:
    remember(store, ZEN4, 1, "k0")
    (text,) = texts(store, V3)
    start = "1 record of 1 kernel is for zen-x (the target old lacks avx512bf16, avx512bit"
    assert text.startswith(start) and "and 11 more features)" in text
    assert "tune for old" in text


@pytest.mark.parametrize(
    ("recorded", "wanted", "said"),
    [
        (ZEN4, MASKED, "another zen-x (the target zen-x lacks avx512bf16)"),
        (MASKED, ZEN4, "another zen-x (the target zen-x has avx512bf16 too)"),
        (ZEN4, replace(ZEN4, cpu="generic"), "zen-x (the target is generic)"),
        (replace(HOST, cpu="zen-x"), HOST, f"zen-x (LLVM takes this CPU for {HOST.cpu})"),
        (replace(ZEN4, vector_bytes=32), ZEN4, "(vectors of 8 floats; the target zen-x: 16)"),
        (
            target_named("neoverse-v1"),
            ZEN4,
            "neoverse-v1 (aarch64 linux; the target zen-x is x86_64",
        ),
    ],
)
def test_what_differs_of_a_target_is_named(
    store: Store, recorded: Target, wanted: Target, said: str
) -> None:
    remember(store, recorded, 2, "k0")
    (found,) = left(store, wanted)
    assert found.differs == ("target",) and said in found.reason


def test_a_target_that_this_machine_runs_is_offered_by_name(store: Store) -> None:
    remember(store, HOST, 1, "k0")
    (found,) = left(store, replace(ZEN4, cpu="made-up"))
    assert found.advice == "build with --targets host, or tune for made-up"


def test_code_that_this_machine_cannot_run_is_not_offered(store: Store) -> None:
    remember(store, replace(HOST, features=(*HOST.features, "avx99")), 1, "k0")
    (found,) = left(store, HOST)
    assert "this CPU lacks avx99" in found.reason and found.advice == "tune on this machine"


def test_other_caches_and_cores_are_no_other_target(store: Store) -> None:
    remember(store, OTHER_CACHES, 3, "k0")
    assert left(store) == []  # they are applied
    assert OTHER_CACHES.key == ZEN4.key


def test_a_target_without_a_description_is_named_by_its_key(store: Store) -> None:
    store.add([TargetRecord("lost-7", {"lost": 7})])
    store.add([WorkloadRecord("k0", "k0", {})])
    key = TaskKey("k0", "lost-7", 1, "default", compiler.VERSION)
    store.add([TrialRecord(key, "r", "tiled", {}, [], "ok", 1.0)])
    assert texts(store) == ["1 record of 1 kernel is for lost-7: tune for zen-x"]


def test_records_of_another_precision_are_those_of_the_models_other_jobs(store: Store) -> None:
    remember(store, ZEN4, 4, "narrow", numerics="bf16")
    remember(store, ZEN4, 2, "tuned", numerics="bf16")  # a kernel that both have
    (found,) = left(store)
    assert found.differs == ("precision",)
    assert str(found) == (
        "4 records of 1 kernel are in bf16 precision: "
        "build with --precision bf16, or tune with --precision default"
    )


def test_records_of_jobs_in_the_wanted_precision_differ_in_none(store: Store) -> None:
    remember(store, ZEN4, 4, "of another plan", numerics="default")
    assert left(store) == []


def test_strict_and_default_are_told_apart(store: Store) -> None:
    remember(store, ZEN4, 2, "k0", admitted="strict")
    assert texts(store)[0].endswith(
        "in strict precision: build with --precision strict, or tune with --precision default"
    )
    remember(store, ZEN4, 2, "k1")
    (found,) = left(store, precision="strict")
    assert "in the default precision: build with --precision default" in str(found)


def test_records_of_another_compiler_version_have_to_be_tuned_again(store: Store) -> None:
    remember(store, ZEN4, 9, "k0", version="0", threads=4)
    remember(store, V3, 1, "of another model", version="0")
    version = f"2 kernels are of compiler version 0 (this is {compiler.VERSION}): tune again"
    assert texts(store) == [f"10 records of {version}"]


def test_several_differences_are_said_in_one_line(store: Store) -> None:
    remember(store, V3, 5, "k0", threads=2, admitted="strict")
    (found,) = left(store)
    assert found.differs == ("threads", "target", "precision")
    assert " are for 2 threads and for old (" in found.reason
    assert found.reason.endswith(" and in strict precision")


def test_what_failed_is_said_first_and_with_its_statuses(store: Store) -> None:
    remember(store, ZEN4, 2, "k1", status="wrong_result")
    remember(store, ZEN4, 2, "k0", threads=2)
    failed, other = texts(store)
    assert failed == "matmul was tuned, but no trial can be applied: 2 wrong_result"
    assert "2 threads" in other


def test_kernels_that_have_a_record_are_not_counted(store: Store) -> None:
    remember(store, ZEN4, 3, "tuned", "k0", threads=2, numerics="default")
    assert [(item.records, item.kernels) for item in left(store)] == [(3, 1)]


def test_many_reasons_are_cut_to_a_few_lines(store: Store) -> None:
    for threads in range(2, MOST_LINES + 4):
        remember(store, ZEN4, 1, "k0", threads=threads)
    found = left(store)
    assert len(found) == MOST_LINES + 1
    rest = "2 records of 1 kernel are for 2 other combinations: tune db list names them"
    assert str(found[-1]) == rest


class Folder:
    """A folder with a model, and a database of records of its kernels."""

    def __init__(self, path: Path) -> None:
        self.path = path
        onnx.save(tiny_model(), path / "tiny.onnx")
        calls = kernels_of(str(path / "tiny.onnx")).calls
        kernels = [call.kernel for call in calls if isinstance(call, KernelCall)]
        self.kernels = {workload_key(kernel): kernel for kernel in kernels}

    def remember(self, threads: int, *, only_first: bool = False) -> None:
        with Store.open(self.path / "tuning.db") as store:
            for kernel in list(self.kernels.values())[: 1 if only_first else None]:
                task = record_kernel(store, kernel, HOST, threads)
                store.add([TrialRecord(task, "r", "default", {}, [], "ok", 1e-6)])

    def build(self, **options: Any) -> BuildResult:
        settings = load_settings(None, {"database.url": "tuning.db"}, environment={})
        return build(BuildRequest("tiny.onnx", "tiny.tuned", settings, **options))


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Folder:
    monkeypatch.chdir(tmp_path)
    return Folder(tmp_path)


def line(folder: Folder) -> str:
    count = len(folder.kernels)
    return (
        f"{count} records of {count} kernels are for 2 threads: "
        "build with --threads 2, or tune with --threads 1"
    )


def test_a_build_says_it_in_its_notes_and_as_json(folder: Folder) -> None:
    folder.remember(2)
    for _ in range(2):  # compiled, then from the cache
        result = folder.build()
        assert result.notes == (line(folder),)
        (value,) = result.to_json()["unapplied"]
        assert (value["differs"], value["records"]) == (["threads"], len(folder.kernels))


def test_a_share_that_is_not_reached_is_refused_with_the_reason(folder: Folder) -> None:
    folder.remember(2)
    with pytest.raises(TunefarmError) as refused:
        folder.build(require_tuned=0.9)
    assert line(folder) in str(refused.value.hint)
    assert not os.path.exists("tiny.tuned")


@pytest.mark.parametrize("make", [tuner.build, tuner.InferenceSession])
def test_python_warns_with_the_reason(folder: Folder, make: Any) -> None:
    folder.remember(2)
    with pytest.warns(tuner.UntunedWarning) as caught:
        make("tiny.onnx", db="tuning.db")
    reason = f"no record of the database applies ({line(folder)}); tunefarm.tune"
    assert f"tiny.onnx is built untuned: {reason}" in str(caught[0].message)
    assert caught[0].filename == __file__


def test_python_warns_where_some_kernels_have_no_record(folder: Folder) -> None:
    folder.remember(2)
    folder.remember(1, only_first=True)
    with pytest.warns(tuner.UntunedWarning, match="kernels untuned: .* are for 2 threads: "):
        tuner.build("tiny.onnx", db="tuning.db")


def test_showing_a_kernel_says_which_records_no_build_here_uses(folder: Folder) -> None:
    folder.remember(1, only_first=True)
    key = next(iter(folder.kernels))
    other = replace(HOST, features=(*HOST.features, "avx99"))
    with Store.open("tuning.db") as store:
        store.add([TargetRecord(other.key, other.to_json())])
        used = task_key(key, HOST, 1, "default")
        for task in (replace(used, target=other.key), replace(used, compiler_version="0")):
            store.add([TrialRecord(task, "r", "default", {}, [], "ok", 1e-6)])
        lines = show_lines(store, key, 1)
    start = "  builds on this machine do not use these: they are "
    found = [line.removeprefix(start) for line in lines if line.startswith(start)]
    assert found == [
        f"for another {HOST.cpu} (this CPU lacks avx99)",
        f"of compiler version 0 (this is {compiler.VERSION})",
    ]
