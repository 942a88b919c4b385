"""Tables and progress lines say what is known and mark what is not."""

from __future__ import annotations

import io
import math

import pytest
from rich.console import Console

from tuner.reports.progress import (
    PLAIN_INTERVAL,
    LiveProgress,
    PlainProgress,
    make_progress,
    status_line,
)
from tuner.reports.report import (
    TaskStatus,
    format_duration,
    format_ratio,
    format_seconds,
    format_share,
    shares,
    task_table,
    task_to_json,
)

FAST = TaskStatus("conv_relu", "0123456789abcdef", 3, 20, 2, default=4e-3, best=2e-3, ended="done")
SLOW = TaskStatus("matmul", "fedcba9876543210", 1, 9, 0, default=2e-2, best=1.8e-2)
UNKNOWN = TaskStatus("softmax", "00000000ffffffff", 1, 0, 0, default=math.inf, best=math.inf)


def printed(*tasks: TaskStatus, limit: int | None = None) -> str:
    stream = io.StringIO()
    Console(file=stream, width=120).print(task_table(tasks, limit=limit))
    return stream.getvalue()


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


def test_the_table_has_a_row_per_kernel_the_costliest_first() -> None:
    text = printed(FAST, UNKNOWN, SLOW)
    assert text.index("matmul") < text.index("conv_relu") < text.index("softmax")
    row = next(line for line in text.splitlines() if "conv_relu" in line)
    for cell in ("01234567", "20", "2 ms", "25.0 %", "2.00x", "done"):
        assert cell in row


def test_a_long_table_says_how_much_it_leaves_out() -> None:
    text = printed(FAST, SLOW, UNKNOWN, limit=1)
    assert "conv_relu" not in text
    assert "and 2 more kernels" in text


def test_json_has_null_for_what_is_unknown() -> None:
    assert task_to_json(UNKNOWN)["best_seconds"] is None
    assert task_to_json(FAST)["speed_up"] == 2.0


def test_the_status_line_counts_trials_and_time() -> None:
    line = status_line([FAST, SLOW], 61.0, 30.0)
    assert "29 trials (2 failed)" in line
    assert "24 ms" in line  # 3 x 2 ms + 18 ms
    assert "1:01 elapsed" in line and "at most 0:30 left" in line
    assert "2 of 3 kernels measured" in status_line([FAST, SLOW, UNKNOWN], 0.0, None)


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
