"""A model as it was recorded beside the model as it is now, without a machine."""

from __future__ import annotations

from dataclasses import replace

import pytest

from tests.tuner.verify.examples import HERE, MACHINE, kernel, measured, times
from tunefarm.tuner.records.model_latencies import Ratio
from tunefarm.tuner.verify.drift import (
    BETWEEN_PROCESSES,
    EXIT_CODES,
    Drift,
    Verdict,
    applied_share,
    causes,
    choose_baseline,
    compare_times,
    deviation,
    kernel_drifts,
    slowdown_of,
)

OTHER_CPU = {**MACHINE, "cpu": "another"}


def verdict(slowdown: float, error: float = 0.01, require: float = 0.97) -> Verdict:
    ratio = Ratio(slowdown, slowdown * (1 - error), slowdown * (1 + error))
    return Drift(ratio, 1.0).judge(require)[0]


def test_a_model_holds_until_it_is_slower_beyond_doubt() -> None:
    assert verdict(1.0) is Verdict.HOLDS
    assert verdict(1.035) is Verdict.HOLDS  # may be within 3 %
    assert verdict(1.06) is Verdict.DRIFTED
    assert verdict(1.06, require=0.9) is Verdict.HOLDS
    assert verdict(0.8) is Verdict.HOLDS  # faster than recorded


def test_a_wide_interval_cannot_be_judged_unless_all_of_it_is_on_one_side() -> None:
    assert verdict(1.0, error=0.1) is Verdict.UNCLEAR
    assert verdict(1.5, error=0.1) is Verdict.DRIFTED
    assert verdict(0.5, error=0.1) is Verdict.HOLDS
    assert verdict(1.0, error=0.1, require=0.8) is Verdict.HOLDS
    assert Drift(None, 1.0).judge(0.97)[0] is Verdict.UNCLEAR


def test_records_that_do_not_apply_are_drift_however_fast_it_is() -> None:
    found, why = Drift(Ratio(0.5, 0.4, 0.6), 0.9).judge(0.97)
    assert found is Verdict.DRIFTED and "90.0 %" in why


def test_each_verdict_has_its_exit_code() -> None:
    assert [EXIT_CODES[item] for item in Verdict] == [0, 1, 3]


def test_the_slowdown_is_of_gains_and_no_surer_than_two_runs() -> None:
    before, now = Ratio(0.5, 0.499, 0.501), Ratio(0.55, 0.549, 0.551)
    found = slowdown_of(before, now)
    assert found is not None
    assert found.ratio == pytest.approx(1.1)
    assert deviation(found) > BETWEEN_PROCESSES
    assert slowdown_of(None, now) is None


def test_the_untuned_build_then_and_now_is_unchanged_and_not_measured() -> None:
    same = Ratio(1.0, 1.0, 1.0)
    assert slowdown_of(same, same) == same
    drift = compare_times(measured(times(1.0, 0.0)), times(1.0, 0.0), HERE, 1.0)
    found, why = drift.judge(1.0)
    assert found is Verdict.HOLDS
    assert why == "it is the untuned build, unchanged, as it was recorded"


def test_a_build_that_was_the_untuned_one_is_compared_as_any_other() -> None:
    found = slowdown_of(Ratio(1.0, 1.0, 1.0), Ratio(0.9, 0.89, 0.91))
    assert found is not None and not found.is_unchanged
    assert found.low < 0.9 < found.high < 1.0


def test_the_baseline_is_what_the_newest_job_measured_on_such_a_machine() -> None:
    newest_first = [
        measured(purpose="verify", created=9.0),
        measured(purpose="job", created=8.0, machine=OTHER_CPU),
        measured(purpose="bench", created=7.0),
        measured(purpose="job", created=6.0),
        measured(purpose="job", created=5.0),
    ]
    chosen = choose_baseline(newest_first, "target", MACHINE)
    assert chosen is not None and chosen.record.created == 6.0


def test_without_a_job_the_first_verification_counts_and_else_another_machine() -> None:
    verified = [measured(purpose="verify", created=created) for created in (3.0, 2.0, 1.0)]
    chosen = choose_baseline(verified, "target", MACHINE)
    assert chosen is not None and chosen.record.created == 1.0
    elsewhere = [measured(machine=OTHER_CPU), measured(purpose="verify", machine=OTHER_CPU)]
    chosen = choose_baseline(elsewhere, "target", MACHINE)
    assert chosen is not None and chosen.record.purpose == "job"
    assert choose_baseline([], "target", MACHINE) is None
    alone = replace(times(), over_untuned=None)
    assert choose_baseline([measured(alone)], "target", MACHINE) is None


def test_latencies_of_another_machine_are_not_compared_but_named() -> None:
    found = compare_times(measured(machine=OTHER_CPU), times(), HERE, 1.0)
    assert found.slowdown is None
    assert found.causes == ("another CPU: another, now made-up",)
    found = compare_times(measured(target="former"), times(), HERE, 1.0)
    assert found.slowdown is None and "records do not apply" in found.causes[0]


def test_a_cpu_that_was_recorded_without_its_model_is_the_same() -> None:
    machine = {**MACHINE, "cpu": f"{MACHINE['cpu']} (family 1, model 2)"}
    assert causes(HERE, replace(HERE, machine=machine)) == []
    chosen = choose_baseline([measured(machine=OTHER_CPU), measured()], "target", machine)
    assert chosen is not None and chosen.record.machine == MACHINE
    (cause,) = causes(replace(HERE, machine=machine), HERE)
    assert "made-up (family 1, model 2), now made-up" in cause


def test_what_is_different_of_machine_and_compiler_is_named() -> None:
    assert causes(HERE, HERE) == []
    now = replace(
        HERE,
        compiler_version="6",
        llvm="23.0.0",
        machine={**MACHINE, "kernel": "6.8", "governor": "powersave"},
    )
    assert causes(HERE, now) == [
        "another version of the compiler: 5, now 6; records are nominees until tune verify --quick "
        "has met them",
        "another LLVM: 22.1.0, now 23.0.0",
        "another kernel of the system: 6.1, now 6.8",
        "another governor: none, now powersave",
    ]


def test_the_share_that_applies_is_weighed_by_time() -> None:
    now = times()
    kernels = {**now.kernels, "a": kernel("a", "default", "")}
    assert applied_share(times(), replace(now, kernels=kernels), 0.3) == pytest.approx(0.2)
    assert applied_share(times(), now, 0.3) == 1.0
    nothing = replace(times(), kernels={})
    assert applied_share(nothing, now, 0.3) == 0.3


def test_kernels_are_compared_beside_each_other() -> None:
    """All became 1.5 times as slow, which is the clock; one 2 times more."""
    now = times(seconds={"a": 12e-4, "b": 3e-4, "c": 1.5e-4})
    drifts = {item.key: item for item in kernel_drifts(times(), now)}
    assert drifts["a"].change == drifts["c"].change == ""
    assert drifts["b"].change == "slower relative to the others: 2.00x"


def test_kernels_whose_records_are_gone_replaced_or_new_are_told() -> None:
    before, now = times(), times(seconds={"a": 8e-4, "b": 1e-4, "d": 1e-4})
    kernels = {
        **now.kernels,
        "a": kernel("a", "default", ""),
        "b": kernel("b", "tuned", "s2"),
    }
    drifts = {
        item.key: item.change for item in kernel_drifts(before, replace(now, kernels=kernels))
    }
    assert drifts == {
        "a": "its record does not apply any more: default",
        "b": "another schedule, of a later job",
        "c": "the model has no such kernel any more",
        "d": "the model had no such kernel",
    }


def test_a_kernel_that_hardly_counts_is_not_named_for_its_time() -> None:
    before = times(seconds={"a": 8e-4, "b": 1e-4, "c": 1e-6})
    now = times(seconds={"a": 8e-4, "b": 1e-4, "c": 2e-6})
    assert [item.change for item in kernel_drifts(before, now)] == ["", "", ""]
