"""`tune db check` replays records: what a sound database prints, and every damage it must find."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import update

from tests.instant_runner import InstantRunner
from tests.measure.fault_kernels import make_kernel
from tests.tuner import synthetic
from tests.tuner.fleet import record_kernel
from tests.tuner.wrong_code import COMPILE_CRASHING, COMPILE_WRONG
from tunefarm import compiler
from tunefarm.compiler.kernels.kernel import FusedKernel
from tunefarm.compiler.kernels.serialize import kernel_to_json
from tunefarm.compiler.kernels.workload_key import workload_key
from tunefarm.compiler.schedule.spaces import schedule_space
from tunefarm.compiler.target import Target, host_target
from tunefarm.db import queries, schema
from tunefarm.db.checksum import checksum_of
from tunefarm.db.records import TrialRecord
from tunefarm.db.store import Store
from tunefarm.measure.farm.make_runner import create_runner
from tunefarm.measure.farm.runner import Runner, RunnerOptions
from tunefarm.measure.machine import available_cores
from tunefarm.measure.measurement import MeasureRequest, MeasureResult, Status
from tunefarm.tuner.commands.cli import app
from tunefarm.tuner.commands.command_line import run_command
from tunefarm.tuner.records.replay import replay_records, sample_records

HOST = host_target()
MATMUL = synthetic.matmul_kernel(6, 8, 5)
DOUBLE = make_kernel()


class Records:
    """A store, and short ways to put records into it."""

    def __init__(self, store: Store) -> None:
        self.store = store
        self._count = 0

    def add(
        self,
        kernel: FusedKernel,
        schedule: list[Any] | None = None,
        *,
        target: Target = HOST,
        threads: int = 1,
        version: str = compiler.VERSION,
        **changes: Any,
    ) -> TrialRecord:
        """Record a trial of `kernel` with this schedule, else the default one."""
        key = record_kernel(self.store, kernel, target, threads, version)
        if schedule is None:
            space = schedule_space(kernel, target, threads)
            schedule = space.schedule(space.default()).to_json()
        self._count += 1
        trial = TrialRecord(key, f"r{self._count}", "s", {}, schedule, "ok", latency=1.0)
        self.store.add([replace(trial, **changes)])
        return queries.trials(self.store, key)[-1]

    def rewrite(self, kind: type[schema.Base], number: int, **changes: Any) -> None:
        """Change a row and its checksum, as a program with a bug would."""
        with self.store.writing() as session:
            row: Any = session.get_one(kind, number)
            for name, value in changes.items():
                setattr(row, name, value)
            row.checksum = checksum_of(row)


@pytest.fixture
def records(tmp_path: Path) -> Iterator[Records]:
    with Store.open(tmp_path / "tuning.db") as store:
        yield Records(store)


def no_runner(threads: int) -> Runner:
    raise AssertionError("nothing is to be run")


class AnsweringRunner(InstantRunner):
    """Answers every request with one status."""

    def __init__(self, status: Status, error: str = "") -> None:
        super().__init__(1)
        self._status, self._error = status, error

    def answer(self, request: MeasureRequest) -> MeasureResult:
        return MeasureResult(request.request_id, self._status, error=self._error)


def answering(status: Status, error: str = "") -> Callable[[int], Runner]:
    return lambda threads: AnsweringRunner(status, error)


def check_command(records: Records, *options: str) -> int:
    return run_command(app, ["db", "check", "--db", records.store.name, *options])


def test_a_sound_database_is_rebuilt_and_run(
    records: Records, capsys: pytest.CaptureFixture[str]
) -> None:
    records.add(MATMUL)
    records.add(MATMUL, [["Unroll", "matmul", "n"]])
    records.add(DOUBLE)
    before = list(queries.iterate_trials(records.store))
    assert check_command(records) == 0
    printed = capsys.readouterr().out
    assert printed.splitlines() == [
        f"{records.store.name}: no problems",
        "replayed 3 of 3 records: 3 rebuilt, 3 run",
    ]
    assert list(queries.iterate_trials(records.store)) == before


@pytest.mark.parametrize(
    ("schedule", "problem"),
    [
        ([["Unroll", "matmul", "nowhere"]], "the schedule does not fit its kernel: "),
        ([["Tile", "matmul", "n", "wide"]], "the schedule does not fit its kernel: "),
        ([["Conjure", "matmul"]], "the schedule does not fit its kernel: unknown schedule step"),
        (
            [["Unroll", "matmul", "n", True]],
            "the schedule that is read is not the one that was recorded",
        ),
    ],
)
def test_a_schedule_that_is_not_its_kernels_is_found(
    records: Records,
    schedule: list[Any],
    problem: str,
    capsys: pytest.CaptureFixture[str],
) -> None:
    number = records.add(MATMUL, schedule).number
    assert check_command(records) == 1
    line, summary = capsys.readouterr().out.splitlines()
    assert line.startswith(f"trials {number}: {problem}")
    assert summary == "replayed 1 of 1 records: 0 rebuilt, 0 run"


def test_a_kernel_of_another_workload_is_found_once(records: Records) -> None:
    records.add(MATMUL)
    records.add(MATMUL, [["Unroll", "matmul", "n"]])
    records.rewrite(schema.Workload, 1, kernel=kernel_to_json(DOUBLE))
    replay = replay_records(records.store, 9, make_runner=no_runner)
    expected = f"workloads {workload_key(MATMUL)}: the kernel is another one's, "
    assert replay.problems == (expected + workload_key(DOUBLE),)
    assert (replay.records, replay.rebuilt, replay.run) == (2, 0, 0)


def test_a_kernel_that_breaks_the_rules_is_found(records: Records) -> None:
    records.add(MATMUL)
    value = kernel_to_json(MATMUL)
    value["stages"] = [*value["stages"], ["orphan"]]
    records.rewrite(schema.Workload, 1, kernel=value)
    (problem,) = replay_records(records.store, 9, make_runner=no_runner).problems
    assert "the kernel cannot be rebuilt: damaged kernel JSON: ValueError" in problem


@pytest.mark.parametrize(
    ("compile", "problem"),
    [
        (COMPILE_WRONG, "wrong_result when replayed: seed 0: output["),
        (COMPILE_CRASHING, "crashed when replayed: "),
    ],
)
def test_code_that_computes_something_else_is_found(
    records: Records, compile: str, problem: str
) -> None:
    number = records.add(DOUBLE).number
    replay = replay_records(
        records.store,
        9,
        make_runner=lambda threads: create_runner(
            "local", RunnerOptions(threads=threads, compile=compile)
        ),
    )
    (line,) = replay.problems
    assert line.startswith(f"trials {number}: {problem}")
    assert (replay.rebuilt, replay.run) == (1, 1)


def test_records_of_another_target_are_rebuilt_and_not_run(
    records: Records, capsys: pytest.CaptureFixture[str]
) -> None:
    records.add(MATMUL, target=synthetic.TARGET)
    records.add(DOUBLE, target=synthetic.TARGET)
    assert check_command(records) == 0
    printed = capsys.readouterr().out
    assert "no problems" in printed
    assert "2 rebuilt, 0 run; not run: 2 of another target" in printed


def test_a_schedule_for_another_target_must_fit_too(records: Records) -> None:
    number = records.add(MATMUL, [["Unroll", "matmul", "m2"]], target=synthetic.TARGET).number
    replay = replay_records(records.store, 9, make_runner=no_runner)
    assert [line.split(":")[0] for line in replay.problems] == [f"trials {number}"]


def test_records_of_another_compiler_version_are_counted_and_no_error(records: Records) -> None:
    records.add(MATMUL, version="0")
    records.add(MATMUL, [["OldStep", "matmul"]], version="0")
    replay = replay_records(records.store, 9, make_runner=no_runner)
    assert replay.problems == ()
    assert replay.summary() == (
        "replayed 2 of 2 records: 1 rebuilt, 0 run; not run: 1 of another compiler version; "
        "1 of another compiler version cannot be rebuilt by this one"
    )


def test_what_failed_when_measured_is_neither_run_nor_need_it_be_lowered(records: Records) -> None:
    records.add(MATMUL, [["Unroll", "matmul", "x"]], status="build_error", latency=None)
    records.add(MATMUL, status="crashed", latency=None)
    replay = replay_records(records.store, 9, make_runner=no_runner)
    assert replay.problems == ()
    assert replay.not_run == {"without a right result when measured": 2}


def test_what_only_scattered_when_measured_is_run(records: Records) -> None:
    records.add(MATMUL, status="unstable")
    replay = replay_records(records.store, 9, make_runner=answering(Status.OK))
    assert (replay.run, replay.not_run, replay.problems) == (1, {}, ())


def test_records_of_more_threads_than_cores_are_rebuilt_and_not_run(records: Records) -> None:
    records.add(MATMUL, threads=len(available_cores()) + 1)
    replay = replay_records(records.store, 9, make_runner=no_runner)
    assert (replay.rebuilt, replay.run, replay.problems) == (1, 0, ())
    assert "1 with more threads than this machine has cores" in replay.summary()


def test_every_number_of_threads_has_a_runner_of_its_own(records: Records) -> None:
    made = []

    def make(threads: int) -> Runner:
        made.append(threads)
        return AnsweringRunner(Status.OK)

    if len(available_cores()) < 2:
        pytest.skip("needs two cores")
    for kernel, threads in ((MATMUL, 2), (DOUBLE, 1), (DOUBLE, 2)):
        records.add(kernel, threads=threads)
    assert replay_records(records.store, 9, make_runner=make).run == 3
    assert made == [1, 2]


@pytest.mark.parametrize("status", [Status.SCATTERED, Status.UNSTABLE])
def test_scattered_times_are_no_problem(records: Records, status: Status) -> None:
    records.add(MATMUL)
    replay = replay_records(records.store, 9, make_runner=answering(status))
    assert (replay.run, replay.problems) == (1, ())


def test_without_a_worker_nothing_was_run_and_nobody_is_blamed(records: Records) -> None:
    records.add(MATMUL)
    replay = replay_records(records.store, 9, make_runner=answering(Status.INFRASTRUCTURE, "lost"))
    assert (replay.rebuilt, replay.run, replay.problems) == (1, 0, ())
    assert "1 because no process could be had for them" in replay.summary()


def test_of_a_traceback_the_last_line_is_told(records: Records) -> None:
    number = records.add(MATMUL).number
    error = "Traceback (most recent call last):\n  File\nKeyError: 'i'\n"
    replay = replay_records(records.store, 9, make_runner=answering(Status.BUILD_ERROR, error))
    assert replay.problems == (f"trials {number}: build_error when replayed: KeyError: 'i'",)


def test_what_a_build_applies_is_sampled_first(records: Records) -> None:
    applied = []
    for extent in (3, 4, 5):
        kernel = synthetic.matmul_kernel(extent, 8, 5)
        for latency in (3.0, 1.0, 2.0):
            added = records.add(kernel, [["Unroll", "matmul", "n"]], latency=latency)
            applied += [added.number] if latency == 2.0 else []
    sample = sample_records(records.store, 3)
    assert sorted(record.number or 0 for record in sample) == applied


def test_the_rest_of_a_sample_is_spread_over_the_tasks(records: Records) -> None:
    for extent, count in ((3, 20), (4, 4), (5, 1)):
        for _ in range(count):
            records.add(synthetic.matmul_kernel(extent, 8, 5), [])
    sample = sample_records(records.store, 9)
    assert len({record.number for record in sample}) == 9
    assert sorted(Counter(record.key.workload for record in sample).values()) == [1, 4, 4]


def test_a_sample_is_drawn_by_its_seed(records: Records) -> None:
    for _ in range(40):
        records.add(MATMUL, [])

    def numbers(seed: int) -> list[int | None]:
        return [record.number for record in sample_records(records.store, 8, seed)]

    assert numbers(1) == numbers(1) != numbers(2)


def test_a_small_database_is_replayed_whole(records: Records) -> None:
    records.add(MATMUL, [], target=synthetic.TARGET)
    records.add(MATMUL, [], target=synthetic.TARGET, status="crashed", latency=None)
    assert replay_records(records.store, 16, make_runner=no_runner).records == 2


def test_an_empty_database_has_nothing_to_replay(
    records: Records, capsys: pytest.CaptureFixture[str]
) -> None:
    assert check_command(records) == 0
    assert "replayed 0 of 0 records" in capsys.readouterr().out


def test_without_replay_only_the_structure_is_checked(
    records: Records, capsys: pytest.CaptureFixture[str]
) -> None:
    records.add(MATMUL, [["Conjure", "matmul"]])
    assert check_command(records, "--replay", "0") == 0
    assert capsys.readouterr().out == f"{records.store.name}: no problems\n"


def test_a_damaged_database_is_not_replayed(
    records: Records, capsys: pytest.CaptureFixture[str]
) -> None:
    records.add(MATMUL)
    with records.store.writing() as session:
        session.execute(update(schema.Trial).values(latency=0.5))  # not its checksum
    assert check_command(records) == 1
    damage, note = capsys.readouterr().out.splitlines()
    assert damage == "trials 1: its checksum is not right"
    assert note == "no record was replayed because the database is damaged"


def test_records_of_a_server_are_replayed(postgresql_url: str) -> None:
    with Store.open(postgresql_url) as store:
        records = Records(store)
        records.add(MATMUL)
        number = records.add(DOUBLE, [["Unroll", "mul", "nowhere"]]).number
        replay = replay_records(store, 9, make_runner=answering(Status.OK))
    assert (replay.rebuilt, replay.run) == (1, 1)
    (problem,) = replay.problems
    assert problem.startswith(f"trials {number}: the schedule does not fit its kernel")


def test_tasks_without_an_ok_trial_are_replayed_too(records: Records) -> None:
    key = records.add(MATMUL, status="crashed", latency=None).key
    (sampled,) = sample_records(records.store, 4)
    assert sampled.key == key
