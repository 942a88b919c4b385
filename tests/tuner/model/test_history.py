"""Schedules for kernels that were never measured, from the records of others."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest

from tests.end_to_end.tiny_model import tiny_model
from tests.tuner.fleet import record_kernel, trial_of
from tests.tuner.synthetic import TARGET, matmul_kernel
from tunefarm.compiler.errors import TunefarmError
from tunefarm.compiler.kernels.kernel import FusedKernel, KernelCall
from tunefarm.compiler.kernels.workload_key import workload_key
from tunefarm.compiler.pipeline import kernels_of
from tunefarm.compiler.schedule.space import Candidate, ScheduleSpace
from tunefarm.compiler.schedule.spaces import schedule_space
from tunefarm.compiler.target import Target, host_target
from tunefarm.configs.settings import Settings, load_settings
from tunefarm.db import queries
from tunefarm.db.records import TaskKey, TrialRecord, WorkloadRecord
from tunefarm.db.store import Store
from tunefarm.tuner.building.apply_best import choose_from
from tunefarm.tuner.building.flow import build
from tunefarm.tuner.building.request import BuildRequest, BuildResult
from tunefarm.tuner.model.cost_model import BoostedTrees
from tunefarm.tuner.model.features import ESTIMATE, FEATURES, FeatureExtractor
from tunefarm.tuner.model.history import (
    MOST_ROWS,
    background,
    bests,
    bests_elsewhere,
    nearest_bests,
    past_kernel,
    read_history,
)
from tunefarm.tuner.model.packed_space import PackedSpace
from tunefarm.tuner.records.trials import task_key
from tunefarm.tuner.records.unapplied import Wanted, unapplied
from tunefarm.tuner.search.make_tasks import TaskSource, known_of_others, make_tasks

KNOWN = [matmul_kernel(64, 256, 128), matmul_kernel(96, 512, 64), matmul_kernel(48, 128, 256)]
UNKNOWN = matmul_kernel(80, 384, 96)


def seconds(space: ScheduleSpace, kernel: FusedKernel, candidate: Candidate) -> float:
    """The estimate, but "column block" is half as fast: against what the default thinks."""
    row = FeatureExtractor(space, kernel, TARGET)([candidate])[0]
    slow = 1.0 if space.choices(candidate)["loops"] == "column block" else 2.0
    return 1e-3 * slow * float(np.exp2(row[ESTIMATE]))


@pytest.fixture
def store(tmp_path: Path) -> Store:
    return Store.open(tmp_path / "tuning.db")


def remember(
    store: Store,
    kernel: FusedKernel,
    count: int,
    version: str | None = None,
    target: Target = TARGET,
) -> TaskKey:
    """Record so many trials of a kernel, drawn at random."""
    key = record_kernel(store, kernel, target, version=version)
    space = schedule_space(kernel, target)
    packed = PackedSpace(space)
    rows = packed.sample(count - 1, np.random.default_rng(0))
    rows = np.concatenate([packed.pack([space.default()]), rows])
    records = []
    for i, row in enumerate(rows):
        candidate = packed.unpack(row)
        latency = seconds(space, kernel, candidate)
        measured = {"samples": (latency,), "conditions": {"anchor_seconds": 1e-9}}
        record = trial_of(key, space, candidate, latency, request_id=f"trial-{i}", **measured)
        records.append(record)
    store.add(records)
    return key


def test_a_kernel_without_a_record_is_left_alone(store: Store) -> None:
    for kernel in KNOWN:
        remember(store, kernel, 40)
    assert choose_from(store, TARGET, 1, "default")(UNKNOWN) is None


def test_other_threads_numerics_and_versions_teach_nothing(store: Store) -> None:
    for kernel in KNOWN:
        remember(store, kernel, 60, version="0")
    like = task_key("", TARGET, 1, "default")
    assert read_history(store, like, TARGET) == []
    (left,) = unapplied(store, Wanted(like, TARGET, "default", untuned={"0": "a kernel"}))
    assert (left.differs, left.records, left.kernels) == (("compiler version",), 180, 3)
    assert "compiler version 0" in str(left) and left.advice == "tune again"


def built(folder: Path, **options: Any) -> BuildResult:
    """The build of folder/tiny.onnx by the records of folder/tuning.db."""
    settings = load_settings(None, {"database.url": str(folder / "tuning.db")}, environment={})
    request = BuildRequest(
        str(folder / "tiny.onnx"), str(folder / "tiny.tuned"), settings, **options
    )
    return build(request)


def test_a_build_says_which_records_do_not_apply(tmp_path: Path) -> None:
    onnx.save(tiny_model(), tmp_path / "tiny.onnx")
    with Store.open(tmp_path / "tuning.db") as store:
        key = record_kernel(store, KNOWN[0], host_target(), version="0")
        store.add([TrialRecord(key, "a", "tiled", {}, [], "ok", 1.0, (1.0,))])
    report = built(tmp_path).report
    assert len(report.notes) == 1 and "version 0" in report.notes[0]
    assert report.tuned_share == 0.0


def test_a_build_says_why_a_tuned_kernel_stays_untuned(tmp_path: Path) -> None:
    onnx.save(tiny_model(), tmp_path / "tiny.onnx")
    host = host_target()
    calls = kernels_of(str(tmp_path / "tiny.onnx")).calls
    kernel = next(call.kernel for call in calls if isinstance(call, KernelCall))
    with Store.open(tmp_path / "tuning.db") as store:
        key = record_kernel(store, kernel, host)
        scattered = TrialRecord(key, "a", "tiled", {}, [], "unstable", 1.0, (1.0,))
        store.add([scattered, replace(scattered, schedule=[["again"]])])
    (note,) = built(tmp_path).report.notes
    assert note == f"{kernel.name} was tuned, but no trial can be applied: 2 unstable"
    with pytest.raises(TunefarmError) as refused:
        built(tmp_path, require_tuned=0.9)
    assert note in str(refused.value.hint)


def test_history_leaves_out_what_the_job_tunes_itself(store: Store) -> None:
    keys = [remember(store, kernel, 10) for kernel in KNOWN]
    past = read_history(store, keys[0], TARGET, without={keys[1].workload})
    assert [item.kernel for item in past] == [KNOWN[2], KNOWN[0]]  # the one seen last first
    data = background(past, keys[0].threads)
    assert [set(part.tasks.tolist()) for part in data] == [{-1}, {-2}]
    assert all(np.isfinite(part.yardsticks).all() for part in data)


def test_a_job_learns_from_other_targets_and_starts_from_its_own(store: Store) -> None:
    """The same kernel on another CPU too; what is tried first was the best on this one."""
    narrow = replace(TARGET, cpu="narrow", vector_bytes=32, vector_registers=16)
    own = remember(store, KNOWN[0], 30)
    foreign = [remember(store, kernel, 30, target=narrow) for kernel in KNOWN[:2]]
    assert [item.kernel for item in read_history(store, own, TARGET)] == [KNOWN[0]]
    past = read_history(store, own, TARGET, without={own.workload}, everywhere=True)
    assert [item.target for item in past] == [narrow, narrow]
    assert {item.kernel for item in past} == set(KNOWN[:2])
    assert all(len(item.trials) > 20 for item in past), foreign
    assert bests(past, TARGET) == [] and len(bests(past, narrow)) == 2
    kernels = {own.workload: (KNOWN[0], 1)}
    parts = known_of_others([TaskSource(TARGET, kernels, past)] * 2, Settings())
    assert sum(map(len, parts)) == sum(len(item.trials) for item in past)
    lanes = FEATURES.index("target.lanes")
    assert {float(row) for part in parts for row in part.features[:, lanes]} == {8.0}
    tuned = [TaskSource(narrow, {key.workload: (KNOWN[0], 1) for key in foreign}, past)]
    assert known_of_others(tuned, Settings()) == []


def test_a_long_history_keeps_the_fastest_and_a_spread_of_others(store: Store) -> None:
    key = remember(store, KNOWN[0], 900)
    space = schedule_space(KNOWN[0], TARGET)
    records = queries.trials(store, key)
    past = past_kernel(KNOWN[0], space, TARGET, records)
    assert len(past.trials) in (MOST_ROWS, MOST_ROWS + 1)
    assert space.default() in [trial.candidate for trial in past.trials]
    kept = sorted(trial.lesson.latency for trial in past.trials)
    known = sorted({r.schedule_hash: r.latency or 0.0 for r in records}.values())
    assert kept[: MOST_ROWS // 2] == known[: MOST_ROWS // 2]
    assert kept[-1] >= known[-8]
    assert past.best is not None and past.best.kernel == KNOWN[0]


def test_many_kernels_share_the_rows_of_a_job(store: Store) -> None:
    keys = [remember(store, kernel, 100) for kernel in KNOWN]
    past = read_history(store, keys[0], TARGET, rows=120)
    assert all(len(item.trials) in (40, 41) for item in past)
    assert len(read_history(store, keys[0], TARGET, rows=1)[0].trials) in (24, 25)


def test_a_record_that_cannot_be_read_is_left_out(store: Store) -> None:
    key = remember(store, KNOWN[0], 10)
    broken = TaskKey("0" * 64, TARGET.key, 1, "default", key.compiler_version)
    store.add([WorkloadRecord(broken.workload, "other", {"format": -1})])
    store.add([TrialRecord(broken, "a", "tiled", {}, [], "ok", 1.0, (1.0,))])
    assert [item.kernel for item in read_history(store, key, TARGET)] == [KNOWN[0]]


def test_the_best_for_other_threads_is_a_place_to_start_from(store: Store) -> None:
    key = remember(store, KNOWN[0], 30)
    best = queries.fastest_trial(store, key)
    assert best is not None
    two = replace(key, threads=2)
    found = bests_elsewhere(store, {key.workload: KNOWN[0]}, two)
    assert [known.choices for known in found[key.workload]] == [best.choices]
    assert bests_elsewhere(store, {key.workload: KNOWN[0]}, key) == {}
    settings = load_settings(overrides={"compile.threads": 2}, environment={})
    kernels = {key.workload: (KNOWN[0], 1)}
    (task,) = make_tasks([TaskSource(TARGET, kernels, (), found)], settings, BoostedTrees(0))
    first = [task.search.ask(1)[0] for _ in range(2)]
    assert first[0] == task.space.default()
    kept = {name: v for name, v in task.space.choices(first[1]).items() if name in best.choices}
    assert kept == {n: tuple(v) if isinstance(v, list) else v for n, v in best.choices.items()}


def test_relatives_of_earlier_jobs_come_after_the_default(store: Store) -> None:
    for kernel in KNOWN:
        remember(store, kernel, 30)
    like = task_key("", TARGET, 1, "default")
    past = read_history(store, like, TARGET)
    kernels = {workload_key(UNKNOWN): (UNKNOWN, 1)}
    settings = load_settings(environment={})
    (task,) = make_tasks([TaskSource(TARGET, kernels, past)], settings, BoostedTrees(0))
    proposals = [task.search.ask(1)[0] for _ in range(3)]
    wanted = nearest_bests(UNKNOWN, task.space, bests(past, TARGET))
    assert proposals == [task.space.default(), *wanted]
