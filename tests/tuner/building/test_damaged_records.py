"""A damaged record is left with a reason, and the next best one applies."""

from __future__ import annotations

from collections.abc import Callable
from itertools import cycle
from pathlib import Path

import pytest

from tests.db.test_damage import edit
from tests.tuner.fleet import ELSEWHERE, HERE, Fleet, faster
from tunefarm.compiler.errors import TunefarmError
from tunefarm.db import queries, schema, sqlite_file
from tunefarm.db.checksum import checksum_of
from tunefarm.db.records import hash_json
from tunefarm.db.salvage import salvage
from tunefarm.db.store import Store
from tunefarm.tuner.building.explain import Commands, Explanation, explain_model
from tunefarm.tuner.building.record import keep_plan
from tunefarm.tuner.building.request import BuildResult
from tunefarm.tuner.commands.cli import app
from tunefarm.tuner.commands.command_line import run_command
from tunefarm.tuner.verify.quick import verify_quick

WRONG_VALUES = ("'{'", "x'00FF'", "-9e999", 2**62)
"""Cut off JSON, a blob, an infinite number, a huge one."""


@pytest.fixture
def fleet(tmp_path: Path) -> Fleet:
    fleet = Fleet(tmp_path)
    with fleet.store() as store:
        fleet.tune(store)
        keep_plan(store, "default by graph", {}, "m", "h", fleet.settings(), fleet.target)
    return fleet


def applied(fleet: Fleet, database: str = "tuning.db") -> tuple[BuildResult, dict[str, object]]:
    """A build, and which record it takes for each kernel."""
    _, result = fleet.build(database)
    uses = result.report.kernels
    return result, {use.report.key: (use.report.record_id, use.standing) for use in uses}


def best_trial(fleet: Fleet, workload: str) -> int:
    with Store.open(fleet.path / "tuning.db", read_only=True) as store:
        found = queries.best(store, fleet.key(workload))
    assert found is not None and found[1].number is not None
    return found[1].number


@pytest.mark.parametrize("model", [schema.Trial, schema.Best, schema.Plan])
def test_a_build_is_that_of_the_salvaged_database(
    model: type[schema.Numbered], fleet: Fleet
) -> None:
    """Whichever column is wrong."""
    path, intact, table = fleet.path / "tuning.db", fleet.path / "intact.db", model.__tablename__
    number = best_trial(fleet, fleet.searchable[0]) if model is schema.Trial else 1
    original = path.read_bytes()
    edit(path, table, "checksum", "NULL", number)
    salvage(path, intact)
    expected, taken = applied(fleet, "intact.db")
    assert not any("damaged" in note for note in expected.report.notes)
    names = [column.name for column in model.__table__.columns if column.name != "id"]
    for name, value in zip(names, cycle(WRONG_VALUES), strict=False):
        path.write_bytes(original)
        edit(path, table, name, value, number)
        result, found = applied(fleet)
        assert f"{table} {number} (" in result.report.notes[0], name
        assert result.report.unapplied[0].differs == ("damaged",)
        assert found == taken


def test_large_files_are_looked_through_when_damage_is_met(
    fleet: Fleet, monkeypatch: pytest.MonkeyPatch
) -> None:
    number = best_trial(fleet, fleet.searchable[0])
    monkeypatch.setattr(sqlite_file, "_EVERY_ROW_BYTES", 0)
    edit(fleet.path / "tuning.db", "trials", "samples", "'{'", number)
    result, _ = applied(fleet)
    assert f"trials {number} (samples is not JSON)" in result.report.notes[0]
    assert "damaged" in str(why(fleet)[fleet.searchable[0]].left)


def why(fleet: Fleet, notify: Callable[[str], None] = print) -> dict[str, Explanation]:
    found = explain_model(fleet.request(), Commands({}, "tune m"), notify)
    return {item.key: item for item in found}


def test_the_kernel_says_what_was_left_and_what_to_type(fleet: Fleet) -> None:
    damaged, *_ = fleet.searchable
    edit(fleet.path / "tuning.db", "trials", "latency", "'fast'", best_trial(fleet, damaged))
    said: list[str] = []
    found = why(fleet, said.append)
    name = str(fleet.path / "tuning")
    assert found[damaged].command == f"tune db salvage {name}.db --output {name}.intact.db"
    (left,) = [item for item in found[damaged].left if "damaged" in item.differs]
    assert said == [str(left)]
    assert left.records == 2 and "latency is not valid" in left.reason and "bests" in left.reason
    others = [item for key, item in found.items() if key != damaged]
    assert not any(item.command or "damaged" in str(item.left) for item in others)


def test_a_row_without_a_schedule_is_left_and_tuning_again_is_the_advice(fleet: Fleet) -> None:
    workload = fleet.searchable[0]
    number = best_trial(fleet, workload)
    with Store.open(fleet.path / "tuning.db") as store, store.writing() as session:
        row = session.get_one(schema.Trial, number)
        row.schedule = [["Conjure", "x"]]
        row.schedule_hash, row.checksum = hash_json(row.schedule), checksum_of(row)
    assert why(fleet)[workload].command == "tune m"
    result, taken = applied(fleet)
    assert taken[workload] != (str(number), "confirmed here")
    assert f"trials {number} (holds no schedule: " in result.report.notes[0]
    assert result.report.notes[0].endswith("tune again")


def test_a_damaged_record_does_not_count_for_what_is_required(tmp_path: Path) -> None:
    fleet = Fleet(tmp_path)
    with fleet.store() as store:
        for workload in fleet.kernels:
            store.add(fleet.trials(workload, numbers=[1]) if workload in fleet.searchable else [])
    fleet.build(require_verified=True)
    for number in range(1, 1 + len(fleet.searchable)):
        edit(fleet.path / "tuning.db", "trials", "choices", "'{'", number)
    with pytest.raises(TunefarmError, match="is required") as caught:
        fleet.build(require_tuned=0.1)
    assert "trials 1 (choices is not JSON)" in str(caught.value)
    fleet.build(require_verified=True)


def test_a_check_of_nominees_leaves_damaged_ones(tmp_path: Path) -> None:
    fleet = Fleet(tmp_path)
    with fleet.store() as store:
        fleet.tune(store, ELSEWHERE)
    number = best_trial(fleet, fleet.searchable[0])
    edit(fleet.path / "tuning.db", "trials", "choices", "'{'", number)
    said: list[str] = []
    found = verify_quick(
        fleet.request(),
        said.append,
        make_runner=lambda *_: fleet.runner(HERE),
        compare=faster,
    )
    assert f"trials {number} (choices is not JSON)" in said[0]
    assert found.met and number not in [item.claim.record.number for item in found.met]


def test_a_job_says_it_and_goes_on(
    fleet: Fleet, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    number = best_trial(fleet, fleet.searchable[0])
    edit(fleet.path / "tuning.db", "trials", "choices", "'{'", number)
    monkeypatch.chdir(fleet.path)
    options = ["--db", "tuning.db", "--config", "ci", "--runner", "local"]
    assert run_command(app, ["--model", "tiny.onnx", *options]) == 0
    assert f"trials {number} (choices is not JSON)" in capsys.readouterr().err
