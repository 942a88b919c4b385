"""A large database: its size, how long it takes to open, and to find what to apply.

    python -m tests.benchmarks.database --trials 1000000 [--keep big.db]

The trials are like real ones: schedules of the space of a convolution, most of them measured once,
in pairs with the first one of the task, conditions as a measurement records them. What is looked up
are tasks that a job has settled and others, in turn, each for the first time after opening.
"""

from __future__ import annotations

import argparse
import random
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from statistics import median
from typing import Any

from tests.tuner.recorded import load
from tunefarm.compiler.kernels.serialize import kernel_to_json
from tunefarm.compiler.kernels.workload_key import workload_key
from tunefarm.compiler.schedule.space import ScheduleSpace
from tunefarm.compiler.schedule.spaces import schedule_space
from tunefarm.compiler.target import host_target
from tunefarm.db import queries
from tunefarm.db.records import (
    BestRecord,
    JobTask,
    TargetRecord,
    TaskKey,
    TrialRecord,
    WorkloadRecord,
)
from tunefarm.db.store import Store
from tunefarm.tuner.model.history import read_history
from tunefarm.tuner.records.trials import SLICE_DIGITS, record_to_apply, task_key
from tunefarm.tuner.records.unapplied import Wanted, unapplied

TASKS = 100
BATCH = 1000
OPENINGS = 20
SLICES = 14  # of each side
DISTINCT = 2000  # schedules that the trials take turns with


def main(arguments: list[str]) -> int:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--trials", type=int, default=100_000)
    parser.add_argument("--keep", type=Path, help="where the database goes, or is already")
    options = parser.parse_args(arguments)
    with tempfile.TemporaryDirectory() as folder:
        path = options.keep or Path(folder, "big.db")
        if not path.exists():
            start = time.perf_counter()
            fill(path, options.trials)
            seconds = time.perf_counter() - start
            print(f"written: {options.trials / seconds:.0f} trials a second")
        measure(path, options.trials)
    return 0


def fill(path: Path, count: int) -> None:
    """Write the trials in batches, as a job does."""
    kernel = load()[0].kernel
    target = host_target()
    space = schedule_space(kernel, target, 1, "default")
    examples = list(_examples(space))
    reference = examples[0].schedule_hash
    keys = [task_key(f"{number:016x}", target, 1, "default") for number in range(TASKS)]
    with Store.open(path) as store:
        store.add([TargetRecord(target.key, target.to_json())])
        store.add(WorkloadRecord(key.workload, kernel.name, kernel_to_json(kernel)) for key in keys)
        job = store.start_job("model", workload_key(kernel), {}, [JobTask(key, 1) for key in keys])
        random_numbers = random.Random(0)
        for start in range(0, count, BATCH):
            store.add(
                _trial(keys[number % TASKS], number, examples, reference, job.id, random_numbers)
                for number in range(start, min(start + BATCH, count))
            )
        store.add(filter(None, (_best(store, key, job.id) for key in keys[::2])))
        store.finish_job(job.id, "finished")


def _examples(space: ScheduleSpace) -> Iterator[TrialRecord]:
    """Candidates with their schedules."""
    random_numbers = random.Random(0)
    for _ in range(DISTINCT):
        candidate = space.sample(random_numbers)
        schedule = space.schedule(candidate).to_json()
        choices = {name: _plain(value) for name, value in space.choices(candidate).items()}
        yield TrialRecord(TaskKey("", "", 1, "", ""), "", candidate.sketch, choices, schedule, "ok")


def _plain(value: object) -> object:
    return list(value) if isinstance(value, tuple) else value


def _trial(
    key: TaskKey,
    number: int,
    examples: list[TrialRecord],
    reference: str,
    job: str,
    noise: random.Random,
) -> TrialRecord:
    example = examples[number // TASKS % len(examples)]
    ratio = noise.uniform(0.7, 3.0)
    first = tuple(_rounded(1e-4 * noise.uniform(1, 1.5)) for _ in range(SLICES))
    samples = tuple(_rounded(ratio * noise.uniform(0.98, 1.02) * seconds) for seconds in first)
    pair: dict[str, Any] = {}
    if number >= TASKS:
        pair = {"reference": reference, "reference_samples": first}
        pair |= {"ratio": ratio, "low": ratio / 1.02, "high": ratio * 1.02}
    return TrialRecord(
        key=key,
        request_id=f"{number // TASKS:016x}-{number % TASKS}",
        sketch=example.sketch,
        choices=example.choices,
        schedule=example.schedule,
        status="ok",
        latency=1.2e-4 * ratio,
        samples=samples,
        build_seconds=noise.uniform(0.05, 0.2),
        check_seconds=noise.uniform(0.01, 0.03),
        run_seconds=noise.uniform(0.01, 0.2),
        machine={"cpu": "example", "cores": 2},
        conditions={
            "threads": 1,
            "threading": "",
            "nice": 0,
            "steal_seconds": 0.0,
            "involuntary_switches": noise.randrange(9),
            "queued_seconds": round(noise.uniform(0, 2e-4), 6),
            "load": 2.0,
            "calls": noise.randrange(3, 90),
            "retaken": 0,
            "tainted": 0,
            "constant_copies": 16,
            "anchor_seconds": noise.uniform(1.8e-9, 2e-9),
            "anchor_drift": round(noise.uniform(-0.02, 0.02), 5),
            "relative_mad": round(noise.uniform(0, 0.02), 5),
        },
        job=job,
        **pair,
    )


def _rounded(seconds: float) -> float:
    return float(f"{seconds:.{SLICE_DIGITS}g}")


def _best(store: Store, key: TaskKey, job: str) -> BestRecord | None:
    trial = queries.fastest_trial(store, key)
    if trial is None:
        return None
    hashes = (trial.schedule_hash,)
    return BestRecord(key, trial.schedule_hash, trial.request_id, 2e-4, 0.5, 0.4, 0.6, hashes, job)


def measure(path: Path, count: int) -> None:
    size = path.stat().st_size
    print(f"file: {size / 1e9:.3f} GB, {size / count:.0f} bytes a trial")
    openings, lookups = [], []
    target = host_target()
    keys = [task_key(f"{number:016x}", target, 1, "default") for number in range(TASKS)]
    for _ in range(OPENINGS):
        start = time.perf_counter()
        with Store.open(path, read_only=True):
            openings.append(time.perf_counter() - start)
    with Store.open(path, read_only=True) as store:
        for number, key in enumerate(keys):
            start = time.perf_counter()
            found = record_to_apply(store, key)
            lookups.append(time.perf_counter() - start)
            assert found is not None and found[1] == (number % 2 == 0)
    print(f"opening: {_summary(openings)}")
    first = ", ".join(f"{1e3 * seconds:.1f}" for seconds in lookups[:2])
    print(f"best record: {_summary(lookups[2:])}; the first ones of a process: {first} ms")
    with Store.open(path, read_only=True) as store:
        start = time.perf_counter()
        like = task_key("", target, 1, "default")
        unapplied(store, Wanted(like, target, "default", untuned={"0": "a kernel"}))
        print(f"what does not apply: {1e3 * (time.perf_counter() - start):.1f} ms")
        start = time.perf_counter()
        read_history(store, task_key("", target, 1, "default"), target, rows=2048)
        print(f"what a job starts from: {time.perf_counter() - start:.2f} s")


def _summary(seconds: list[float]) -> str:
    return f"{1e3 * median(seconds):.2f} ms in the median, {1e3 * max(seconds):.2f} ms at most"


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
