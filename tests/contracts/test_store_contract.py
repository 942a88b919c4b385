"""What every store does, whatever holds its records."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import select

from tests.db.examples import (
    KEY,
    TARGET,
    WORKLOAD,
    build,
    count_claims,
    failed,
    latency,
    paired,
    plan,
    populate,
    trial,
)
from tunefarm.configs.errors import DatabaseError
from tunefarm.db import model_queries, queries, schema
from tunefarm.db.check import check
from tunefarm.db.checksum import checksum_of
from tunefarm.db.records import (
    CONFIRMED,
    JobTask,
    TargetRecord,
    TaskKey,
    TrialRecord,
    WorkloadRecord,
    hash_json,
)
from tunefarm.db.store import Store
from tunefarm.db.work import claim, close_lost_jobs, release_claims, renew_lease

KINDS = ("file", "memory", "url", "postgresql")


@pytest.fixture(params=KINDS)
def store(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Store]:
    locations = {
        "file": str(tmp_path / "tuning.db"),
        "memory": ":memory:",
        "url": f"sqlite:///{tmp_path / 'tuning.db'}",
    }
    location = locations.get(request.param) or request.getfixturevalue("postgresql_url")
    with Store.open(location) as store:
        populate(store)
        yield store


def stored(record: TrialRecord, number: int) -> TrialRecord:
    """What the record is once it has been stored."""
    return replace(record, number=number)


def test_trial_comes_back_as_it_went_in(store: Store) -> None:
    assert store.add([trial(1)]) == 1
    assert queries.trials(store, KEY) == [stored(trial(1), 1)]


def test_pair_comes_back_with_what_it_was_measured_against(store: Store) -> None:
    pair = paired(2, 1, samples=(0.5, 0.25), reference_samples=(1.0, 1e-9))
    store.add([trial(1), pair, failed(3, "scattered")])
    assert queries.trials(store, KEY)[1] == stored(pair, 2)
    assert check(store) == []


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"ratio": None}, "a part of what it was measured against is missing"),
        ({"reference": None}, "a part of what it was measured against is missing"),
        ({"low": 0.6}, "the ratio 0.5 is not from 0.6 to 0.55"),
        ({"low": 0.0}, "the ratio 0.5 is not from 0 to 0.55"),
        ({"high": float("inf")}, "the ratio 0.5 is not from 0.45 to inf"),
        ({"ratio": float("nan")}, "the ratio nan is not from 0.45 to 0.55"),
        ({"reference_samples": (1.0,)}, "it has other numbers of slices than its reference"),
    ],
)
def test_pair_that_cannot_be_is_refused(store: Store, changes: Any, reason: str) -> None:
    with pytest.raises(DatabaseError, match=reason):
        store.add([trial(1), paired(2, 1, **changes)])
    assert queries.count_trials(store) == {}


def test_failed_trial_keeps_its_error(store: Store) -> None:
    store.add([failed(1, "wrong_result", "output 3 differs\nat [0, 7]")])
    (record,) = queries.trials(store, KEY)
    assert record == stored(failed(1, "wrong_result", "output 3 differs\nat [0, 7]"), 1)
    assert not record.is_ok


def test_tuples_come_back_as_lists_and_hash_alike(store: Store) -> None:
    record = trial(1, choices={"tile": (3, 4)}, schedule=(("Tile", (3, 4)),))
    store.add([record])
    (found,) = queries.trials(store, KEY)
    assert found.choices == {"tile": [3, 4]}
    assert found.schedule == [["Tile", [3, 4]]]
    assert found.schedule_hash == record.schedule_hash == hash_json([["Tile", [3, 4]]])


def test_same_trial_is_recorded_once(store: Store) -> None:
    assert store.add([trial(1), trial(2)]) == 2
    assert store.add([trial(2, 0.1), trial(3)]) == 1
    assert store.add([trial(4), trial(4)]) == 1
    assert [record.latency for record in queries.trials(store, KEY)] == [1.0] * 4


def test_same_schedule_measured_again_is_another_trial(store: Store) -> None:
    again = trial(1, 0.5, request_id="second look")
    assert store.add([trial(1), again]) == 2
    assert [found.request_id for found in queries.trials(store, KEY)] == [
        "request-1",
        "second look",
    ]


def test_best_trial_is_the_fastest_ok_one(store: Store) -> None:
    assert queries.fastest_trial(store, KEY) is None
    slow_and_wrong = [trial(1, 2.0), failed(2), trial(3, 0.5, status="unstable")]
    store.add([*slow_and_wrong, trial(4, 1.0), trial(5, 1.0)])
    assert queries.fastest_trial(store, KEY) == stored(trial(4, 1.0), 4)


@pytest.mark.parametrize(
    "other_key",
    [
        replace(KEY, workload="0" * 16),
        replace(KEY, target="other"),
        replace(KEY, threads=2),
        replace(KEY, numerics="strict"),
        replace(KEY, compiler_version="2"),
    ],
)
def test_every_part_of_the_key_separates_trials(store: Store, other_key: TaskKey) -> None:
    store.add([WorkloadRecord(other_key.workload, "other", {})])
    store.add([TargetRecord(other_key.target, {})])
    store.add([trial(1, 0.5), trial(2, 2.0, key=other_key)])
    assert queries.fastest_trial(store, KEY) == stored(trial(1, 0.5), 1)
    assert queries.fastest_trial(store, other_key) == stored(trial(2, 2.0, key=other_key), 2)
    assert queries.tasks(store) == [KEY, other_key]
    assert queries.count_trials(store, KEY) == {"ok": 1}
    assert queries.count_trials(store) == {"ok": 2}


def test_unknown_key_has_no_trials(store: Store) -> None:
    store.add([trial(1)])
    nobody = replace(KEY, workload="unknown")
    assert queries.fastest_trial(store, nobody) is None
    assert queries.trials(store, nobody) == []
    assert queries.count_trials(store, nobody) == {}


def test_limit_keeps_the_newest_trials_in_order(store: Store) -> None:
    store.add([trial(1), trial(2), failed(3), trial(4)])
    numbers = [record.number for record in queries.trials(store, KEY, limit=2)]
    assert numbers == [3, 4]


def test_unknown_workload_target_or_job_adds_nothing(store: Store) -> None:
    strangers = [
        trial(2, key=replace(KEY, workload="unknown")),
        trial(2, key=replace(KEY, target="unknown")),
        trial(2, job="unknown"),
    ]
    for stranger in strangers:
        with pytest.raises(DatabaseError, match="'unknown' is not in the database"):
            store.add([trial(1), stranger])
    assert queries.count_trials(store) == {}


@pytest.mark.parametrize("latency", [None, float("inf"), float("nan"), 0.0, -1.0])
def test_ok_trial_without_a_latency_is_refused(store: Store, latency: float | None) -> None:
    with pytest.raises(DatabaseError, match="ok without a latency"):
        store.add([trial(1), trial(2, latency)])
    assert queries.count_trials(store) == {}


def test_infinite_latency_of_a_failed_trial_is_none(store: Store) -> None:
    store.add([trial(1, float("inf"), status="crashed")])
    assert queries.trials(store, KEY)[0].latency is None


@pytest.mark.parametrize("field", ["choices", "machine", "conditions"])
@pytest.mark.parametrize("value", [float("nan"), object(), b"bytes"])
def test_values_that_are_not_json_are_refused(store: Store, field: str, value: Any) -> None:
    changes: dict[str, Any] = {field: {"value": value}}
    with pytest.raises(DatabaseError, match="is not JSON"):
        store.add([trial(1), trial(2, **changes)])
    assert queries.count_trials(store) == {}


def test_any_error_text_can_be_stored(store: Store) -> None:
    store.add([failed(1, error="a\0b\udcffc"), failed(2, error="x" * 1_000_000)])
    first, second = queries.trials(store, KEY)
    assert first.error == "a\\x00b\\udcffc"
    assert second.error == "x" * 16_000


def test_adding_again_keeps_the_first(store: Store) -> None:
    store.add([WorkloadRecord(KEY.workload, "another name", {}), WORKLOAD])
    store.add([TargetRecord(KEY.target, None)])
    store.add([])
    assert queries.workloads(store) == {KEY.workload: WORKLOAD}
    assert queries.targets(store) == {KEY.target: TARGET}
    assert queries.workloads(store, [KEY.workload, "unknown"]) == {KEY.workload: WORKLOAD}
    assert queries.workloads(store, ["unknown"]) == {}


def test_job_goes_from_running_to_finished(store: Store) -> None:
    job = store.start_job("resnet18", "abc", {"search": {"seed": 3}}, [JobTask(KEY, 4)])
    assert queries.jobs(store) == [job]
    assert (job.state, job.finished, job.tasks) == ("running", None, (JobTask(KEY, 4),))
    store.update_job(job.id, {"trials": 5})
    store.add([trial(1, job=job.id)])
    store.finish_job(job.id, "finished")
    (found,) = queries.jobs(store)
    assert (found.state, found.progress) == ("finished", {"trials": 5})
    assert found.finished is not None
    assert found.finished >= found.started
    assert queries.trials(store, KEY)[0].job == job.id


def test_jobs_are_listed_newest_first(store: Store) -> None:
    first = store.start_job("a", "hash-a", {})
    second = store.start_job("b", "hash-b", {})
    third = store.start_job("a", "hash-a", {})
    assert [job.id for job in queries.jobs(store)] == [third.id, second.id, first.id]


def test_the_newest_is_what_was_added_last_also_after_a_clock_was_set_back(store: Store) -> None:
    job = replace(store.start_job("a", "hash", {}), state="finished", finished=0.0)
    hours = {"b": 3.0, "c": 6.0, "d": 0.0}
    store.add(replace(job, id=id, started=1e10 + 3600.0 * n) for id, n in hours.items())
    assert [each.id for each in queries.jobs(store)] == ["d", "c", "b", job.id]
    store.add([plan(2), plan(1)])
    assert model_queries.newest_plan(store, "abc", TARGET.key, 1, "auto", "1") == plan(1)
    store.add([latency(2), latency(1)])
    assert [found.id for found in model_queries.latencies(store)] == ["latency-1", "latency-2"]
    store.add([build(2), build(1)])
    assert model_queries.builds(store) == [build(1), build(2)]


def test_unknown_job_is_an_error(store: Store) -> None:
    with pytest.raises(DatabaseError, match="'unknown' is not in the database"):
        store.update_job("unknown", {})
    with pytest.raises(DatabaseError, match="'unknown' is not in the database"):
        store.finish_job("unknown", "failed")


def test_unknown_job_state_is_refused(store: Store) -> None:
    job = store.start_job("a", "hash-a", {})
    with pytest.raises(DatabaseError, match="no such state"):
        store.finish_job(job.id, "done")  # type: ignore[arg-type]


def test_summary_has_one_line_per_task(store: Store) -> None:
    two_threads = replace(KEY, threads=2)
    store.add([trial(1, 2.0), trial(2, 0.5), failed(3), failed(4)])
    store.add([failed(5), trial(6, 0.1, key=two_threads, status="unstable")])
    store.add([failed(7, "scattered")])
    assert queries.summary(store) == [
        queries.TaskSummary(KEY, "conv_relu", 6, 3, 1, 0.5, 1007.0),
        queries.TaskSummary(two_threads, "conv_relu", 1, 0, 1, None, 1006.0),
    ]
    assert queries.summary(store, KEY.workload) == queries.summary(store)
    assert queries.summary(store, "unknown") == []


def test_iteration_gives_every_trial_in_order(store: Store) -> None:
    store.add(trial(number) for number in range(1, 2502))
    numbers = [record.number for record in queries.iterate_trials(store)]
    assert numbers == list(range(1, 2502))


def test_nothing_to_record_is_fine(store: Store) -> None:
    assert store.add([]) == 0
    assert list(queries.iterate_trials(store)) == []


def test_tasks_without_trials_are_not_listed(store: Store) -> None:
    store.start_job("resnet18", "abc", {}, [JobTask(replace(KEY, threads=3), 1)])
    assert queries.tasks(store) == []
    store.add([failed(1)])
    assert queries.tasks(store) == [KEY]
    assert queries.tasks(store, only_ok=True) == []
    store.add([trial(2)])
    assert queries.tasks(store, only_ok=True) == [KEY]


def test_finalists_are_the_trials_that_were_confirmed(store: Store) -> None:
    confirmed = trial(2, conditions={"load": 0.5, CONFIRMED: "job"})
    store.add([trial(1), confirmed, failed(3)])
    assert queries.finalists(store, KEY) == [stored(confirmed, 2)]


def test_a_part_of_many_trials_has_the_fastest_the_newest_and_the_one_asked_for(
    store: Store,
) -> None:
    store.add(trial(number, float(number)) for number in range(1, 31))
    asked = trial(20).schedule_hash
    some = queries.some_trials(store, KEY, fastest=3, newest=4, schedule_hash=asked)
    assert [record.number for record in some] == [1, 2, 3, 20, 27, 28, 29, 30]


def test_questions_within_a_session_see_its_state(store: Store) -> None:
    store.add([trial(1)])
    with store.reading() as outer:
        with store.reading() as inner:
            assert inner is outer
        assert queries.count_trials(store) == {"ok": 1}
    with store.reading() as later:
        assert later is not outer


def test_contenders_are_all_trials_of_the_schedules_that_are_among_the_fastest(
    store: Store,
) -> None:
    store.add([trial(1, 1.0), paired(2, 1), trial(3, 3.0), failed(4), trial(5, 0.7)])
    again = [replace(trial(2, 4.0), request_id="b"), replace(failed(2), request_id="c")]
    store.add(again)
    found = queries.contenders(store, KEY, 2)
    assert [(one.number, one.status, one.latency) for one in found] == [
        (2, "ok", 0.5),
        (5, "ok", 0.7),
        (6, "ok", 4.0),
        (7, "crashed", None),
    ]
    pair = trial(1).schedule_hash, 0.45, 0.55
    assert (found[0].reference, found[0].low, found[0].high) == pair
    without = {trial(2).schedule_hash}
    numbers = [one.number for one in queries.contenders(store, KEY, 2, without=without)]
    assert numbers == [1, 5]
    assert [one.number for one in queries.contenders(store, KEY, 1, after=2)] == [5]
    assert queries.numbered(store, [5, 2]) == [stored(paired(2, 1), 2), stored(trial(5, 0.7), 5)]


def test_trials_that_have_lost_their_reference_are_known(store: Store) -> None:
    two_threads = replace(KEY, threads=2)
    store.add([trial(1), paired(2, 1), paired(3, 9), paired(4, 1, key=two_threads)])
    assert queries.without_reference(store) == [3, 4]
    assert queries.without_reference(store, [2, 3]) == [3]


def test_builds_come_back_newest_first_and_once(store: Store) -> None:
    store.add([build(1), build(2)])
    store.add([build(2)])
    assert model_queries.builds(store) == [build(2), build(1)]
    assert model_queries.builds(store, limit=1) == [build(2)]
    with pytest.raises(DatabaseError, match="target 'nowhere' is not in the database"):
        store.add([replace(build(3), target="nowhere")])


def test_the_newest_plan_of_a_model_counts(store: Store) -> None:
    other = plan(3, numerics="int8")
    store.add([plan(1), plan(2), other])
    store.add([plan(1)])
    assert model_queries.plans(store) == [other, plan(2), plan(1)]
    of = ("abc", TARGET.key, 1)
    assert model_queries.newest_plan(store, *of, "auto", "1") == plan(2)
    assert model_queries.newest_plan(store, *of, "int8", "1") == other
    assert model_queries.newest_plan(store, *of, "auto", "2") is None
    assert model_queries.newest_plan(store, "abd", TARGET.key, 1, "auto", "1") is None
    with pytest.raises(DatabaseError, match="target 'nowhere' is not in the database"):
        store.add([plan(4, target="nowhere")])


def test_a_candidate_is_claimed_by_one_job_until_it_is_measured(store: Store) -> None:
    first, second = (store.start_job("model", "hash", {}).id for _ in range(2))
    one, two, three = ((KEY, trial(number).schedule_hash) for number in (1, 2, 3))
    assert claim(store, first, [one, two]) == {one, two}
    assert claim(store, second, [one, two, three]) == {three}
    store.add([trial(1, job=first)])
    assert claim(store, first, [], done=[one, two]) == set()
    assert claim(store, second, [one, two]) == {two}
    release_claims(store, second)
    assert claim(store, first, [one, two, three]) == {two, three}
    store.finish_job(first, "finished")
    assert count_claims(store) == 0


def test_claims_of_a_process_that_is_gone_have_lapsed(store: Store) -> None:
    """On this machine at once; those of another one when it was not seen for a while."""
    gone, far, late, ours = (store.start_job("model", "hash", {}).id for _ in range(4))
    claims = [(KEY, trial(number).schedule_hash) for number in (1, 2, 3)]
    for job, claimed in zip((gone, far, late), claims, strict=True):
        assert claim(store, job, [claimed]) == {claimed}
    held_by(store, gone, process_started=-7)
    held_by(store, far, host="elsewhere")
    held_by(store, late, host="elsewhere", seen=1000.0)
    assert [job.state for job in queries.jobs(store)] == ["running", "lost", "running", "lost"]
    assert claim(store, ours, claims) == {claims[0], claims[2]}
    assert {lost.id for lost in close_lost_jobs(store)} == {gone, late}
    renew_lease(store, far)
    assert close_lost_jobs(store) == []
    assert [job.state for job in queries.jobs(store)] == ["running", "lost", "running", "lost"]


def held_by(store: Store, job: str, **changes: object) -> None:
    with store.writing() as session:
        lease = session.scalars(select(schema.Lease).join(schema.Job).filter_by(uid=job)).one()
        for name, value in changes.items():
            setattr(lease, name, value)
        lease.checksum = checksum_of(lease)


def test_results_of_others_are_seen_once(store: Store) -> None:
    mine, theirs = (store.start_job("model", "hash", {}).id for _ in range(2))
    store.add([trial(1, job=mine)])
    seen = queries.last_trial(store)
    assert queries.trials_of_others(store, [KEY], job=mine, after=seen) == (seen, [])
    store.add([trial(2, job=theirs), trial(3, job=mine), trial(4)])
    last, found = queries.trials_of_others(store, [KEY], job=mine, after=seen)
    assert [record.request_id for record in found] == ["request-2", "request-4"]
    assert queries.trials_of_others(store, [KEY], job=mine, after=last) == (last, [])
    assert queries.trials_of_others(store, [], job=mine, after=seen) == (last, [])
