"""Targets that differ in nothing that counts become one, with all records of both.

`schema_0007_two_targets.db.gz` and `records_7_two_targets.jsonl.gz` hold one database of the
version before: two targets x86-64-v3 that differ in cache sizes, and one without fma. One job has
tuned a kernel for all three, with requests of the same name, and another one is at work.
"""

from __future__ import annotations

import gzip
from collections import Counter
from pathlib import Path

import pytest

from tests.db.examples import count_claims
from tests.db.test_upgrade import DATA, unpacked
from tests.targets import target_named
from tunefarm.configs.target_key import target_key
from tunefarm.db import model_queries, queries, schema
from tunefarm.db.check import check
from tunefarm.db.export import export_records, import_records, merge_records
from tunefarm.db.records import JobTask, TargetRecord, TaskKey, TrialRecord, WorkloadRecord
from tunefarm.db.rekey import rekey
from tunefarm.db.salvage import salvage
from tunefarm.db.store import Store
from tunefarm.db.work import claim
from tunefarm.tuner.records.trials import record_to_apply

TWO_TARGETS = "0007_two_targets"
WORKLOAD = "89abcdef01234567"
WORKLOAD_RECORD = WorkloadRecord(WORKLOAD, "conv_relu", {})
NAMED = target_named("x86-64-v3")


def key(target: str = NAMED.key, threads: int = 1) -> TaskKey:
    return TaskKey(WORKLOAD, target, threads, "default", "1")


def names(trials: list[TrialRecord]) -> dict[str, float | None]:
    return {trial.request_id: trial.latency for trial in trials}


def assert_has_all(store: Store) -> None:
    """What the database held is there, under the keys of this version."""
    assert check(store) == []
    described = {row.key: row.description for row in queries.targets(store).values()}
    assert all(target_key(value) == key for key, value in described.items())
    ((without_fma),) = [name for name in described if name != NAMED.key]
    trials = names(queries.trials(store, key()))
    assert set(trials.values()) == {0.3, 0.4, 0.5, 0.6}
    assert len(trials) == 4 and {"request-1", "request-2", "request-3"} < set(trials)
    assert names(queries.trials(store, key(threads=2))) == {"request-4": 0.25}
    assert names(queries.trials(store, key(without_fma))) == {"request-1": 0.7}
    bests = list(queries.iterate_bests(store))
    assert Counter(best.key for best in bests) == {key(): 2, key(without_fma): 1}
    assert all(queries.trial_of(store, best) is not None for best in bests)
    found = record_to_apply(store, key())  # what was settled last
    assert found is not None and (found[0].schedule[0], found[1]) == (["Tile", "oc", 1], True)
    job = queries.jobs(store)[-1]
    assert [task.key for task in job.tasks] == [key(), key(without_fma), key(threads=2)]
    for records in (
        model_queries.builds(store),
        model_queries.plans(store),
        model_queries.latencies(store),
    ):
        assert [record.target for record in records] == [NAMED.key] * 2
    asked = (store, "abc", NAMED.key, 1, "default by graph", "1")
    plan = model_queries.newest_plan(*asked)
    assert plan is not None and plan.plan == {"decisions": [1]}


def test_an_upgrade_keeps_the_records_of_both(tmp_path: Path) -> None:
    with Store.open(unpacked(TWO_TARGETS, tmp_path)) as store:
        assert_has_all(store)
        with store.reading() as session:
            claims = session.query(schema.Claim.schedule_hash).all()
        assert len(claims) == len(set(claims)) == 3


def test_an_import_keeps_the_records_of_both(tmp_path: Path) -> None:
    path = tmp_path / "records.jsonl"
    path.write_bytes(gzip.decompress((DATA / "records_7_two_targets.jsonl.gz").read_bytes()))
    with Store.open(":memory:") as store:
        assert import_records(store, path).trials == 6
        assert_has_all(store)
        again = tmp_path / "again.jsonl"
        export_records(store, again)
        assert not import_records(store, path).trials + import_records(store, again).trials
        with Store.open(unpacked(TWO_TARGETS, tmp_path)) as upgraded:
            assert merge_records(store, upgraded).trials == 0
    with Store.open(":memory:") as store:
        assert import_records(store, again).trials == 6
        assert_has_all(store)


def test_a_salvage_keeps_the_records_of_both(tmp_path: Path) -> None:
    saved = tmp_path / "saved.db"
    salvage(unpacked(TWO_TARGETS, tmp_path), saved)
    with Store.open(saved) as store:
        assert_has_all(store)


@pytest.mark.parametrize("revision", ["0001", "0007"])
def test_a_target_that_nothing_is_known_of_keeps_its_key(revision: str, tmp_path: Path) -> None:
    with Store.open(unpacked(revision, tmp_path)) as store:
        assert list(queries.targets(store)) == ["x86-64-v3/8"]


@pytest.mark.parametrize("kind", ["file", "server"])
def test_targets_under_wrong_keys_become_one_in_either_kind_of_database(
    kind: str, request: pytest.FixtureRequest
) -> None:
    url = request.getfixturevalue("postgresql_url") if kind == "server" else ":memory:"
    with Store.open(url) as store:
        store.add([WORKLOAD_RECORD])
        for former in ("a", "b"):
            store.add([TargetRecord(former, NAMED.to_json())])
            job = store.start_job("resnet18", "abc", {}, [JobTask(key(former), 1)])
            trial = TrialRecord(key(former), "r", "direct", {}, [["Tile"]], "ok", 0.5, job=job.id)
            store.add([trial])
            claim(store, job.id, [(key(former), "0" * 16)])
        with store.writing() as session:
            rekey(session)
        assert check(store) == []
        assert list(queries.targets(store)) == [NAMED.key]
        assert set(names(queries.trials(store, key()))) == {"r", "r@b"}
        assert count_claims(store) == 1
