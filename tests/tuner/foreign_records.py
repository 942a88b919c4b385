"""Mutated, merged, foreign and stale records by the thousand: what builds make of them, by replay.

Each world is a database of the small model's kernels into which records come from everywhere; some
are lies about their speed, some do not fit, some were changed since. A world must build what the
untuned model computes, apply nothing that loses here after a quick check, and give a reason for
each record that it leaves.

    python -m tests.tuner.foreign_records [--count 2000]
    python -m tests.tuner.foreign_records --measured [--count 50] [--model squeezenet1_1]

With `--measured` nothing is made up: the nominees of a network meet the default schedules on this
machine until so many were measured, and what is built of them is compared with the untuned build.
"""

from __future__ import annotations

import argparse
import random
import shutil
import sys
import tempfile
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from tests.tuner.fleet import CANDIDATES, DEFAULT_SECONDS, HERE, Fleet, faster
from tunefarm import compiler
from tunefarm.compiler.frontend.zoo.models import build_model
from tunefarm.compiler.runtime.execution.executable import load
from tunefarm.db.additions import roll_back
from tunefarm.db.export import merge_records
from tunefarm.db.records import JobTask, TrialRecord
from tunefarm.db.store import Store
from tunefarm.tuner.building.explain import explain_model
from tunefarm.tuner.confirm.latency import COMPARISON, compare_models, outputs_agree
from tunefarm.tuner.records.packs import add_files, write_pack
from tunefarm.tuner.verify.quick import verify_quick

KINDS = ("own", "elsewhere", "merged", "pack", "stale", "mutated", "lying")
NEVER_BELOW = 0.97
_CPUS = ("Another CPU 9000", "Third CPU", "")


@dataclass(slots=True)
class Tally:
    """How many records, how many of them met the default schedules on this machine and were
    accepted, and what went wrong."""

    records: int = 0
    measured: int = 0
    accepted: int = 0
    wrong: int = 0
    slower: int = 0
    unexplained: int = 0
    not_undone: int = 0

    @property
    def problems(self) -> int:
        """Everything that went wrong."""
        return self.wrong + self.slower + self.unexplained + self.not_undone

    def __str__(self) -> str:
        return (
            f"{self.records} records, {self.measured} measured here and {self.accepted} of these "
            f"accepted: {self.wrong} wrong builds, {self.slower} slower than "
            f"untuned after a check, {self.unexplained} left without a reason, "
            f"{self.not_undone} not undone by a rollback"
        )


def run(folder: Path, records: int, seed: int = 0, draws: int = 100) -> Tally:
    """Worlds until so many records were looked at."""
    draw, tally = random.Random(seed), Tally()
    while tally.records < records:
        path = folder / f"world-{tally.records}"
        path.mkdir()
        _world(Fleet(path), draw, draws, tally)
        shutil.rmtree(path)
    return tally


def run_measured(folder: Path, count: int, name: str, seed: int = 0) -> Tally:
    """Worlds of a network of the zoo until so many nominees were measured on this machine."""
    draw, tally = random.Random(seed), Tally()
    while tally.measured < count:
        path = folder / f"world-{tally.records}"
        path.mkdir()
        fleet = Fleet(path, model=build_model(name))
        outputs = _outputs(fleet, untuned=True)
        shutil.copy(path / "tiny.tuned", path / "untuned.tuned")
        tally.records += _fill(fleet, draw, 3 * count)
        tally.wrong += not _same(outputs, _outputs(fleet, accept_nominees=True))
        tally.unexplained += _unexplained(fleet)
        found = verify_quick(fleet.request(), lambda text: print(text, file=sys.stderr))
        tally.measured += sum(met.compared is not None for met in found.met)
        tally.accepted += found.accepted
        tally.wrong += not _same(outputs, _outputs(fleet))
        tally.unexplained += _unexplained(fleet)
        untuned, tuned = (load(path / f"{name}.tuned") for name in ("untuned", "tiny"))
        options = replace(COMPARISON, max_seconds=60.0)
        tally.slower += compare_models(untuned, tuned, None, options).low > 1.0
        shutil.rmtree(path)
    return tally


def _world(fleet: Fleet, draw: random.Random, draws: int, tally: Tally) -> None:
    outputs = _outputs(fleet, untuned=True)
    with fleet.store() as mine:
        for _ in range(draws // 4):
            found = _record(fleet, draw, "own")
            mine.add(fleet.trials(found.key.workload, HERE, numbers=[0]))  # as a search begins
            mine.add([found])
    tally.records += _fill(fleet, draw, draws - draws // 4)
    for accept in (False, True):
        tally.wrong += not _same(outputs, _outputs(fleet, accept_nominees=accept))
    tally.unexplained += _unexplained(fleet)
    verify_quick(
        fleet.request(),
        lambda _: None,
        make_runner=lambda *_: fleet.runner(HERE),
        compare=faster,
    )
    _, result = fleet.build()
    with Store.open(fleet.path / "tuning.db", read_only=True) as mine:
        tally.slower += fleet.time(mine, result, HERE) > 1.0 / NEVER_BELOW
        for use in result.report.kernels:
            if "here" in use.standing and _is_checked(mine, use.report.record_id):
                time = fleet.time_of(mine, use.report.record_id, HERE)
                tally.slower += time > DEFAULT_SECONDS * 1.01
    tally.wrong += not _same(outputs, _outputs(fleet))
    tally.unexplained += _unexplained(fleet)
    tally.not_undone += not _rolls_back(fleet)


def _fill(fleet: Fleet, draw: random.Random, draws: int) -> int:
    """Have so many records come from elsewhere; how many the database has then."""
    with fleet.store() as mine, fleet.store("team.db") as team, fleet.store("packed.db") as other:
        job = [JobTask(fleet.key(workload), 1) for workload in fleet.kernels]
        other.start_job("tiny.onnx", "hash", {}, job)
        for _ in range(draws):
            kind = draw.choice(KINDS[1:])
            store = {"merged": team, "pack": other}.get(kind, draw.choice((mine, team)))
            store.add([_record(fleet, draw, kind)])
        other.add([_record(fleet, draw, "pack")])
        write_pack(other, fleet.path / "a.pack", [])
    with fleet.store() as mine:
        with Store.open(fleet.path / "team.db", read_only=True) as team:
            merge_records(mine, team)
        add_files(mine, fleet.path / "a.pack")
        return _count(mine)


def _rolls_back(fleet: Fleet) -> bool:
    """Whether builds are the same bytes before a merge and after it was undone."""
    with fleet.store("bad.db") as bad:
        for cpu in _CPUS:
            fleet.tune(bad, cpu)
    before, _ = fleet.build()
    with fleet.store() as mine, Store.open(fleet.path / "bad.db", read_only=True) as bad:
        merge_records(mine, bad)
    fleet.build(accept_nominees=True)
    with fleet.store() as mine:
        roll_back(mine)
    return fleet.build()[0] == before


def _record(fleet: Fleet, draw: random.Random, kind: str) -> TrialRecord:
    workload = draw.choice(list(fleet.kernels))
    numbers = range(len(fleet.schedules[workload].candidates))
    cpu = HERE if kind in ("own", "merged", "stale", "mutated") else draw.choice(_CPUS[:2])
    version = str(draw.randrange(1, 8)) if kind == "stale" else compiler.VERSION
    number = draw.choice(numbers[:CANDIDATES])
    (trial,) = fleet.trials(workload, cpu, version, [number])
    changes: dict[str, Any] = {"request_id": f"{kind}-{draw.randrange(1 << 40)}"}
    if kind == "lying":
        changes["latency"] = DEFAULT_SECONDS * draw.uniform(1e-3, 0.3)
    if kind == "mutated":
        changes["schedule"] = _mutated(trial.schedule, draw)
        changes["machine"] = {"cpu": draw.choice(_CPUS[:2])}
    return replace(trial, **changes)


def _mutated(schedule: Any, draw: random.Random) -> Any:
    """A schedule with one number, name or step changed."""
    if isinstance(schedule, list | tuple):
        if not schedule:
            return [["Unroll", "nowhere", "n"]]
        place = draw.randrange(len(schedule))
        if isinstance(schedule[place], list | tuple) and draw.random() < 0.2:
            return [item for n, item in enumerate(schedule) if n != place]
        return [_mutated(item, draw) if n == place else item for n, item in enumerate(schedule)]
    if isinstance(schedule, bool) or schedule is None:
        return draw.choice([None, 3, "x"])
    if isinstance(schedule, int):
        return draw.choice([schedule + 1, 2 * schedule, -schedule, 0, 1 << 40])
    return draw.choice([f"{schedule}x", "", "n", schedule])


def _is_checked(store: Store, record: str | None) -> bool:
    from tunefarm.db import queries

    if record is None:
        return False
    return queries.numbered(store, [int(record)])[0].request_id.startswith("check-")


def _outputs(fleet: Fleet, **options: Any) -> dict[str, Any]:
    fleet.build(**options)
    model = load(fleet.path / "tiny.tuned")
    draw = np.random.default_rng(3)
    inputs = {
        name: draw.standard_normal(type.shape).astype(np.float32)
        for name, type in model.inputs.items()
    }
    return dict(model.run(inputs))


def _same(one: dict[str, Any], other: dict[str, Any]) -> bool:
    return all(outputs_agree(other[name], one[name]) for name in one)


def _count(store: Store) -> int:
    from tunefarm.db import queries

    return sum(queries.count_trials(store).values())


def _unexplained(fleet: Fleet) -> int:
    """Records that are neither applied nor left with a reason."""
    from tunefarm.db import queries

    missing = 0
    explained = {item.key: item for item in explain_model(fleet.request())}
    with Store.open(fleet.path / "tuning.db", read_only=True) as store:
        for workload in fleet.kernels:
            item = explained[workload]
            hashes = 0
            for key in queries.tasks_of_workload(store, workload):
                for origin in queries.origins(store, key):
                    is_own = origin.addition is None and key == fleet.key(workload)
                    machine = queries.machines(store)[origin.machine]
                    if is_own and machine.get("cpu") in (HERE, ""):
                        own = queries.Origin(None, (origin.machine,))
                        hashes += len(queries.schedules(store, key, own))
                    else:
                        hashes += origin.trials
            said = sum(left.records for left in item.left) + ("record" in item.taken)
            missing += said < hashes
    return missing


def main() -> None:
    """Run what the arguments name."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--measured", action="store_true")
    parser.add_argument("--count", type=int)
    parser.add_argument("--model", default="squeezenet1_1")
    asked = parser.parse_args()
    with tempfile.TemporaryDirectory() as name:
        if asked.measured:
            print(run_measured(Path(name), asked.count or 50, asked.model))
        else:
            print(run(Path(name), asked.count or 2000))


if __name__ == "__main__":
    main()
