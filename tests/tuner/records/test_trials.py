"""Which of a task's records is applied."""

from __future__ import annotations

import math
from dataclasses import replace
from pathlib import Path

import pytest

from tests.db import examples
from tunefarm.db import queries
from tunefarm.db.records import CONFIRMED, BestRecord, TaskKey, TrialRecord
from tunefarm.db.store import Store
from tunefarm.measure.compare import pair_of
from tunefarm.measure.measurement import MeasureResult, Status
from tunefarm.tuner.records.trials import (
    best_record,
    confirmations,
    measured,
    record_to_apply,
    search_trials,
    trial_record,
)

KEY = TaskKey("w", "t", 1, "default", "1")


def trial(schedule: str, latency: float, job: str | None = None) -> TrialRecord:
    """A search's trial, or a finalist's of a job; infinity is a failure."""
    failed = math.isinf(latency)
    return TrialRecord(
        KEY,
        "request",
        "sketch",
        {},
        [[schedule]],
        "crashed" if failed else "ok",
        latency=None if failed else latency,
        conditions={} if job is None else {CONFIRMED: job},
    )


def applied(*records: TrialRecord) -> tuple[str, float | None] | None:
    best = best_record(records)
    return None if best is None else (best.schedule[0][0], best.latency)


def test_without_finalists_the_fastest_trial_is_applied() -> None:
    assert applied(trial("a", 2.0), trial("b", 1.0), trial("c", 3.0)) == ("b", 1.0)


def test_nothing_is_applied_if_nothing_works() -> None:
    assert applied() is None
    assert applied(trial("a", math.inf)) is None


def test_finalists_decide_by_the_median_of_their_rounds() -> None:
    rounds = [trial("a", t, "j") for t in (1.4, 1.6, 1.5)]
    rounds += [trial("b", t, "j") for t in (1.0, 1.9, 1.8)]
    assert applied(trial("a", 1.3), trial("b", 0.5), *rounds) == ("a", 1.5)


def test_only_the_newest_confirmation_of_a_schedule_counts() -> None:
    old, new = trial("a", 1.0, "first"), trial("a", 3.0, "second")
    assert applied(old, trial("b", 2.0, "first"), new) == ("b", 2.0)


def test_a_schedule_that_fails_as_a_finalist_is_out() -> None:
    records = [trial("a", 1.0), trial("b", 2.0)]
    records += [trial("a", 1.0, "j"), trial("a", math.inf, "j"), trial("b", 2.1, "j")]
    assert applied(*records) == ("b", 2.1)


def test_if_every_finalist_fails_another_trial_is_applied() -> None:
    records = [trial("a", 1.0), trial("c", 4.0), trial("a", math.inf, "j")]
    assert applied(*records) == ("c", 4.0)


def test_a_later_trial_must_be_clearly_faster_than_the_confirmed_best() -> None:
    confirmed = trial("a", 1.0, "j")
    assert applied(confirmed, trial("b", 0.99)) == ("a", 1.0)
    assert applied(confirmed, trial("b", 0.9)) == ("b", 0.9)


def test_a_trial_before_the_finalists_does_not_count_any_more() -> None:
    assert applied(trial("b", 0.5), trial("a", 1.0, "j")) == ("a", 1.0)


def test_search_trials_leave_out_finalists_and_failed_machinery() -> None:
    lost = TrialRecord(KEY, "r", "s", {}, [["c"]], Status.INFRASTRUCTURE.value)
    records = [trial("a", 1.0), lost, trial("a", 2.0, "j"), trial("b", math.inf)]
    assert [record.schedule[0][0] for record in search_trials(records)] == ["a", "b"]
    assert list(confirmations([lost, trial("a", 1.0, "j")])) == [trial("a", 1.0).schedule_hash]


def test_a_schedule_measured_again_counts_once_with_the_latency_by_all_its_trials() -> None:
    records = [trial("a", 1.0), trial("b", 3.0), trial("a", 4.0)]
    assert [r.latency for r in search_trials(records)] == [pytest.approx(2.0), 3.0]
    assert [m.deviation for m in measured(records)] == [None, None]


def test_a_crash_goes_before_earlier_success_and_noise_before_other_failures() -> None:
    lost = replace(trial("b", math.inf), status="scattered")
    ran_out = replace(trial("b", math.inf), status="out_of_memory")
    records = [trial("a", 1.0), ran_out, trial("a", math.inf), lost]
    assert [r.status for r in search_trials(records)] == ["crashed", "scattered"]


def test_finalists_that_were_lost_to_noise_are_not_refuted() -> None:
    lost = replace(trial("a", math.inf, "j"), status="scattered")
    assert applied(trial("a", 1.0, "j"), lost, trial("b", 1.5, "j")) == ("a", 1.0)
    assert applied(trial("a", 1.0), lost) == ("a", 1.0)


def test_what_is_applied_is_found_among_many_trials(tmp_path: Path) -> None:
    with Store.open(tmp_path / "tuning.db") as store:
        examples.populate(store)
        store.add([examples.trial(1)])
        store.add(examples.paired(n, 1, latency=0.5 + n / 1000) for n in range(2, 400))
        held = examples.paired(3, 1, request_id="again", latency=0.504)
        store.add([examples.paired(2, 1, request_id="again", latency=0.6), held])
        found = best_record(queries.trials(store, examples.KEY))
        assert found is not None
        assert record_to_apply(store, examples.KEY) == (found, False)
        assert found.schedule_hash == held.schedule_hash
        assert found.latency == pytest.approx(math.sqrt(0.503 * 0.504))


def test_what_was_settled_has_the_latency_of_all_its_meetings() -> None:
    with Store.open(":memory:") as store:
        examples.populate(store)
        store.add([examples.trial(1), examples.paired(2, 1)])
        job, chosen = store.start_job("model", "hash", {}).id, examples.paired(2, 1)
        names = chosen.schedule_hash, chosen.request_id
        store.add([BestRecord(examples.KEY, *names, 1.0, 0.75, 0.7, 0.8, (), job)])
        assert record_to_apply(store, examples.KEY) == (
            replace(chosen, latency=0.75, number=2),
            True,
        )


def test_a_result_becomes_a_record_with_facts_and_conditions_apart() -> None:
    result = MeasureResult(
        "r7",
        Status.OK,
        samples=(3.0, 1.0, 2.0),
        machine={"cpu": "c", "fingerprint": "f", "load": 0.1},
        build_seconds=0.5,
    )
    record = trial_record(
        KEY, result, sketch="s", choices={"tile": (4, 2)}, schedule=[["A"]], job="j"
    )
    assert (record.latency, record.samples) == (2.0, (3.0, 1.0, 2.0))
    assert record.choices == {"tile": [4, 2]}
    assert record.machine == {"cpu": "c", "fingerprint": "f"}
    assert record.conditions == {"load": 0.1}
    assert (record.request_id, record.job, record.status) == ("r7", "j", "ok")


def test_a_pair_becomes_a_record_with_its_reference_and_ratio() -> None:
    result = MeasureResult(
        "r", Status.OK, samples=(1.0, 1.01234567, 0.99), rivals=((2.0, 2.0, 2.0), (5.0, 5.0, 5.0))
    )
    record = trial_record(
        *(KEY, result),
        sketch="s",
        choices={},
        schedule=[["A"]],
        job="j",
        reference="b",
        latency=0.4,
    )
    pair = pair_of(result)
    assert pair is not None
    assert (record.reference, record.latency) == ("b", 0.4)
    assert (record.ratio, record.low, record.high) == (pair.ratio, pair.low, pair.high)
    assert record.samples == (1.0, 1.0123, 0.99)
    assert record.reference_samples == (2.0, 2.0, 2.0)
    assert record.contradiction == ""


def test_a_scattered_pair_has_a_ratio_and_no_latency() -> None:
    result = MeasureResult("r", Status.SCATTERED, samples=(1.0, 2.0), rivals=((1.0, 1.0),))
    record = trial_record(
        *(KEY, result),
        sketch="s",
        choices={},
        schedule=[],
        job="j",
        reference="b",
        latency=0.4,
    )
    assert record.latency is None
    assert record.ratio is not None
    assert record.contradiction == ""


def test_what_failed_before_a_pair_was_timed_has_none() -> None:
    result = MeasureResult("r", Status.CRASHED, rivals=((),))
    record = trial_record(KEY, result, sketch="s", choices={}, schedule=[], job="j", reference="b")
    assert (record.reference, record.ratio, record.reference_samples) == (None, None, ())


def test_a_failure_becomes_a_record_without_latency() -> None:
    result = MeasureResult("r", Status.WRONG_RESULT, samples=(1.0,), error="off by 3")
    record = trial_record(KEY, result, sketch="s", choices={}, schedule=[], job="j")
    assert record.latency is None
    assert record.error == "off by 3"
