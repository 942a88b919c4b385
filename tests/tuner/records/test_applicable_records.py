"""A record applies where it was confirmed; what comes from elsewhere is a nominee until then."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from tests.targets import target_named
from tests.tuner.fleet import ELSEWHERE, HERE, Fleet, faster, other_table
from tunefarm.compiler.errors import TunefarmError
from tunefarm.compiler.schedule.schedule import Schedule
from tunefarm.db.additions import roll_back
from tunefarm.db.export import merge_records
from tunefarm.db.store import Store
from tunefarm.tuner.building.request import BuildResult
from tunefarm.tuner.records import applicable_records
from tunefarm.tuner.records.applicable_records import ApplicableRecords
from tunefarm.tuner.verify.quick import verify_quick


@pytest.fixture
def fleet(tmp_path: Path) -> Fleet:
    return Fleet(tmp_path)


def standings(result: BuildResult) -> set[str]:
    return {use.standing for use in result.report.kernels}


def test_what_this_database_measured_on_this_cpu_applies(fleet: Fleet) -> None:
    with fleet.store() as store:
        fleet.tune(store)
    _, result = fleet.build()
    assert standings(result) == {"confirmed here"}
    assert result.report.tuned_share == 1.0
    assert result.unapplied == ()


def test_records_of_another_cpu_of_the_target_are_nominees(fleet: Fleet) -> None:
    untuned, _ = fleet.build(untuned=True)
    with fleet.store() as store:
        fleet.tune(store, ELSEWHERE)
    for _ in range(2):  # compiled, then from the cache
        artifact, result = fleet.build()
        assert standings(result) == {"default, nominee left"}
        (left,) = result.unapplied
        assert left.differs == ("nominee",)
        count = len(fleet.kernels)
        assert str(left) == (
            f"{count} kernels have nominees, records that were not confirmed on this CPU: "
            f"{count} measured on {ELSEWHERE}: tune verify --quick measures them, "
            "--accept-nominees builds with them as is"
        )
    accepted, result = fleet.build(accept_nominees=True)
    assert standings(result) == {"nominee"}
    assert accepted != artifact
    with fleet.store() as store:
        assert fleet.time(store, result, ELSEWHERE) < 0.97 < 1.0
    assert {use.report.schedule_source for use in fleet.build()[1].report.kernels} == {"default"}
    assert untuned  # the same kernels, of another build


def test_cpus_of_one_marketing_name_are_told_apart(fleet: Fleet) -> None:
    """What a version wrote that knew no more than that name is not left."""
    name = HERE.partition(" (")[0]
    assert name != HERE
    first, *others = fleet.kernels
    with fleet.store() as store:
        fleet.tune(store, f"{name} (family 1, model 2)", workloads=others)
        fleet.tune(store, name, workloads=[first])
    _, result = fleet.build()
    found = {use.report.key: use.standing for use in result.report.kernels}
    assert found.pop(first) == "confirmed here"
    assert set(found.values()) == {"default, nominee left"}


def test_what_met_another_default_schedule_is_a_nominee(
    fleet: Fleet, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A better default of the same version may be faster than what won against the former one."""
    with fleet.store() as store:
        fleet.tune(store)
    monkeypatch.setattr(applicable_records, "default_schedule", lambda *_: Schedule(()))
    _, result = fleet.build()
    assert standings(result) == {"default, nominee left"}
    assert "against another default schedule" in str(result.unapplied[0])


def test_a_night_on_another_cpu_of_the_target_never_makes_a_build_slower(fleet: Fleet) -> None:
    """Two tables of one target: caches are no part of its key, so that its records are found."""
    far = Fleet(fleet.path, other_table(fleet.target))
    assert far.target.key == fleet.target.key
    with far.store() as store:
        far.tune(store, ELSEWHERE)
    _, result = fleet.build()
    with fleet.store() as store:
        assert fleet.time(store, result) == 1.0
    make = {"make_runner": lambda *_: fleet.runner(HERE, others=[far]), "compare": faster}
    verify_quick(fleet.request(), lambda _: None, **make)  # type: ignore[arg-type]
    _, result = fleet.build()
    with fleet.store() as store:
        assert fleet.time(store, result) <= 1.0


def test_merged_records_are_nominees_and_a_rollback_builds_the_same_bytes(fleet: Fleet) -> None:
    first = fleet.searchable[0]
    with fleet.store() as here, fleet.store("team.db") as team:
        fleet.tune(here, workloads=[first])
        fleet.tune(team)
    before, former = fleet.build()
    with fleet.store() as here, fleet.store("team.db") as team:
        merge_records(here, team)
    merged, result = fleet.build()
    found = {use.report.key: use.standing for use in result.report.kernels}
    assert found.pop(first) == "confirmed here"
    assert set(found.values()) == {"default, nominee left"}
    assert "from the merge of" in str(result.unapplied[0])
    bad, _ = fleet.build(accept_nominees=True)
    assert bad != before
    with fleet.store() as here:
        roll_back(here)
    again, result = fleet.build()
    assert again == before == merged
    assert result.report == former.report


def test_a_verdict_that_was_merged_does_not_go_before_ones_own(fleet: Fleet) -> None:
    with fleet.store() as here, fleet.store("team.db") as team:
        fleet.tune(here)
        fleet.tune(team, ELSEWHERE)
    before, _ = fleet.build()
    with fleet.store() as here, fleet.store("team.db") as team:
        merge_records(here, team)
    after, result = fleet.build()
    assert after == before
    assert standings(result) == {"confirmed here"}


def test_records_of_another_version_that_replay_are_nominees(fleet: Fleet) -> None:
    with fleet.store() as store:
        fleet.tune(store, version="7")
        stale = fleet.trials(fleet.searchable[0], version="6")[1]
        store.add([replace(stale, schedule=[["Unroll", "nowhere", "n"]])])
    _, result = fleet.build()
    assert standings(result) == {"default, nominee left"}
    assert fleet.build(accept_nominees=True)[1].report.tuned_share == 1.0


def test_records_that_do_not_replay_are_said_to_be_of_another_version(fleet: Fleet) -> None:
    with fleet.store() as store:
        stale = fleet.trials(fleet.searchable[0], version="6")[1]
        store.add([replace(stale, schedule=[["Unroll", "nowhere", "n"]])])
    _, result = fleet.build(accept_nominees=True)
    assert standings(result) == {"default"}
    (left,) = result.unapplied
    assert "of compiler version 6" in str(left)


def test_one_trial_of_the_default_schedule_is_not_tuned(fleet: Fleet) -> None:
    with fleet.store() as store:
        for workload in fleet.kernels:
            store.add(fleet.trials(workload, numbers=[0]))
    _, result = fleet.build()
    tuned = {use.report.key for use in result.report.kernels if use.standing != "default"}
    assert tuned == {key for key, found in fleet.schedules.items() if len(found.candidates) == 1}
    with pytest.raises(TunefarmError, match="% of the model's estimated time is tuned"):
        fleet.build(require_tuned=0.9)
    with fleet.store() as store:
        for workload in fleet.searchable:
            store.add(fleet.trials(workload, numbers=[1]))
    assert fleet.build()[1].report.tuned_share > 0.5


def test_a_build_that_has_to_be_verified_is_refused_with_the_command(fleet: Fleet) -> None:
    with fleet.store() as store:
        fleet.tune(store, ELSEWHERE)
    for accepted in (False, True):
        with pytest.raises(TunefarmError, match="not confirmed on this CPU") as refused:
            fleet.build(require_verified=True, accept_nominees=accepted)
        assert "tune verify MODEL --quick" in str(refused.value.hint)
    with fleet.store("own.db") as store:
        fleet.tune(store)
    fleet.build("own.db", require_verified=True)


def test_layers_are_asked_in_their_order_and_only_read(fleet: Fleet) -> None:
    first, second, *_ = fleet.searchable
    with fleet.store() as mine, fleet.store("team.db") as team, fleet.store("far.db") as far:
        fleet.tune(mine, workloads=[first])
        fleet.tune(team, workloads=[first, second])
        fleet.tune(far, ELSEWHERE)
    for name in ("team.db", "far.db"):
        (fleet.path / name).chmod(0o444)
    names = [str(fleet.path / name) for name in ("team.db", "far.db")]
    before = [Path(name).read_bytes() for name in names]
    for _ in range(2):
        _, result = fleet.build(settings={"database.layers": names})
        found = {use.report.key: use for use in result.report.kernels}
        assert found[first].standing == found[second].standing == "confirmed here"
        assert (found[first].report.record_id or "").isdecimal()
        assert str(found[second].report.record_id).startswith("team.db:")
        others = {use.standing for key, use in found.items() if key not in (first, second)}
        assert others == {"default, nominee left"}
    assert [Path(name).read_bytes() for name in names] == before


def test_for_another_target_what_its_cpu_measured_applies(fleet: Fleet) -> None:
    other = target_named("x86-64-v2")
    far = Fleet(fleet.path, other)
    with far.store() as store:
        far.tune(store, ELSEWHERE)
    _, result = far.build(settings={"compile.target": "x86-64-v2"})
    assert standings(result) - {"default"} == {f"confirmed on {ELSEWHERE}"}


def test_nominees_are_the_confirmed_ones_first_and_those_of_this_version(fleet: Fleet) -> None:
    workload = fleet.searchable[0]
    with fleet.store() as store:
        store.add(fleet.trials(workload, "Third CPU", numbers=[0, 1], created=9.0))
        fleet.tune(store, ELSEWHERE, workloads=[workload])
        fleet.tune(store, HERE, "7", workloads=[workload])
    with Store.open(fleet.path / "tuning.db", read_only=True) as store:
        nominees = ApplicableRecords(store, fleet.target, 1, "default").of(workload).nominees
        assert nominees[0].cpu == ELSEWHERE
        versions = [claim.record.key.compiler_version for claim in nominees]
        assert versions == sorted(versions, key=int, reverse=True)
