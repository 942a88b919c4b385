"""The databases that come with the package: the last layer, and all there is without a database."""

from __future__ import annotations

import sqlite3
from contextlib import closing
from pathlib import Path

import pytest

import tunefarm
from tests.tuner.fleet import ELSEWHERE, HERE, Fleet, faster
from tunefarm import compiler
from tunefarm.compiler.errors import UntunedWarning
from tunefarm.configs.errors import DatabaseError, SettingsError
from tunefarm.configs.settings import load_settings
from tunefarm.configs.target_key import target_key
from tunefarm.db import model_queries, queries, schema
from tunefarm.db.store import Store
from tunefarm.tuner.building import request as requests
from tunefarm.tuner.building.flow import build
from tunefarm.tuner.building.request import SHIPPED, BuildRequest, BuildResult
from tunefarm.tuner.verify.quick import verify_quick

MOST_BYTES = 1 << 20
"""Of all files that are shipped."""
MAKE = "python -m tests.benchmarks.shipped_records check FOLDER"
NOT_SHIPPED = "jobs", "builds", "latencies", "additions", "queues"


@pytest.fixture
def fleet(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Fleet:
    """A fleet in the current folder, without a database; what it ships is in `shipped`."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(requests, "SHIPPED", tmp_path / "shipped")
    (tmp_path / "shipped").mkdir()
    return Fleet(tmp_path)


def shipped(fleet: Fleet, cpu: str = HERE, version: str = compiler.VERSION) -> Path:
    """Records of that CPU as what comes with the package."""
    name = f"shipped/{fleet.target.key}.db"
    with fleet.store(name) as store:
        fleet.tune(store, cpu, version)
    return fleet.path / name


def asked(fleet: Fleet, **settings: object) -> BuildRequest:
    """A build by someone who names no database."""
    values = {"cache.folder": str(fleet.path / "cache"), **settings}
    known = load_settings(None, values, environment={})
    return BuildRequest(str(fleet.model), str(fleet.path / "tiny.tuned"), known)


def standings(result: BuildResult) -> set[str]:
    return {use.standing for use in result.report.kernels} - {"default"}


def test_the_first_build_finds_what_was_measured_on_this_kind_of_cpu(fleet: Fleet) -> None:
    path = shipped(fleet)
    before = path.read_bytes()
    path.chmod(0o444)
    for _ in range(2):  # the second one from the cache
        result = build(asked(fleet))
        assert standings(result) == {f"confirmed on {HERE}"}
        assert result.report.tuned_share > 0.0
        assert not result.not_listed
    assert path.read_bytes() == before
    assert not (fleet.path / "tuning.db").exists()
    with Store.open(path, read_only=True) as store:
        assert fleet.time(store, result) < 1.0


def test_python_builds_with_it_too(fleet: Fleet, monkeypatch: pytest.MonkeyPatch) -> None:
    shipped(fleet)
    monkeypatch.setenv("TUNEFARM_DATABASE__SHIPPED", "false")
    with pytest.warns(UntunedWarning, match="there is no database"):
        tunefarm.build(fleet.model)
    monkeypatch.delenv("TUNEFARM_DATABASE__SHIPPED")
    kernels = tunefarm.build(fleet.model).kernels
    assert "tuned" in {kernel.schedule_source for kernel in kernels}


def test_it_is_asked_behind_the_database_and_its_layers(fleet: Fleet) -> None:
    shipped(fleet)
    first, second, *rest = fleet.searchable
    with fleet.store() as mine, fleet.store("team.db") as team:
        fleet.tune(mine, workloads=[first])
        fleet.tune(team, workloads=[first, second])
    layers = [str(fleet.path / "team.db")]
    _, result = fleet.build(settings={"database.layers": layers, "database.shipped": True})
    found = {use.report.key: use for use in result.report.kernels}
    assert found[first].standing == found[second].standing == "confirmed here"
    assert str(found[second].report.record_id).startswith("team.db:")
    assert {str(found[key].report.record_id).partition(":")[0] for key in rest} == {"shipped"}
    assert {found[key].standing for key in rest} == {f"confirmed on {HERE}"}
    _, result = fleet.build(settings={"database.layers": layers})
    assert f"confirmed on {HERE}" not in standings(result)


def test_of_another_cpu_they_are_nominees(fleet: Fleet) -> None:
    assert_nominees(fleet, ELSEWHERE, compiler.VERSION)


def test_of_another_version_of_the_compiler_they_are_nominees(fleet: Fleet) -> None:
    assert_nominees(fleet, HERE, "1")


def assert_nominees(fleet: Fleet, cpu: str, version: str) -> None:
    """What is shipped of that CPU applies once it was met here."""
    shipped(fleet, cpu, version)
    result = build(asked(fleet))
    assert result.report.tuned_share == 0.0
    assert standings(result) == {"default, nominee left"}
    runner = fleet.runner(HERE)
    found = verify_quick(asked(fleet), print, make_runner=lambda *_: runner, compare=faster)
    assert found.accepted
    with Store.open(fleet.path / "tuning.db", create=False, read_only=True) as store:
        assert len(queries.tasks(store)) == len({item.key for item in found.met})
    assert "confirmed here" in standings(build(asked(fleet)))


def test_where_nothing_is_shipped_the_database_is_missed(fleet: Fleet) -> None:
    with pytest.raises(SettingsError, match=r"no such database: tuning.db"):
        build(asked(fleet))
    shipped(fleet)
    for settings in (
        {"database.shipped": False},
        {"compile.precision": "int8"},
        {"database.url": "tuning.db"},
        {"database.layers": ["team.db"]},
    ):
        with pytest.raises(SettingsError, match=r"no such database: tuning.db"):
            build(asked(fleet, **settings))


def test_a_graph_is_decided_as_without_a_database(fleet: Fleet) -> None:
    shipped(fleet)
    requested = asked(fleet)
    assert requested.asks_only_shipped and not requested.is_listed
    kernels = [use.report.key for use in build(requested).report.kernels]
    untuned = build(fleet.request(untuned=True))
    assert kernels == [use.report.key for use in untuned.report.kernels]


def test_what_is_new_in_the_package_is_not_missed_by_the_cache(fleet: Fleet) -> None:
    path = shipped(fleet, ELSEWHERE)
    assert build(asked(fleet)).report.tuned_share == 0.0
    path.unlink()
    shipped(fleet)
    assert build(asked(fleet)).report.tuned_share > 0.0


FILES = sorted(SHIPPED.glob("*"))


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.stem)
def test_the_package_ships_records_that_apply(path: Path) -> None:
    with Store.open(path, create=False, read_only=True) as store:
        assert not store.upgrade_note, f"{path} has an older schema: tune db upgrade --db {path}"
        keys = queries.tasks(store)
        versions = {key.compiler_version for key in keys}
        assert versions == {compiler.VERSION}, (
            f"{path.name} is of compiler version {', '.join(sorted(versions))}, this is "
            f"{compiler.VERSION}: on a CPU of that target, {MAKE}"
        )
        (target,) = queries.targets(store).values()
        assert {key.target for key in keys} == {target.key} == {path.stem}
        assert target_key(target.description) == target.key
        assert all(queries.best(store, key) is not None for key in keys)
        assert all(trial.machine.get("cpu") for trial in queries.iterate_trials(store))
        assert not queries.jobs(store) and not model_queries.builds(store)


def test_what_is_shipped_is_small_and_names_no_file_of_who_made_it() -> None:
    assert FILES and all(path.suffix == ".db" for path in FILES)
    assert sum(path.stat().st_size for path in FILES) < MOST_BYTES
    for path in FILES:
        content = path.read_bytes()
        assert b"/home/" not in content and b"/tmp/" not in content and b"/root/" not in content
        with closing(sqlite3.connect(f"file:{path}?mode=ro", uri=True)) as connection:
            assert connection.execute("PRAGMA journal_mode").fetchone() == ("delete",)
            for table in schema.Base.metadata.sorted_tables:
                if table.name in NOT_SHIPPED:
                    count = connection.execute(f"SELECT count(*) FROM {table.name}").fetchone()
                    assert count == (0,)


def test_a_damaged_file_is_an_error_that_names_it(fleet: Fleet) -> None:
    path = shipped(fleet)
    path.write_bytes(path.read_bytes()[:5000])
    with pytest.raises(DatabaseError, match="shipped"):
        build(asked(fleet))
