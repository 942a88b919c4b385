"""Shares of a build's time."""

from __future__ import annotations

from dataclasses import replace

import pytest

from tests.db.examples import paired, populate, trial
from tests.tuner.synthetic import TARGET, matmul_kernel
from tunefarm.compiler.runtime.spec.kernel_report import NAIVE, TUNED, KernelReport
from tunefarm.configs.settings import Settings
from tunefarm.db.store import Store
from tunefarm.tuner.building.apply_best import Records
from tunefarm.tuner.building.report import build_report, build_table, require_share

REPORT = KernelReport(
    name="matmul",
    key="",
    occurrences=1,
    schedule_source="default",
    record_id=None,
    latency=None,
    note="",
    numerics="direct",
    parallel=False,
    workspace_bytes=0,
    flops=1,
    operators=("matmul",),
    sources=("node",),
)
KERNELS = {str(n): matmul_kernel(n + 3, 7 * n + 5, 11 * n + 1) for n in range(1, 30)}
REPORTS = [replace(REPORT, key=key, occurrences=int(key)) for key in KERNELS]


def test_all_tuned_is_one_and_none_tuned_is_zero_to_the_last_bit() -> None:
    for count in range(1, len(REPORTS) + 1):
        none = build_report(REPORTS[:count], KERNELS)
        tuned = [replace(r, schedule_source=TUNED, latency=1e-3 / 7) for r in REPORTS[:count]]
        every = build_report(tuned, KERNELS)
        assert 0.0 <= none.tuned_share < 1e-12
        assert every.tuned_share == 1.0
        require_share(none, 0.0)
        require_share(every, 1.0)


def test_the_table_has_precisions_as_users_type_them() -> None:
    kernels = [replace(REPORTS[0], numerics="f16"), replace(REPORTS[1], numerics="bf16")]
    columns = {
        column.header: column for column in build_table(build_report(kernels, KERNELS)).columns
    }
    assert set(columns["precision"].cells) == {"fp16", "bf16"}


def test_shares_follow_measured_times_and_estimates_scaled_to_them() -> None:
    one, two, three = REPORTS[:3]
    estimates = [use.share for use in build_report([one, two, three], KERNELS).kernels]
    # two are measured as twice and four times what was estimated for them
    measured = [
        replace(one, latency=2.0 * estimates[0], schedule_source=TUNED),
        replace(two, latency=2.0 * estimates[1] / two.occurrences, schedule_source=TUNED),
        three,
    ]
    shares = [use.share for use in build_report(measured, KERNELS).kernels]
    assert sum(shares) == pytest.approx(1.0)
    assert shares == pytest.approx(estimates)


def test_kernel_that_no_schedule_fits_is_noted_without_a_database_too() -> None:
    naive = replace(REPORT, schedule_source=NAIVE, note="the default schedule does not fit: why")
    (note,) = Records(None, Settings(), TARGET).notes([REPORT, naive])
    assert note.startswith("node runs as scalar loops")
    assert note.endswith("the default schedule does not fit: why")


def test_scalar_kernels_are_one_note_and_say_why_in_the_table() -> None:
    assert build_report(REPORTS[:3], KERNELS).notes == ()
    (one,) = build_report([replace(REPORTS[0], not_vectorised="a reason")], KERNELS).notes
    assert one == "1 kernel is not vectorised (100.0 % of the estimated time): node: a reason"
    why = [replace(report, not_vectorised=f"reason {report.key}") for report in REPORTS[:5]]
    report = build_report([*why, replace(why[0], schedule_source=NAIVE)], KERNELS, ("other",))
    some, other = report.notes
    assert some.startswith("5 kernels are not vectorised") and some.endswith("; and 2 more")
    assert "node: reason 5" in some and other == "other"  # the costliest are named
    notes = list(build_table(report).columns[-1].cells)
    assert "not vectorised: reason 5" in notes
    assert report.to_json()["kernels"][4]["not_vectorised"] == "reason 5"


def test_record_that_has_lost_what_it_was_measured_against_is_noted() -> None:
    with Store.open(":memory:") as store:
        populate(store)
        store.add([trial(1), paired(2, 1), paired(3, 9)])
        records = Records(store, Settings(), TARGET)
        used = [replace(REPORT, schedule_source=TUNED, record_id=str(n)) for n in (1, 2, 3)]
        assert records.notes(used[:2]) == ()
        (note,) = records.notes(used)
        assert note.startswith("1 record was measured against schedules that have no record here")
