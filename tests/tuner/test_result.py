"""What a job says that it came to: what was claimed beside what was confirmed."""

from __future__ import annotations

import io
import math
import re
from dataclasses import replace

import pytest
from rich.console import Console

from tunefarm.measure.compare import Comparison, LogRatio
from tunefarm.tuner.building.report import BuildReport
from tunefarm.tuner.confirm.exchange import DEFAULT, TUNED, InModel
from tunefarm.tuner.confirm.latency import ModelLatency
from tunefarm.tuner.confirm.model_times import times_of_job
from tunefarm.tuner.confirm.whole_model import Exchanged
from tunefarm.tuner.records.size_ranges import SizePlan, SizeRange
from tunefarm.tuner.reports.gains import largest_gains
from tunefarm.tuner.reports.report import TaskStatus, task_to_json
from tunefarm.tuner.reports.task_table import TaskTable
from tunefarm.tuner.result import (
    Outcome,
    SizeResult,
    TargetResult,
    TrialCounts,
    TuneResult,
    result_line,
    summary_lines,
)
from tunefarm.tuner.search.budget import End


def status(default: float, claimed: float, confirmed: float, *, occurrences: int = 1) -> TaskStatus:
    return TaskStatus(
        kernel="conv",
        key="0123456789abcdef",
        occurrences=occurrences,
        trials=20,
        failures=1,
        default=default,
        best=default * confirmed,
        scattered=2,
        claimed=claimed,
        confirmed=confirmed,
    )


RESULT = TuneResult(
    model="net.onnx",
    database="tuning.db",
    job="job",
    end=End.TIME,
    measured=50,
    seconds=60.0,
    tasks=(status(2e-3, 0.5, 0.6, occurrences=3), status(1e-3, 1.0, 1.0)),
    latency=ModelLatency(7e-3, 4.9e-3, 0.01, 0.01, 0.7, 0.69, 0.71),
    build=None,
    known=TrialCounts(15, 1),
)


def test_claimed_and_confirmed_are_sums_over_the_same_default_latencies() -> None:
    search = RESULT.to_json()["search"]
    assert search["trials"] == 40 - 15
    assert search["lost_to_noise"] == 4 - 1
    assert search["claimed_seconds"] == pytest.approx(3 * 1e-3 + 1e-3)
    assert search["confirmed_seconds"] == pytest.approx(3 * 1.2e-3 + 1e-3)
    assert search["speedup"] == pytest.approx(1 / 0.7)
    assert search["speedup_low"] < search["speedup"] < search["speedup_high"]


def test_what_the_running_model_showed_is_in_the_result() -> None:
    over = {DEFAULT: Comparison(1.0, 1.0, 1.0, 80), TUNED: Comparison(0.6, 0.59, 0.61, 80)}
    lost = {DEFAULT: over[DEFAULT], TUNED: Comparison(1.1, 1.08, 1.12, 80)}
    exchanged = Exchanged({"0123456789abcdef": InModel(TUNED, over), "f": InModel(DEFAULT, lost)})
    result = replace(RESULT, exchanged=exchanged)
    found = result.to_json()
    won, reverted = found["exchange"]["kernels"]
    assert won["ratio"] == found["tasks"][0]["confirmed_ratio"]
    assert (won["fastest"], reverted["fastest"]) == ("tuned", "default")
    assert (reverted["ratio"], reverted["low"], reverted["high"]) == (1.1, 1.08, 1.12)
    line = "in the running model: 2 kernels exchanged, 1 of them faster with the default schedule"
    assert line in summary_lines(result, "tune build")


def test_the_largest_gains_are_told_with_their_reasons() -> None:
    """Those that save most of the model's time first; what may be no gain is left out."""
    small = replace(status(1e-3, 0.5, 0.5), key="small", reason="unroll 4 instead of 8")
    large = replace(status(9e-3, 0.9, 0.9), key="large", reason="tile 4x8 instead of 7x4")
    doubtful = replace(status(9e-3, 0.9, 0.95), key="doubtful", reason="rows 2 instead of 4")
    tasks = [
        replace(task, expected=task.default * task.confirmed, low=0.0, high=high)
        for task, high in ((small, 6e-4), (large, 8.5e-3), (doubtful, 9.5e-3), (KEPT, 1e-3))
    ]
    gains = [
        "conv (large) 1.11x: tile 4x8 instead of 7x4",
        "conv (small) 2.00x: unroll 4 instead of 8",
    ]
    assert largest_gains(tasks) == gains
    assert largest_gains(tasks[2:]) == []
    text = "\n".join(summary_lines(replace(RESULT, tasks=tuple(tasks)), "tune build"))
    assert "largest gains:\n  " + "\n  ".join(gains) in text
    assert task_to_json(large)["reason"] == large.reason


def test_why_kernels_were_not_exchanged_is_in_the_result() -> None:
    result = replace(RESULT, exchanged=Exchanged(why_not="sizes are dynamic"))
    assert result.to_json()["exchange"] == {"why_not": "sizes are dynamic", "kernels": []}
    line = "kernels were not exchanged in the running model: sizes are dynamic"
    assert line in summary_lines(result, "tune build")


SAME = ModelLatency(7e-3, 7e-3, 0.01, 0.01, 1.0, 1.0, 1.0)
KEPT = replace(status(1e-3, 1.0, 1.0), expected=1e-3, low=1e-3, high=1e-3)
RATIO = re.compile(r"\d\.\d\dx")


def test_a_job_that_keeps_every_default_says_unchanged_and_no_ratio() -> None:
    result = replace(
        RESULT,
        latency=SAME,
        tasks=(KEPT,),
        targets=(
            TargetResult("a", SAME, BuildReport((), ())),
            TargetResult("b", SAME, BuildReport((), ()), elsewhere=True),
        ),
        sizes=(),
    )
    lines = "\n".join(summary_lines(result, "tune build"))
    assert "whole model: 7 ms, unchanged: the tuned build is the untuned one" in lines
    assert not RATIO.search(lines)
    told = result.to_json()
    assert told["search"]["unchanged"] and told["latency"]["unchanged"]
    assert {told["search"][name] for name in ("speedup", "speedup_low", "speedup_high")} == {None}
    assert {told["latency"][name] for name in ("ratio", "low", "high")} == {None}
    sized = replace(result, sizes=(SizeResult("batch=1", SAME),))
    assert "7 ms, unchanged" in "\n".join(summary_lines(sized, "tune build"))


def test_with_dynamic_shapes_the_result_is_the_mean_over_the_sizes() -> None:
    ranges = (SizeRange({"n": (1, 64)}, {}),)
    ratios = {"n=1": (0.25, 0.2, 0.3), "n=64": (1.0, 0.98, 1.02)}
    plan = SizePlan(ranges, {}, {"n=1": (1e-3, 4e-3), "n=64": (7e-3, 7e-3)}, ratios)
    result = replace(RESULT, sizes=(), size_plan=plan)
    ratio, low, high = result.gain.interval
    assert ratio == pytest.approx(0.5)
    assert 0.4 < low < 0.5 < high < 0.6
    assert result.headline.startswith(f"{RESULT.model}: 2.00x as fast as untuned")
    assert result.headline.endswith(", mean of 2 sizes")
    assert result_line(result) == result.headline
    assert result.to_json()["search"]["speedup"] == pytest.approx(2.0)
    lines = summary_lines(result, "tune build")
    assert any(line.startswith("at its maximum sizes: 7 ms untuned") for line in lines)
    same = dict.fromkeys(ratios, (1.0, 1.0, 1.0))
    unchanged = replace(result, size_plan=replace(plan, ratios=same))
    assert "unchanged" in unchanged.headline
    assert unchanged.to_json()["search"]["unchanged"]


def test_a_gain_is_no_unchanged_model() -> None:
    told = RESULT.to_json()
    assert not told["search"]["unchanged"] and not told["latency"]["unchanged"]
    assert told["latency"]["ratio"] == 0.7
    assert not any("unchanged" in line for line in summary_lines(RESULT, "tune build"))


def test_the_table_tells_a_kept_default_from_a_gain() -> None:
    console = Console(width=200, file=io.StringIO())
    gained = replace(status(2e-3, 0.5, 0.6), expected=1.2e-3, low=1.1e-3, high=1.3e-3)
    claimed = replace(KEPT, claimed=0.9)
    with console.capture() as captured:
        console.print(TaskTable((KEPT, gained, claimed), confirmed=True))
    rows = [line for line in captured.get().splitlines() if "conv" in line]
    assert [("unchanged" in row, RATIO.findall(row)) for row in rows] == [
        (False, ["2.00x", "1.67x"]),
        (True, []),
        (True, ["1.11x"]),  # what the search claimed of another schedule
    ]


def test_a_kernel_without_a_default_is_in_neither_sum() -> None:
    result = replace(RESULT, tasks=(*RESULT.tasks, status(math.inf, 0.5, 0.5)))
    assert result.claimed_seconds == RESULT.claimed_seconds
    assert result.confirmed_seconds == RESULT.confirmed_seconds


def test_what_was_confirmed_takes_the_place_of_what_was_expected() -> None:
    expected = replace(status(2e-3, math.nan, math.nan), expected=0.9e-3, low=0.8e-3, high=1e-3)
    told = Outcome(0.45, 0.6, 0.55, 0.65).applied_to(expected)
    assert (told.claimed, told.confirmed) == (0.45, 0.6)
    assert (told.expected, told.low, told.high) == pytest.approx((1.2e-3, 1.1e-3, 1.3e-3))
    assert told.speed_up == pytest.approx(1 / 0.6)
    assert Outcome().applied_to(expected).expected == 0.9e-3


def test_an_interrupted_job_confirms_nothing() -> None:
    search = replace(RESULT, end=End.INTERRUPTED, latency=None).to_json()["search"]
    assert search["trials"] == 25
    counts = ("trials", "failed", "lost_to_noise")
    assert {search[name] for name in search if name not in counts} == {None}


def test_what_is_refused_brings_no_speedup() -> None:
    refused = ModelLatency(
        1e-3, 2e-3, 0.0, 0.0, 2.0, 1.9, 2.1, is_slower=True, kept=Comparison(1.0, 1.0, 1.0, 9)
    )
    assert replace(RESULT, latency=refused).to_json()["search"]["speedup"] is None


def test_the_summary_has_both_and_its_figures_agree() -> None:
    lines = "\n".join(summary_lines(RESULT, "tune build"))
    assert "sum of kernels: 4 ms claimed by the search, 4.6 ms confirmed" in lines
    assert "7 ms untuned, 4.9 ms tuned: 1.43x as fast (95 % sure: 1.41x to 1.45x)" in lines


def test_a_model_that_keeps_its_schedules_has_one_latency_everywhere() -> None:
    """That of the schedules that stay: in the summary and what a job's record has."""
    refused = ModelLatency(
        7e-3,
        8e-3,
        0.0,
        0.0,
        8 / 7,
        1.1,
        1.2,
        6e-3,
        is_slower=True,
        kept=Comparison(0.8, 0.7, 0.9, 0),
    )
    result = replace(RESULT, latency=refused)
    lines = summary_lines(result, "tune build")
    assert (
        "whole model: 7 ms untuned, 5.6 ms tuned: 1.25x as fast (95 % sure: 1.11x to 1.43x)"
        in lines
    )
    assert "with the new schedules it takes 8 ms: the former ones stay" in lines
    assert times_of_job(refused, 0.0, 0.0).tuned == result.gain.tuned == pytest.approx(5.6e-3)


def test_noise_is_no_result() -> None:
    noisy = replace(RESULT, latency=ModelLatency(1e-3, 1.05e-3, 0.2, 0.2, 1.05, 0.6, 1.8))
    lines = "\n".join(summary_lines(noisy, "tune build"))
    assert "1.05 ms tuned: no difference found (95 % sure: 0.56x to 1.67x)" in lines
    assert "0.95x" not in lines


def test_the_summary_tells_what_failed_from_what_was_lost_to_noise() -> None:
    (first, *_) = summary_lines(RESULT, "tune build")
    assert first.startswith("50 measurements (2 failed, 3 discarded as too noisy) in ")
    quiet = replace(RESULT, known=TrialCounts(15, 4, 2))
    assert summary_lines(quiet, "tune build")[0].startswith("50 measurements in ")


def test_a_model_of_microseconds_has_figures_too() -> None:
    small = replace(RESULT, latency=ModelLatency(6.2e-6, 5.9e-6, 0.01, 0.01, 0.952, 0.94, 0.97))
    lines = "\n".join(summary_lines(small, "tune build"))
    assert "6.2 µs untuned, 5.9 µs tuned: 1.05x as fast" in lines


def test_the_summary_names_kernels_that_their_placement_moves() -> None:
    first, second = RESULT.tasks
    moved = replace(first, placement=LogRatio(-0.07, 0.01, 28))
    steady = replace(second, placement=LogRatio(0.01, 0.01, 28))
    lines = summary_lines(replace(RESULT, tasks=(moved, steady)), "tune build")
    about = [line for line in lines if "where its buffers lie" in line]
    assert about == ["where its buffers lie alone moves conv (01234567) by 7 %"]


def test_the_representation_is_the_summary() -> None:
    first, *lines = repr(RESULT).splitlines()
    assert first == "net.onnx: 1.43x as fast as untuned (95 % interval 1.41x to 1.45x)"
    assert lines == summary_lines(RESULT, "tunefarm.build('net.onnx', db='tuning.db')")
    interrupted = replace(RESULT, end=End.INTERRUPTED, latency=None)
    assert repr(interrupted).startswith("net.onnx: interrupted\n")


def test_the_headline_is_of_the_schedules_that_stay() -> None:
    """Newer ones that made the model slower are not applied: the former ones count."""
    latency = ModelLatency(7e-3, 8e-3, 0.01, 0.01, 1.14, 1.13, 1.15, is_slower=True)
    kept = replace(latency, kept=Comparison(0.5, 0.4, 0.625, 0))
    expected = "net.onnx: 2.00x as fast as untuned (95 % interval 1.60x to 2.50x)"
    assert replace(RESULT, latency=kept).headline == expected
    assert "0.88x as fast" in replace(RESULT, latency=latency).headline
