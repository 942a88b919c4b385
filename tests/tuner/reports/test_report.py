"""Figures and progress lines say what is known and mark what is not."""

from __future__ import annotations

import io
import math
from dataclasses import replace

import pytest

from tunefarm.measure.compare import LogRatio
from tunefarm.tuner.reports.progress import (
    PLAIN_INTERVAL,
    LiveProgress,
    PlainProgress,
    make_progress,
    status_line,
)
from tunefarm.tuner.reports.report import (
    Latency,
    TaskStatus,
    format_duration,
    format_latency,
    format_ratio,
    format_seconds,
    format_share,
    format_speed_up,
    shares,
    short_titles,
    sum_of,
    task_to_json,
)

FAST = TaskStatus(
    "conv_relu",
    "0123456789abcdef",
    3,
    20,
    2,
    default=4e-3,
    best=1.9e-3,
    scattered=1,
    expected=2e-3,
    low=1.9e-3,
    high=2.2e-3,
)
SLOW = TaskStatus(
    "matmul",
    "fedcba9876543210",
    1,
    9,
    0,
    default=2e-2,
    best=1.8e-2,
    expected=1.8e-2,
    low=1.76e-2,
    high=1.88e-2,
)
UNKNOWN = TaskStatus("softmax", "00000000ffffffff", 1, 0, 0, default=math.inf, best=math.inf)


@pytest.mark.parametrize(
    ("seconds", "text"),
    [
        (2.5, "2.5 s"),
        (1.2344e-3, "1.234 ms"),
        (45.6e-6, "45.6 µs"),
        (8e-9, "8 ns"),
        (math.inf, "-"),
    ],
)
def test_latencies_have_a_fitting_unit(seconds: float, text: str) -> None:
    assert format_seconds(seconds) == text


def test_spans_shares_and_ratios_read_well() -> None:
    assert [format_duration(s) for s in (0, 61.2, 3723)] == ["0:00", "1:01", "1:02:03"]
    assert (format_share(0.256), format_share(math.nan)) == ("25.6 %", "-")
    assert (format_ratio(1.234), format_ratio(math.nan)) == ("1.23x", "-")


def test_shares_count_occurrences_and_leave_out_what_is_unknown() -> None:
    assert shares([FAST, SLOW])[0] == pytest.approx(0.25)
    assert math.isnan(shares([FAST, UNKNOWN])[1])
    assert math.isnan(shares([UNKNOWN])[0])


def test_an_interval_has_the_unit_of_its_latency() -> None:
    assert format_latency(Latency(1.02e-3, 0.98e-3, 1.064e-3)) == "1.02 ms (0.98 to 1.06)"
    assert format_latency(Latency(1.02e-3)) == "1.02 ms"
    assert format_latency(Latency(1.02e-3, 1.02e-3, 1.02e-3)) == "1.02 ms"  # of nothing but itself
    assert format_latency(Latency(math.inf)) == "-"


@pytest.mark.parametrize(("before", "after"), [(1.23456e-3, 1.0049999e-3), (2e-3, 1.99995e-3)])
def test_a_speed_up_is_the_ratio_of_the_figures_that_are_shown(before: float, after: float) -> None:
    shown = [float(format_seconds(seconds).split()[0]) for seconds in (before, after)]
    assert format_speed_up(before, after) == f"{shown[0] / shown[1]:.2f}x"


def test_a_speed_up_without_one_of_its_latencies_is_unknown() -> None:
    assert format_speed_up(math.inf, 1e-3) == format_speed_up(1e-3, math.nan) == "-"


def test_the_squares_of_errors_of_kernels_add_up() -> None:
    total = sum_of([FAST, SLOW])
    assert total.value == pytest.approx(24e-3)
    assert total.low == pytest.approx(24e-3 - math.hypot(0.3e-3, 0.4e-3))
    assert total.high == pytest.approx(24e-3 + math.hypot(0.6e-3, 0.8e-3))
    assert math.isnan(sum_of([FAST, replace(SLOW, expected=math.nan)]).low)


def test_json_has_null_for_what_is_unknown() -> None:
    unknown = task_to_json(UNKNOWN)
    for name in ("best", "default", "expected", "low", "high"):
        assert unknown[f"{name}_seconds"] is None
    assert (unknown["speed_up"], unknown["claimed_ratio"], unknown["confirmed_ratio"]) == (
        None,
    ) * 3


def test_json_has_one_figure_for_what_a_kernel_takes() -> None:
    values = task_to_json(replace(FAST, claimed=0.45, confirmed=0.5))
    assert values["scattered"] == 1
    assert values["default_seconds"] / values["best_seconds"] == values["speed_up"] == 2.0
    assert (values["low_seconds"], values["high_seconds"]) == (1.9e-3, 2.2e-3)
    assert (values["claimed_ratio"], values["confirmed_ratio"]) == (0.45, 0.5)


def test_json_says_what_another_placement_does() -> None:
    unknown, known = (
        task_to_json(FAST),
        task_to_json(replace(FAST, placement=LogRatio(0.0, 0.1, 9))),
    )
    assert [unknown[f"placement_{name}"] for name in ("ratio", "low", "high")] == [None] * 3
    assert known["placement_ratio"] == 1.0
    assert known["placement_low"] * known["placement_high"] == pytest.approx(1.0)


def test_the_status_line_counts_trials_and_time() -> None:
    line = status_line([FAST, SLOW], 61.0, 30.0)
    assert line.startswith("29 trials (2 failed, 1 discarded as too noisy), ")
    assert line.endswith(", 1:01 elapsed, at most 0:30 left to search")


def test_the_status_line_tells_what_is_expected_and_nothing_that_is_claimed() -> None:
    line = status_line([FAST, SLOW], 61.0, None)
    assert "sum of kernels expected at 24 ms (23.5 to 25), untuned 32 ms" in line
    assert "23.7 ms" not in line  # 3 x 1.9 ms + 18 ms, the lowest that was measured


def test_the_status_line_sums_what_is_measured() -> None:
    line = status_line([FAST, UNKNOWN], 0.0, None)
    assert "1 of 2 kernels measured, sum of kernels expected at 6 ms (5.7 to 6.6)" in line
    assert "untuned 12 ms" in line
    assert "expected" not in status_line([UNKNOWN], 0.0, None)


def test_the_status_line_compares_with_no_untuned_kernel_that_failed() -> None:
    assert "untuned" not in status_line([FAST, replace(SLOW, default=math.inf)], 0.0, None)


def test_plain_progress_prints_a_line_now_and_then() -> None:
    now = [0.0]
    stream = io.StringIO()
    progress = PlainProgress(stream, clock=lambda: now[0])
    progress.start()
    for now[0] in (0.0, 1.0, PLAIN_INTERVAL - 1, PLAIN_INTERVAL, PLAIN_INTERVAL + 1):
        progress.update([FAST], now[0], None)
    progress.stop()
    assert len(stream.getvalue().splitlines()) == 2


def test_progress_is_live_only_on_a_terminal() -> None:
    class Terminal(io.StringIO):
        def isatty(self) -> bool:
            return True

    assert isinstance(make_progress(io.StringIO()), PlainProgress)
    stream = Terminal()
    progress = make_progress(stream)
    assert isinstance(progress, LiveProgress)
    progress.start()
    progress.message("a line that stays")
    progress.update([FAST, SLOW], 1.0, 2.0)
    progress.stop()
    assert "a line that stays" in stream.getvalue()


def test_titles_leave_out_the_folder_that_all_their_nodes_are_in() -> None:
    titles = ["net/a/conv + net/a/relu (and 1 more)", "net/b/dense + net/c + 4 more nodes"]
    assert short_titles(titles) == ["a/conv + a/relu (and 1 more)", "b/dense + c + 4 more nodes"]
    assert short_titles(titles[:1]) == titles[:1]
    assert short_titles(["/a/x", "conv", "/a/y"]) == ["/a/x", "conv", "/a/y"]
