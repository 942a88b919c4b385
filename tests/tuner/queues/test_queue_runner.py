"""A night of turns, with a script in place of jobs: they end well, fail, hang, are stopped."""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from types import SimpleNamespace

import pytest

from tunefarm.configs.clock import since_boot
from tunefarm.db import processes, schema
from tunefarm.db.queue import QueueEntry, add_entry, change_entry, entries, entry, take_entry
from tunefarm.db.store import Store
from tunefarm.tuner.queues import queue_runner
from tunefarm.tuner.queues.entry_options import CurrentTurn, EntryOptions, options_of
from tunefarm.tuner.queues.queue_runner import QueueRunner
from tunefarm.tuner.queues.summary import (
    ALL_FINISHED,
    SOME_FAILED,
    SOME_WAIT,
    cells,
    status_of,
    summary_of,
)
from tunefarm.tuner.reports.progress import Progress

JOB = """
import json, os, pathlib, signal, sys, time
model, arguments = sys.argv[1], sys.argv[2:]
value = dict(zip(arguments[::2], arguments[1::2]))
turns = pathlib.Path(model + ".turns")
number = len(turns.read_text()) + 1 if turns.exists() else 1
turns.write_text("x" * number)
what = pathlib.Path(model).read_text().split()
kind = what[min(number, len(what)) - 1]
latency = {"untuned": 2.0, "tuned": 2.0 / (1 + number), "former": None, "kept": None}
latency |= {"ratio": 1.0 / (1 + number), "low": 0.9 / (1 + number), "high": 1.1 / (1 + number)}
result = {"end": "time used up", "measured": 10, "latency": latency}
if kind == "error":
    sys.exit("error: the model is unreadable")
if kind == "crash":
    os.kill(os.getpid(), signal.SIGKILL)
if kind == "hang":
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
if kind == "wait":
    def stop(*_):
        raise KeyboardInterrupt
    signal.signal(signal.SIGTERM, stop)
if kind in ("hang", "wait"):
    print("waiting", file=sys.stderr, flush=True)
    try:
        time.sleep(60)
    except KeyboardInterrupt:
        result |= {"end": "interrupted", "latency": None}
if kind == "stopped":
    result |= {"end": "interrupted", "latency": None}
if kind == "idle":
    result["measured"] = 0
if kind == "done":
    result["end"] = "nothing more to win"
result["tasks"] = [{"ended": result["end"]}]
pathlib.Path(value["--json"]).write_text(json.dumps(result))
sys.exit(130 if result["end"] == "interrupted" else 0)
"""


class Clock:
    """Goes on when it is told to."""

    def __init__(self) -> None:
        self.now = 1_800_000_000.0

    def __call__(self) -> float:
        return self.now


class Bench(Progress):
    """A night on a fresh database, in which a turn takes as long as it was given."""

    def __init__(self, store: Store, folder: Path) -> None:
        self.store, self.folder = store, folder
        self.clock = Clock()
        self.said: list[str] = []
        self.turns: list[tuple[str, float]] = []
        self.on_line: Callable[[str], None] = lambda text: None

    def message(self, text: str) -> None:
        self.said.append(text)
        self.on_line(text)

    def command(self, arguments: Sequence[str]) -> list[str]:
        minutes = float(arguments[arguments.index("--minutes") + 1])
        self.turns.append((Path(arguments[1]).name, 60.0 * minutes))
        self.clock.now += 60.0 * minutes
        return [sys.executable, "-I", "-S", "-c", JOB, arguments[1], *arguments]

    def add(self, name: str, what: str, **options: float) -> QueueEntry:
        """An entry whose turns come to `what`, one word each, the last one again and again."""
        model = self.folder / name
        model.write_text(what)
        own = EntryOptions(kernel_count=1, **options).to_json()  # type: ignore[arg-type]
        return add_entry(self.store, name, ("--model", str(model)), str(self.folder), own)

    def night(self, seconds: float | None = None) -> QueueRunner:
        results = self.folder / "results"
        results.mkdir(exist_ok=True)
        deadline = None if seconds is None else self.clock() + seconds
        return QueueRunner(self.store, None, deadline, self, results, self.command, self.clock)

    def run(self, seconds: float | None = None) -> QueueRunner:
        night = self.night(seconds)
        night.run()
        return night

    @property
    def states(self) -> list[str]:
        return [item.state for item in entries(self.store)]

    @property
    def status(self) -> int:
        return status_of([summary_of(self.store, item) for item in entries(self.store)])


@pytest.fixture
def bench(tmp_path: Path) -> Iterator[Bench]:
    with Store.open(tmp_path / "tuning.db") as store:
        yield Bench(store, tmp_path)


def test_entries_have_turns_until_they_are_done(bench: Bench) -> None:
    first = bench.add("a", "more more done")
    bench.add("b", "more done")
    bench.run()
    assert [name for name, _ in bench.turns[:2]] == ["a", "b"]
    assert sorted(name for name, _ in bench.turns) == list("aaabb")
    assert (bench.states, bench.status) == (["finished"] * 2, ALL_FINISHED)
    summary = summary_of(bench.store, entry(bench.store, first.id))
    assert (summary.turns, summary.why) == (3, "nothing more to win")
    assert summary.untuned == 2.0 and summary.speed_up == pytest.approx(4.0)
    assert summary.low is not None and summary.high is not None
    assert summary.low < 4.0 < summary.high and summary.seconds > 0


def test_the_night_ends_in_time_and_what_had_a_turn_is_finished(bench: Bench) -> None:
    for name in "abc":
        bench.add(name, "more")
    begin = bench.clock.now
    bench.run(600.0)
    assert 0.97 * 600 <= bench.clock.now - begin <= 600
    assert len(bench.turns) >= 6 and {name for name, _ in bench.turns} == set("abc")
    assert (bench.states, bench.status) == (["finished"] * 3, ALL_FINISHED)


def test_what_does_not_fit_into_the_night_waits(bench: Bench) -> None:
    bench.add("a", "more")
    bench.add("b", "more")
    bench.run(20.0)
    assert [name for name, _ in bench.turns] == ["a"]
    assert (bench.states, bench.status) == (["finished", "waiting"], SOME_WAIT)


def test_an_entry_that_fails_twice_is_failed_and_the_night_goes_on(bench: Bench) -> None:
    broken = bench.add("broken", "error")
    bench.add("good", "more done")
    bench.run()
    assert (bench.states, bench.status) == (["failed", "finished"], SOME_FAILED)
    assert entry(bench.store, broken.id).error == "the model is unreadable"
    assert [name for name, _ in bench.turns].count("broken") == 2
    bench.run()
    assert len(bench.turns) == 4  # what is failed is not tried again


def test_a_crash_is_tried_again_and_two_that_are_apart_are_no_failure(bench: Bench) -> None:
    bench.add("a", "crash more crash done")
    twice = bench.add("b", "more crash crash done")
    bench.run()
    assert bench.states == ["finished", "failed"]
    assert entry(bench.store, twice.id).error == "its process was ended by SIGKILL"


def test_failures_of_several_kinds_are_no_reason_to_give_up_soon(bench: Bench) -> None:
    bench.add("a", "crash error crash more done")
    bench.add("b", "crash error crash error done")
    bench.run()
    assert bench.states == ["finished", "failed"]


def test_an_entry_whose_folder_is_gone_is_failed(bench: Bench) -> None:
    own = EntryOptions().to_json()
    lost = add_entry(bench.store, "a", ("--model", "/a"), str(bench.folder / "gone"), own)
    bench.run()
    assert "gone: No such file" in entry(bench.store, lost.id).error


def test_turns_that_measure_nothing_end(bench: Bench) -> None:
    bench.add("a", "idle")
    bench.run()
    assert (len(bench.turns), bench.states) == (2, ["finished"])


def test_minutes_of_its_own_end_an_entry(bench: Bench) -> None:
    item = bench.add("a", "more", minutes=0.001)
    bench.run()
    assert summary_of(bench.store, entry(bench.store, item.id)).why == "its minutes used up"


def test_an_interrupted_turn_waits_for_the_next_run(bench: Bench) -> None:
    bench.add("a", "wait done")
    bench.add("b", "done")
    night = bench.night()
    bench.on_line = lambda text: night.stop() if text.endswith("waiting") else None
    night.run()
    assert night.interrupted
    assert [item.is_held for item in entries(bench.store)] == [False, False]
    assert (bench.states, bench.status) == (["waiting"] * 2, SOME_WAIT)
    bench.run()
    assert bench.states == ["finished"] * 2


def test_an_entry_that_somebody_stopped_is_set_aside(bench: Bench) -> None:
    bench.add("a", "stopped done")
    bench.add("b", "done")
    bench.run(600.0)
    assert (bench.states, bench.status) == (["waiting", "finished"], SOME_WAIT)
    bench.run(600.0)
    assert bench.states == ["finished"] * 2


def test_a_turn_that_ignores_the_deadline_is_killed(bench: Bench) -> None:
    item = bench.add("a", "hang")

    def late(text: str) -> None:
        if text.endswith("waiting"):
            bench.clock.now += 1000.0

    bench.on_line = late
    bench.run(600.0)
    assert [turn.end for turn in options_of(entry(bench.store, item.id)).turns] == ["interrupted"]
    assert bench.states == ["waiting"]


def test_what_a_killed_runner_held_is_taken_with_what_it_cost(bench: Bench) -> None:
    """A holder of an earlier boot, as a reboot leaves it."""
    item = bench.add("a", "done")
    options = EntryOptions(turn=CurrentTurn(1.0, 61.0), kernel_count=1)
    assert take_entry(bench.store, item.id)
    change_entry(bench.store, item.id, job="j1", seconds=40.0, options=options.to_json())
    with bench.store.writing() as session:
        from tunefarm.db import schema

        row = session.query(schema.QueueEntry).one()
        row.holder = {**row.holder, "host": "elsewhere 0", "seen": 0.0}
    assert summary_of(bench.store, entry(bench.store, item.id)).state == "waiting"
    bench.run()
    found = entry(bench.store, item.id)
    assert [turn.end for turn in options_of(found).turns] == ["lost", "good"]
    assert (found.state, options_of(found).jobs) == ("finished", ("j1",))
    assert found.seconds >= 40.0


def test_two_runners_share_the_entries(bench: Bench, tmp_path: Path) -> None:
    """Another runner comes while one is at work: it takes what is free, and waits for the rest."""
    bench.add("a", "more done")
    bench.add("b", "more done")
    with Store.open(tmp_path / "tuning.db") as store:
        other = Bench(store, tmp_path)
        begun = False

        def join(text: str) -> None:
            nonlocal begun
            if not begun and ": turn 1" in text:
                begun = True
                other.run(30.0)

        bench.on_line = join
        bench.run()
    assert [name for name, _ in other.turns] == ["b"]
    assert bench.states == ["finished"] * 2
    assert sorted(name for name, _ in (*bench.turns, *other.turns)) == list("aabb")


def test_a_database_that_is_full_for_a_while_ends_nothing(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Every other write fails once, as on a disk that is full for a moment."""
    from tunefarm.configs.errors import DatabaseUnavailableError

    bench.add("a", "more done")
    count = 0
    writing = Store.writing

    def sometimes(store: Store) -> object:
        nonlocal count
        count += 1
        if count % 2:
            raise DatabaseUnavailableError("disk full")
        return writing(store)

    monkeypatch.setattr(Store, "writing", sometimes)
    monkeypatch.setattr("tunefarm.tuner.search.job_coordination.DATABASE_RETRY_SECONDS", 0.0)
    bench.run()
    assert bench.states == ["finished"]
    assert any("disk full" in text for text in bench.said)


def test_who_is_waited_for_is_said_until_it_is_known_to_be_gone(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The runner of a pod has taken an entry, and the pod is gone without a word."""
    item = bench.add("a", "done")
    assert take_entry(bench.store, item.id)
    with bench.store.writing() as session:
        row = session.query(schema.QueueEntry).one()
        row.holder = {**row.holder, "host": "pod-7 boot 1", "pid": 12, "seen": time.time()}
    began = since_boot()
    start = bench.clock.now

    def wait(seconds: float) -> None:
        bench.clock.now += seconds

    steady = SimpleNamespace(sleep=wait, monotonic=time.monotonic)
    monkeypatch.setattr(queue_runner, "time", steady)
    monkeypatch.setattr(processes, "since_boot", lambda: began + bench.clock.now - start)
    bench.run()
    lines = [text for text in bench.said if text.startswith("waiting for ")]
    assert len(lines) == 3
    assert "waiting for a, 1 thread, which process 12 on pod-7 works on" in lines[0]
    assert "nothing is heard of that process for 60 s" in lines[0] and "(for 0:52 now)" in lines[2]
    assert bench.states == ["finished"]


def test_turns_go_where_a_queue_was_renamed_to(bench: Bench) -> None:
    bench.add("a", "more done")
    path = Path(bench.store.name)
    databases: list[str] = []
    command = bench.command

    def renaming(arguments: Sequence[str]) -> list[str]:
        databases.append(arguments[arguments.index("--db") + 1])
        if path.exists():
            path.rename(path.with_name("old.db"))
        return command(arguments)

    runner = bench.night()
    runner.database, runner.command = str(path), renaming
    runner.run()
    assert databases == [str(path), str(path.with_name("old.db"))]
    assert bench.states == ["finished"] and not path.exists()


def test_options_are_read_as_they_were_written(bench: Bench) -> None:
    item = bench.add("a", "more done", weight=2.0)
    bench.run()
    options = options_of(entry(bench.store, item.id))
    assert options.weight == 2.0 and len(options.turns) == 2
    assert json.loads(json.dumps(options.to_json())) == entry(bench.store, item.id).options


def test_the_expected_end_is_told_of_what_runs(bench: Bench) -> None:
    """While a turn is under way: its own end, and that of the night."""
    bench.add("a", "more")
    bench.add("b", "more")
    until = bench.clock() + 600.0
    told: list[list[str]] = []

    def look(text: str) -> None:
        if not told and ": turn 1" in text:
            found = [summary_of(bench.store, item) for item in entries(bench.store)]
            assert [item.state for item in found] == ["running", "waiting"]
            assert found[0].night_ends == until and found[0].ends is not None
            told.extend(cells(item, until) for item in found)

    bench.on_line = look
    bench.run(600.0)
    ends = [row[8] for row in told]
    assert len(ends) == 2 and all(":" in end for end in ends)
