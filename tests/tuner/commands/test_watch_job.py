"""`tune watch` follows a job by a database that it may only read."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import pytest
from rich.console import Console

from tests.tuner.commands.live_jobs import begin, state
from tests.tuner.setting import Messages
from tunefarm.configs.errors import DatabaseError, DatabaseUnavailableError
from tunefarm.db import queries
from tunefarm.db.store import Store
from tunefarm.tuner.commands.job_status import Watch, end_parts
from tunefarm.tuner.reports.report import TaskStatus


class Shown(Messages):
    """What was said, and the trials of every table that was shown."""

    def __init__(self) -> None:
        super().__init__()
        self.trials: list[int] = []

    def update(self, tasks: Sequence[TaskStatus], elapsed: float, left: float | None) -> None:
        self.trials.append(sum(task.trials for task in tasks))


@pytest.fixture
def driver(tmp_path: Path) -> Iterator[Store]:
    with Store.open(tmp_path / "tuning.db") as store:
        yield store


@pytest.fixture
def reader(driver: Store, tmp_path: Path) -> Iterator[Store]:
    with Store.open(tmp_path / "tuning.db", create=False, read_only=True) as store:
        yield store


def steps(*steps: Callable[[], object]) -> Callable[[float], None]:
    """What happens while somebody sleeps: one step each time."""
    left = list(steps)
    return lambda _: void(left.pop(0)())


def void(_: object) -> None:
    return None


def test_a_job_is_shown_until_it_ends(driver: Store, reader: Store) -> None:
    job, shown = begin(driver), Shown()
    sleep = steps(
        lambda: driver.update_job(job, state(5).to_json()),
        lambda: driver.update_job(job, state(9).to_json()),
        lambda: driver.finish_job(job, "finished", state(12).to_json()),
    )
    ended = Watch(reader, shown, sleep=sleep).follow()
    assert shown.trials == [0, 5, 9]
    assert shown.said == [f"job {job[:8]} (net.onnx)", "searching"]
    assert ended.id == job and ended.state == "finished"


def test_without_a_running_job_it_waits_for_one(driver: Store, reader: Store) -> None:
    driver.finish_job(begin(driver, "old.onnx"), "finished")
    shown, begun = Shown(), list[str]()
    sleep = steps(
        lambda: None,
        lambda: begun.append(begin(driver)),
        lambda: driver.finish_job(begun[0], "interrupted"),
    )
    assert Watch(reader, shown, sleep=sleep).follow().id == begun[0]
    assert "waiting for one" in shown.said[0] and len(shown.said) == 2


def test_an_ended_job_is_told_at_once(driver: Store, reader: Store) -> None:
    job = begin(driver)
    driver.finish_job(job, "interrupted", state(5).to_json())
    ended = Watch(reader, Shown(), job[:8], sleep=steps()).follow()
    table, line = end_parts(ended)
    assert f"job {job[:8]} (net.onnx): interrupted after" in line and "5 trials" in line
    assert f"tune resume {job[:8]}" in line and "2 ms untuned, 1 ms" in line
    printed = Console(width=200, record=True)
    printed.print(table)
    assert "conv" in printed.export_text()


def test_an_unknown_job_is_refused(driver: Store, reader: Store) -> None:
    begin(driver)
    with pytest.raises(DatabaseError, match="no job begins with 'xyz'"):
        Watch(reader, Shown(), "xyz", sleep=steps()).follow()


def test_a_database_that_cannot_be_read_for_a_while_is_waited_for(
    driver: Store, reader: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    job, shown = begin(driver), Shown()
    read, failures = queries.job, [DatabaseUnavailableError("tuning.db: locked")] * 2

    def flaky(store: Store, id: str) -> object:
        if failures:
            raise failures.pop()
        return read(store, id)

    monkeypatch.setattr(queries, "job", flaky)
    sleep = steps(lambda: driver.finish_job(job, "finished"), lambda: None, lambda: None)
    assert Watch(reader, shown, sleep=sleep).follow().state == "finished"
    assert shown.said[-1] == "tuning.db: locked: waiting for it"
