"""Nominees meet the default schedules: what is faster here applies, what is not does not."""

from __future__ import annotations

import sqlite3
from pathlib import Path

import pytest

from tests.tuner.fleet import ELSEWHERE, HERE, Fleet, faster, other_table, slower
from tunefarm.compiler.frontend.zoo.models import build_model, model_names
from tunefarm.configs.errors import DatabaseError
from tunefarm.db import queries
from tunefarm.db.export import merge_records
from tunefarm.measure.farm.replay_runner import ReplayRunner
from tunefarm.measure.measurement import Status
from tunefarm.tuner.commands.cli import app
from tunefarm.tuner.commands.command_line import run_command
from tunefarm.tuner.verify.quick import QuickCheck, verify_quick
from tunefarm.tuner.verify.show import check_lines, check_table, check_to_json


@pytest.fixture
def fleet(tmp_path: Path) -> Fleet:
    return Fleet(tmp_path)


def check(fleet: Fleet, compare: object = faster, runner: ReplayRunner | None = None) -> QuickCheck:
    replayed = runner or fleet.runner(HERE)
    return verify_quick(
        fleet.request(),
        lambda _: None,
        make_runner=lambda *_: replayed,
        compare=compare,  # type: ignore[arg-type]
    )


def test_only_what_is_faster_here_applies_after_a_check(fleet: Fleet) -> None:
    with fleet.store() as store:
        fleet.tune(store, ELSEWHERE)
    found = check(fleet)
    assert found.accepted and found.open == 0
    for item in found.met:
        cost = fleet.cost(item.key.workload, item.claim.record.schedule, HERE) / 1e-5
        assert item.applies == (cost < 0.98)
        assert item.compared is not None and item.compared.ratio == pytest.approx(cost, rel=0.03)
    _, result = fleet.build(require_verified=True)
    with fleet.store() as store:
        assert fleet.time(store, result, HERE) <= 1.0
    applied = {item.key.workload for item in found.met if item.applies}
    for use in result.report.kernels:
        assert (use.standing == "confirmed here") or use.report.key not in applied
    assert check(fleet).met == ()  # all of them were met


def test_a_nominee_that_loses_leaves_the_next_one_its_chance(fleet: Fleet) -> None:
    workload = fleet.searchable[0]
    here = {n: fleet.cost(workload, fleet.schedules[workload].json(n), HERE) for n in range(1, 6)}
    worst, best = max(here, key=here.__getitem__), min(here, key=here.__getitem__)
    assert here[best] < 0.9e-5 < 1.1e-5 < here[worst]
    with fleet.store() as store:
        store.add(fleet.trials(workload, "First CPU", numbers=[best], created=1.0))
        store.add(fleet.trials(workload, ELSEWHERE, numbers=[worst], created=99.0))
    found = check(fleet)
    assert [item.applies for item in found.met] == [False, True]
    assert "slower here" in found.met[0].why
    table = check_table(found)
    assert [str(cell) for cell in table.columns[-1].cells] == ["no: slower here", "yes"]
    assert "1 of 1 kernel with nominees are confirmed here" in check_lines(found)[0]
    assert check_to_json(found)["accepted"] == 1


def test_a_model_that_is_slower_with_them_takes_none(fleet: Fleet) -> None:
    with fleet.store() as store:
        fleet.tune(store, ELSEWHERE)
    found = check(fleet, slower)
    assert found.accepted == 0
    assert "slower with them than untuned" in found.notes[0]
    _, result = fleet.build(require_verified=True)
    with fleet.store() as store:
        assert fleet.time(store, result, HERE) == 1.0
    assert check(fleet).met == ()


def test_what_crashes_or_is_wrong_here_never_applies(fleet: Fleet) -> None:
    with fleet.store() as store:
        fleet.tune(store, ELSEWHERE)
    found = check(fleet, runner=ReplayRunner({}, unknown=Status.WRONG_RESULT))
    # whatever is asked for is wrong, the default schedules as well: nothing is known
    assert found.accepted == 0
    assert fleet.build()[1].report.tuned_share == 0.0


def test_what_could_not_be_measured_stays_a_nominee(fleet: Fleet) -> None:
    with fleet.store() as store:
        fleet.tune(store, ELSEWHERE)
    found = check(fleet, runner=ReplayRunner({}, unknown=Status.INFRASTRUCTURE))
    assert found.open == len({item.key for item in found.met}) > 0
    assert all("not measured" in item.why for item in found.met)
    assert len(check(fleet).met) >= found.open


def test_a_check_says_what_it_was_measured_against_and_where(fleet: Fleet) -> None:
    workload = fleet.searchable[0]
    with fleet.store() as store, fleet.store("team.db") as team:
        fleet.tune(team, workloads=[workload])
        merge_records(store, team)
    found = check(fleet)
    with fleet.store() as store:
        settled = queries.best(store, fleet.key(workload))
        assert settled is not None
        best, trial = settled
        assert best.job is None
        assert trial.machine["cpu"] == HERE
        if found.accepted:
            default = fleet.trials(workload, numbers=[0])[0].schedule_hash
            assert trial.reference == default
            assert best.low <= best.ratio <= best.high < 1.0


def test_a_database_that_cannot_be_written_is_refused_before_anything_is_measured(
    fleet: Fleet,
) -> None:
    with fleet.store() as store:
        fleet.tune(store, ELSEWHERE)
    with sqlite3.connect(fleet.path / "tuning.db") as connection:
        connection.execute("UPDATE alembic_version SET version_num = '9999'")
    with pytest.raises(DatabaseError, match="newer than this version"):
        check(fleet)


@pytest.mark.parametrize("way", [[], ["--quick"]])
def test_one_target_is_verified_at_a_time(
    way: list[str], fleet: Fleet, capsys: pytest.CaptureFixture[str]
) -> None:
    fleet.store().close()
    command = ["verify", str(fleet.model), "--db", str(fleet.path / "tuning.db"), *way]
    assert run_command(app, [*command, "--targets", "x86-64-v3,x86-64-v4"]) == 2
    assert "one target is verified at a time" in capsys.readouterr().err
    if way:
        assert run_command(app, [*command, "--targets", "x86-64-v3"]) == 0
        assert "no kernel has a nominee" in capsys.readouterr().out


def test_a_kernel_without_nominees_is_not_measured(fleet: Fleet) -> None:
    with fleet.store() as store:
        fleet.tune(store)
    found = check(fleet, runner=ReplayRunner({}))
    assert found.met == ()
    assert check_lines(found) == ["tiny: no kernel has a nominee: there is nothing to check"]


@pytest.mark.nightly
@pytest.mark.parametrize("name", model_names())
def test_no_network_loses_by_records_of_another_cpu(name: str, tmp_path: Path) -> None:
    """Tuned on another CPU of the target, with another table: its costs differ, and its spaces."""
    model = build_model(name)
    fleet = Fleet(tmp_path, model=model)
    night = Fleet(tmp_path, other_table(fleet.target), model)
    assert night.target.key == fleet.target.key
    with fleet.store() as store:
        night.tune(store, ELSEWHERE)
    _, unchecked = fleet.build()
    found = check(fleet, runner=fleet.runner(HERE, others=[night]))
    assert found.met and not found.open
    _, checked = fleet.build()
    with fleet.store() as store:
        assert fleet.time(store, unchecked, HERE) == 1.0
        assert fleet.time(store, checked, HERE) < 1.0 / 0.97
