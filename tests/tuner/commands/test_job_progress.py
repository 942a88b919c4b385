"""Progress as JSON lines, and the log of what becomes faster."""

from __future__ import annotations

import io
import json
import logging
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from tunefarm.configs.errors import SettingsError
from tunefarm.tuner.commands.job_progress import EVENT_SECONDS, JobProgress, job_progress
from tunefarm.tuner.reports.progress import Progress
from tunefarm.tuner.reports.report import TaskStatus

TASK = TaskStatus("conv", "0123456789abcdef", 3, 4, 1, 2e-3, 1e-3, scattered=1)


class Shown(Progress):
    """Keeps what it is to show."""

    def __init__(self) -> None:
        self.messages: list[str] = []
        self.updates = 0

    def message(self, text: str) -> None:
        self.messages.append(text)

    def update(self, *_: object) -> None:
        self.updates += 1


class Clock:
    """Stands still until it is moved."""

    now = 100.0

    def __call__(self) -> float:
        return self.now


def lines(text: str) -> list[dict[str, Any]]:
    return [json.loads(line) for line in text.splitlines()]


def test_each_event_is_a_line_with_counts_and_latencies() -> None:
    shown, stream, clock = Shown(), io.StringIO(), Clock()
    progress = JobProgress(shown, stream, clock)
    progress.message("2 kernels")
    clock.now += 7.5
    progress.update([TASK], 7.5, 60.0)
    progress.end("finished", {"job": "abc"})
    message, update, end = lines(stream.getvalue())
    assert message == {"event": "message", "text": "2 kernels", "seconds": 0.0}
    assert update == {
        "event": "progress",
        "seconds": 7.5,
        "seconds_left": 60.0,
        "kernels": 1,
        "kernels_measured": 1,
        "trials": 4,
        "failures": 1,
        "scattered": 1,
        "untuned_seconds": pytest.approx(6e-3),
        "expected_seconds": pytest.approx(3e-3),
        "speed_up": None,  # the interval is not known: it may be noise
    }
    assert end == {"event": "end", "state": "finished", "job": "abc", "seconds": 7.5}
    assert shown.messages == ["2 kernels"] and shown.updates == 1


def test_a_line_tells_of_new_trials_and_the_last_one_is_not_lost() -> None:
    stream, clock = io.StringIO(), Clock()
    progress = JobProgress(Shown(), stream, clock)
    for trials in (4, 4, 5, 6):
        progress.update([replace(TASK, trials=trials)], 1.0, None)
        clock.now += 0.4 * EVENT_SECONDS
    progress.stop()
    assert [line["trials"] for line in lines(stream.getvalue())] == [4, 6]


def test_a_job_that_raises_has_failed(tmp_path: Path) -> None:
    path = tmp_path / "progress.jsonl"
    with pytest.raises(RuntimeError), job_progress(str(path)) as progress:
        progress.message("begun")
        raise RuntimeError
    assert [line["event"] for line in lines(path.read_text())] == ["message", "end"]
    assert lines(path.read_text())[-1]["state"] == "failed"


def test_a_file_that_cannot_be_written_is_refused_before_the_job(tmp_path: Path) -> None:
    with pytest.raises(SettingsError, match="cannot write"), job_progress(f"{tmp_path}/no/p"):
        pass


def test_a_full_disk_ends_no_job() -> None:
    class Full(io.StringIO):
        def write(self, text: str) -> int:
            raise OSError(28, "No space left on device")

    shown = Shown()
    progress = JobProgress(shown, Full())
    progress.message("one")
    progress.message("two")
    assert [text for text in shown.messages if "No space left" in text] == [shown.messages[1]]


def test_a_kernel_that_becomes_faster_is_logged_once(caplog: pytest.LogCaptureFixture) -> None:
    progress = JobProgress(Shown())
    with caplog.at_level(logging.INFO, "tunefarm.tune"):
        for best in (1e-3, 1e-3, 8e-4):
            progress.update([replace(TASK, best=best)], 1.0, None)
    assert caplog.messages == [
        "conv 01234567: 1 ms after 4 trials",
        "conv 01234567: 800 µs after 4 trials",
    ]
