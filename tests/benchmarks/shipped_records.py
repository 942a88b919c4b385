"""Makes the databases that come with the package: what jobs have settled on the CPUs at hand.

    python -m tests.benchmarks.shipped_records make FOLDER [--minutes 3] [--threads 1 2]
        [--models resnet18 …] [--targets host …]
    python -m tests.benchmarks.shipped_records write FOLDER/work.db
    python -m tests.benchmarks.shipped_records check FOLDER [--models …] [--threads …]
    python -m tests.benchmarks.shipped_records gain MODEL WORK.db [--threads 1] [--minutes 1]

`make` tunes networks of the zoo, each with each number of threads for each target, in
FOLDER/work.db; run again it goes on with more minutes. `write` writes tuner/records/shipped/KEY.db
for each target of a database: of each kernel that was settled under this version of the compiler
the schedule, the default one that it met, and how the two compared; and the models' plans. What
such a file has of other kernels stays. No job, no setting and no name of a file goes there.

After a new version of the compiler what was shipped is a nominee. `check` has it meet the default
schedules of this version, as `tune verify --quick` does, model by model, and writes what is still
faster. That takes less than a minute for each model; `make` finds more.

`gain` compares three builds of a model, interleaved: untuned, with what is shipped alone, and with
WORK.db, a job of its own.
"""

from __future__ import annotations

import argparse
import math
import sqlite3
import sys
from collections.abc import Iterator, Sequence
from contextlib import closing
from dataclasses import replace
from pathlib import Path

import onnx

import tunefarm
from tunefarm import compiler
from tunefarm.compiler.frontend.zoo.models import build_model
from tunefarm.compiler.runtime.execution.executable import load
from tunefarm.compiler.target import host_target
from tunefarm.configs.settings import HOST, load_settings
from tunefarm.db import model_queries, queries
from tunefarm.db.export import add_records
from tunefarm.db.records import Record, TaskKey
from tunefarm.db.store import Store
from tunefarm.measure.compare import Comparison
from tunefarm.tuner.building.flow import build
from tunefarm.tuner.building.request import SHIPPED, BuildRequest
from tunefarm.tuner.confirm.latency import COMPARISON, meetings_of
from tunefarm.tuner.confirm.verdict import compare
from tunefarm.tuner.verify.quick import verify_quick
from tunefarm.tuner.verify.show import check_lines

MODELS = ("resnet18", "resnet50", "mobilenet_v2", "yolov8n", "encoder", "vit_tiny")
"""A network of each family whose kernels others share."""
THREADS = (1, 2)
PRECISE = 0.0015
"""Standard error of `gain`: shares of a gain of some per cent are asked for."""


def model_in(folder: Path, name: str) -> str:
    """The file of a network of the zoo in a folder."""
    path = folder / f"{name}.onnx"
    if not path.exists():
        onnx.save(build_model(name), path)
    return str(path)


def make(
    folder: Path,
    models: Sequence[str],
    targets: Sequence[str],
    threads: Sequence[int],
    minutes: float,
) -> None:
    """Tune each model with each number of threads for each target, and write what was settled."""
    folder.mkdir(parents=True, exist_ok=True)
    for target in targets:
        for count in threads:
            for name in models:
                print(f"{name}, {count} threads, {target}", flush=True)
                tunefarm.tune(
                    model_in(folder, name),
                    db=folder / "work.db",
                    minutes=minutes,
                    threads=count,
                    targets=None if target == HOST else [target],
                )
    write(folder / "work.db")


def check(folder: Path, models: Sequence[str], threads: Sequence[int]) -> None:
    """Let the records that are shipped meet the default schedules here, and write those that are
    faster under this version of the compiler."""
    folder.mkdir(parents=True, exist_ok=True)
    database = folder / "checked.db"
    Store.open(database).close()
    for name in models:
        for count in threads:
            values = {"database.url": str(database), "compile.threads": count}
            request = BuildRequest(model_in(folder, name), "", load_settings(None, values))
            found = verify_quick(request, lambda _: None)
            print(f"{count} threads: {'; '.join(check_lines(found))}", flush=True)
    write(database)


def write(database: Path) -> None:
    """Write what a database has settled to a file for each of its targets."""
    with Store.open(database, create=False, read_only=True) as store:
        keys = [key for key in queries.tasks(store) if key.compiler_version == compiler.VERSION]
        for target in sorted({key.target for key in keys}):
            path = SHIPPED / f"{target}.db"
            unfinished = path.with_suffix(".new")
            unfinished.unlink(missing_ok=True)
            unfinished.parent.mkdir(exist_ok=True)
            records = [*others(path, target, store), *settled(store, target, keys)]
            with Store.open(unfinished) as shipped:
                added = add_records(shipped, records, None)
            if not added.trials:
                unfinished.unlink()
                continue
            with closing(sqlite3.connect(unfinished, isolation_level=None)) as connection:
                connection.execute("PRAGMA journal_mode=DELETE")  # it may lie where nobody writes
                connection.execute("PRAGMA page_size=1024")  # most tables are empty
                connection.execute("VACUUM")
            unfinished.replace(path)
            print(f"{path.name}: {added.trials} trials, {path.stat().st_size} bytes")


def others(path: Path, target: str, store: Store) -> list[Record]:
    """What a file that is shipped has of kernels that a database has not settled."""
    if not path.exists():
        return []
    with Store.open(path, create=False, read_only=True) as shipped:
        keys = [key for key in queries.tasks(shipped) if key.compiler_version == compiler.VERSION]
        left = [key for key in keys if queries.best(store, key) is None]
        return list(settled(shipped, target, left))


def settled(store: Store, target: str, keys: Sequence[TaskKey]) -> Iterator[Record]:
    """What was settled for a target, each record behind those that it refers to."""
    found = [(key, queries.best(store, key)) for key in keys if key.target == target]
    bests = {key: best for key, best in found if best is not None}
    yield queries.targets(store)[target]
    yield from queries.workloads(store, list({key.workload for key in bests})).values()
    for key, (best, trial) in bests.items():
        met = queries.trials_of_schedules(store, key, best.met)
        defaults = [item for item in met if item.schedule_hash == trial.reference][:1]
        for item in {item.number: item for item in (*defaults, trial)}.values():
            yield replace(item, job=None, number=None)
    yield from (replace(best, job=None) for best, _ in bests.values())
    for plan in reversed(model_queries.plans(store)):
        if (plan.target, plan.compiler_version) == (target, compiler.VERSION):
            yield plan


def gain(name: str, database: Path, threads: int, minutes: float) -> None:
    """Print which share of the gain of a model's own job the shipped records give."""
    folder = database.parent
    shipped = SHIPPED / f"{host_target().key}.db"
    urls = {"untuned": None, "shipped": shipped, "own": database}
    paths = {}
    for way, url in urls.items():
        values = {"compile.threads": threads, "database.shipped": False, "cache.enabled": False}
        settings = load_settings(None, values | ({"database.url": str(url)} if url else {}))
        paths[way] = str(folder / f"{name}.{way}.tuned")
        untuned = url is None
        build(BuildRequest(model_in(folder, name), paths[way], settings, {}, untuned=untuned))
    options = replace(COMPARISON, max_seconds=60.0 * minutes, precise=PRECISE)
    meetings = meetings_of([load(path) for path in paths.values()], options)
    ratios = {}
    for number, way in enumerate(paths):
        if number:
            found = compare(meetings, number, 0)
            ratios[way] = found.ratio
            print(f"{name}, {way}: {_times(found)} of untuned")
    print(f"{name}, shipped: {_times(compare(meetings, 1, 2))} of own")
    own, other = -math.log(ratios["own"]), -math.log(ratios["shipped"])
    print(f"{name}: share of the gain {other / own:.2f}" if own > 0 else f"{name}: no gain")


def _times(found: Comparison) -> str:
    return f"{found.ratio:.3f} ({found.low:.3f} to {found.high:.3f})"


def main(arguments: Sequence[str]) -> None:
    parser = argparse.ArgumentParser(prog="shipped_records", description=__doc__)
    commands = parser.add_subparsers(dest="command", required=True)
    made, checked = commands.add_parser("make"), commands.add_parser("check")
    for asked in (made, checked):
        asked.add_argument("folder", type=Path)
        asked.add_argument("--models", nargs="+", default=MODELS)
        asked.add_argument("--threads", nargs="+", type=int, default=THREADS)
    made.add_argument("--targets", nargs="+", default=[HOST])
    made.add_argument("--minutes", type=float, default=3.0)
    commands.add_parser("write").add_argument("database", type=Path)
    compared = commands.add_parser("gain")
    compared.add_argument("model")
    compared.add_argument("database", type=Path)
    compared.add_argument("--threads", type=int, default=1)
    compared.add_argument("--minutes", type=float, default=5.0)
    options = parser.parse_args(arguments)
    if options.command == "make":
        make(options.folder, options.models, options.targets, options.threads, options.minutes)
    elif options.command == "write":
        write(options.database)
    elif options.command == "check":
        check(options.folder, options.models, options.threads)
    else:
        gain(options.model, options.database, options.threads, options.minutes)


if __name__ == "__main__":
    main(sys.argv[1:])
