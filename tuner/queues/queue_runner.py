"""QueueRunner: runs the jobs of a queue by turns of limited time, until all are done or a deadline.

    next entry        -> division.next_turn, from what the entries' turns have shown
    take_entry        -> no other runner works on it
    tune --model …    -> a process of its own, interrupted and then killed if it is
                         still there after the end
    change_entry      -> its result; the entry waits for its next turn, is finished or failed

Each turn ends with its finalists and its whole model confirmed, and leaves a closed job: so all is
finished at the deadline. An entry whose runner was killed has no holder, and the next runner takes
it.
"""

from __future__ import annotations

import json
import math
import os
import signal
import subprocess
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from statistics import median
from typing import Any

from tunefarm.configs.clock import steady_time
from tunefarm.configs.errors import DatabaseError, DatabaseUnavailableError
from tunefarm.db.processes import LEASE_SECONDS
from tunefarm.db.queue import (
    QueueEntry,
    change_entry,
    entries,
    entry,
    hold_entry,
    jobs_of_process,
    take_entry,
)
from tunefarm.db.records import EntryState
from tunefarm.db.store import Store
from tunefarm.db.work import close_lost_jobs
from tunefarm.measure.sandbox.by_name import module_command
from tunefarm.tuner.interrupt import interruptible, signals_held
from tunefarm.tuner.queues.division import OpenEntry, least_seconds, next_turn
from tunefarm.tuner.queues.entry_options import (
    FAILED,
    GOOD,
    CurrentTurn,
    EntryOptions,
    TurnRecord,
    name_of,
    options_of,
    turn_of_result,
    why_finished,
    with_lost_turn,
)
from tunefarm.tuner.reports.progress import Progress
from tunefarm.tuner.reports.report import format_duration
from tunefarm.tuner.search.job_coordination import RetryPolicy

# --- A turn of an entry: `tune --model …` in a process of its own, which may crash alone ---------


LAST_LINES = 20
_KILL_SECONDS = 10.0

Command = Callable[[Sequence[str]], list[str]]
"""The command line of a process that does what `tune` does with these arguments."""


def tune_command(arguments: Sequence[str]) -> list[str]:
    """`tune` by this interpreter, ended when this process is."""
    return module_command("tunefarm.tuner.commands.turn", str(os.getpid()), *arguments)


class TurnProcess:
    """The process of a turn. What it says on stderr goes to `tell`, line by line."""

    def __init__(
        self, command: Sequence[str], folder: str, result: Path, notify: Callable[[str], None]
    ) -> None:
        """Start it. Raises OSError if that fails; `result` is the file that it writes."""
        self._result = result
        self._notify = notify
        self._lines: deque[str] = deque(maxlen=LAST_LINES)
        self._began = time.monotonic()
        self._process = subprocess.Popen(
            list(command),
            cwd=folder,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            text=True,
            errors="backslashreplace",
            start_new_session=True,  # Ctrl-C on a terminal is for the runner alone
        )
        self._reader = threading.Thread(target=self._read, name="turn", daemon=True)
        with signals_held():  # the thread gets none
            self._reader.start()

    @property
    def pid(self) -> int:
        """Its process id."""
        return self._process.pid

    @property
    def seconds(self) -> float:
        """Since it began."""
        return time.monotonic() - self._began

    def poll(self) -> int | None:
        """Its exit status; None while it runs."""
        return self._process.poll()

    def wait(self, seconds: float) -> None:
        """Wait until it ends, for at most so long."""
        with suppress(subprocess.TimeoutExpired):
            self._process.wait(seconds)

    def interrupt(self) -> None:
        """Ask it to end cleanly. Not by SIGINT, which shells have background jobs ignore."""
        with suppress(ProcessLookupError):
            self._process.send_signal(signal.SIGTERM)

    def kill(self) -> None:
        """End it and its group at once."""
        with suppress(ProcessLookupError):
            os.killpg(self._process.pid, signal.SIGKILL)

    def end(self) -> None:
        """End it, cleanly if it does not take long, and let go of everything."""
        if self.poll() is None:
            self.interrupt()
            self.wait(_KILL_SECONDS)
        if self.poll() is None:
            self.kill()
        self._process.wait()
        self._reader.join(1.0)  # a process that it has left behind may hold the pipe
        if self._process.stderr is not None and not self._reader.is_alive():
            self._process.stderr.close()

    def result(self) -> dict[str, Any] | None:
        """What it has written; None if it has not."""
        try:
            found = json.loads(self._result.read_text(encoding="utf-8"))
        except (OSError, ValueError):
            return None
        return found if isinstance(found, dict) else None

    def reason(self) -> str:
        """Why it failed, as one line."""
        code = self.poll()
        said = [line.removeprefix("error: ") for line in self._lines if line.startswith("error: ")]
        if code is not None and code < 0:
            return f"its process was ended by {_signal_name(-code)}"
        if said:
            return said[-1]
        return f"its process ended with status {code} and gave no reason"

    def _read(self) -> None:
        stream = self._process.stderr
        assert stream is not None
        with suppress(OSError, ValueError):
            for line in stream:
                self._lines.append(line.rstrip("\n"))
                self._notify(line.rstrip("\n"))


def _signal_name(number: int) -> str:
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"signal {number}"


SAME_FAILURES = 2  # turns in a row that fail for one reason: the entry is failed
MOST_FAILURES = 4  # for whatever reasons: a node was lost, the process killed
HEARTBEAT_SECONDS = 10.0
LOOK_SECONDS = 1.0  # between two looks at which job a turn has begun
POLL_SECONDS = 0.2
WAIT_SECONDS = 1.0  # between two looks at what other runners do
REMIND_SECONDS = 25.0  # between two lines about who is waited for
TAIL_SECONDS = 2.0  # of the session, for the summary and what a turn's process takes to end
LATE_SHARE = 0.01  # of the session: a turn that is so late is interrupted
TOO_LATE_SHARE = 0.022  # and killed then
OVERTIME_SECONDS = 300.0  # of a turn without a deadline, until it is interrupted
END_SECONDS = 30.0  # for an interrupted turn to end, then
TIME_OVER = "the time of the session used up"
LEAST_SHARE = 0.5  # of the least seconds of a turn; an entry whose limit leaves it less is finished
LATELY = 5  # turns by which it is judged how late turns end
NO_TRIALS = 2  # good turns in a row without any: nothing is left


@dataclass(slots=True)
class QueueRunner:
    """One run of a queue, until `deadline` (a moment of `clock`; None: until all is done).

    `database` is what the processes of the turns get as their `--db` (None: what they find by
    themselves). After `run`, `interrupted` says whether it was ended early.
    """

    store: Store
    database: str | None
    deadline: float | None
    progress: Progress
    results: Path  # a folder for what the turns write
    command: Command = tune_command
    clock: Callable[[], float] = steady_time
    began: float = 0.0
    interrupted: bool = False
    _aside: set[str] = field(default_factory=set)  # stopped by somebody: not again in this session
    _process: TurnProcess | None = None
    _waiting_since: float | None = None  # for other runners
    _reminded: float = 0.0
    _number: int = 0
    _late: deque[float] = field(default_factory=lambda: deque(maxlen=LATELY))

    def __post_init__(self) -> None:
        self.began = self.clock()

    def stop(self) -> None:
        """End the turn that is under way cleanly, and begin no other; safe in a signal handler."""
        self.interrupted = True
        if self._process is not None:
            self._process.interrupt()

    @property
    def left(self) -> float | None:
        """Seconds for turns until the session ends; None if nothing says when.

        What turns took longer than they were given, on this machine and lately, is kept for that.
        """
        if self.deadline is None:
            return None
        late = median(self._late) if self._late else 0.0
        return max(0.0, self.deadline - TAIL_SECONDS - late - self.clock())

    def run(self) -> None:
        """Work until nothing is left to do, the session is over, or somebody interrupts.

        Raises DatabaseError when the queue cannot be read or written, and does not come back.
        """
        patience = RetryPolicy(self.progress)
        with interruptible() as interrupt:
            interrupt.add_listener(patience.stop)
            interrupt.add_listener(self.stop)
            self.store.patience = lambda error: not self._is_too_late() and patience(error)
            close_lost_jobs(self.store)
            while not self.interrupted and self._work():
                pass
            if not self.interrupted:
                self._close()
        self.store.patience = None

    def _work(self) -> bool:
        """One turn, or a wait for other runners; False when nothing is left to do here."""
        waiting = [item for item in entries(self.store) if item.state in ("waiting", "running")]
        ours = [item for item in waiting if not item.is_held and item.id not in self._aside]
        left = self.left
        whole = 0.0 if self.deadline is None else self.deadline - self.began
        chosen = next_turn([self._open_entry(item) for item in ours], left, whole)
        if chosen is not None:
            id, seconds = chosen
            self._waiting_since = None
            if take_entry(self.store, id):
                self._turn(entry(self.store, id), seconds)
            return True
        held = [item for item in waiting if item.is_held]
        if left == 0.0 or not held:
            return False
        self._say_who_is_waited_for(held)
        time.sleep(WAIT_SECONDS if left is None else min(WAIT_SECONDS, left))
        return True

    def _say_who_is_waited_for(self, held: Sequence[QueueEntry]) -> None:
        """At once, and now and then while nothing else is to be done."""
        now = self.clock()
        if self._waiting_since is None or now - self._reminded > REMIND_SECONDS:
            self._waiting_since = now if self._waiting_since is None else self._waiting_since
            for item in held:
                self.progress.message(
                    f"waiting for {name_of(item, options_of(item))}, which {item.holder} works on"
                    f" (for {format_duration(now - self._waiting_since)} now); it is taken over if"
                    f" nothing is heard of that process for {LEASE_SECONDS:.0f} s"
                )
            self._reminded = now

    def _open_entry(self, item: QueueEntry) -> OpenEntry:
        options = options_of(item)
        spent = math.fsum(turn.seconds for turn in options.turns if turn.end == GOOD)
        left = None if options.minutes is None else 60.0 * options.minutes - item.seconds
        least = least_seconds(options.kernel_count)
        return OpenEntry(item.id, least, spent, options.weight or 1.0, left)

    def _turn(self, item: QueueEntry, seconds: float) -> None:
        """One turn of an entry that is ours."""
        options = with_lost_turn(item, options_of(item))
        name = name_of(item, options)
        now = self.clock()
        options = replace(options, turn=CurrentTurn(now, now + seconds, self.deadline))
        change_entry(self.store, item.id, options=options.to_json())
        self.progress.message(f"{name}: turn {len(options.turns) + 1}, {format_duration(seconds)}")
        self._number += 1
        result = self.results / f"{self._number}.json"
        arguments = [*item.arguments, "--minutes", repr(seconds / 60.0), "--json", str(result)]
        database = os.path.abspath(self.store.moved) if self.store.moved else self.database
        if database is not None:
            arguments += ["--db", database]
        notify = self.progress.message
        try:
            process = TurnProcess(
                self.command(arguments),
                item.folder,
                result,
                lambda line: notify(f"  {name}: {line}"),
            )
        except OSError as error:
            where = f"{error.filename or item.folder}: {error.strerror or error}"
            self._failed(item, options, TurnRecord(now, 0.0, seconds, FAILED), where)
            return
        self._process = process
        try:
            if self.interrupted:  # a signal came while it started
                process.interrupt()
            jobs, ended = self._watch(item, process, seconds)
        finally:
            process.end()
            self._process = None
        options = replace(options, jobs=(*options.jobs, *jobs))
        self._settle(item, options, process, seconds, ended)

    def _watch(
        self, item: QueueEntry, process: TurnProcess, seconds: float
    ) -> tuple[list[str], bool]:
        """Wait for the turn's end; the jobs that it made, and whether we had to end it."""
        jobs: list[str] = []
        looked = beaten = self.clock()
        asked = 0.0
        while process.poll() is None:
            process.wait(POLL_SECONDS)
            now = self.clock()
            with self._impatient():
                if now - looked >= LOOK_SECONDS:
                    looked = now
                    now_at = jobs_of_process(self.store, process.pid)
                    if found := [job for job in now_at if job not in jobs]:
                        jobs += found
                        change_entry(self.store, item.id, job=found[-1])
                if now - beaten >= HEARTBEAT_SECONDS:
                    beaten = now
                    hold_entry(self.store, item.id, item.seconds + process.seconds)
            overtime = self._overtime(process, seconds)
            if overtime and not asked:
                asked = now
                process.interrupt()
            if asked and (self._is_too_late() or now - asked > END_SECONDS):
                process.kill()
        return jobs, bool(asked)

    @contextmanager
    def _impatient(self) -> Iterator[None]:
        """What cannot be read or written now is so the next time: a turn has its own patience."""
        patience, self.store.patience = self.store.patience, None
        try:
            yield
        except DatabaseUnavailableError:
            pass
        except DatabaseError as error:  # this machine slept, and another runner took the entry
            self.progress.message(f"note: {error.message}")
        finally:
            self.store.patience = patience

    def _overtime(self, process: TurnProcess, seconds: float) -> bool:
        if self.deadline is not None:
            return self.clock() > self.deadline + LATE_SHARE * (self.deadline - self.began)
        return process.seconds > 1.5 * seconds + OVERTIME_SECONDS

    def _is_too_late(self) -> bool:
        if self.deadline is None:
            return False
        return self.clock() > self.deadline + TOO_LATE_SHARE * (self.deadline - self.began)

    def _settle(
        self,
        item: QueueEntry,
        options: EntryOptions,
        process: TurnProcess,
        asked: float,
        ended: bool,
    ) -> None:
        """Record what came of a turn, by how its process ended and what it has written."""
        seconds = process.seconds
        turn = TurnRecord(self.clock() - seconds, seconds, asked, "interrupted")
        result = process.result()
        if result is not None and process.poll() == 0:
            turn = turn_of_result(result, turn.began, seconds, asked)
            self._late.append(max(0.0, seconds - asked))
            self._good(item, replace(options, failures=0), turn, why_finished(result, turn))
        elif self.interrupted or (ended and self.deadline is not None):
            self._keep(item, options, turn, "waiting")
        elif result is not None and result.get("end") == "interrupted":
            self._aside.add(item.id)
            self.progress.message(
                f"{name_of(item, options)} was stopped; it waits for another session"
            )
            self._keep(item, options, replace(turn, end="stopped"), "waiting")
        else:
            reason = "it did not end in time" if ended else process.reason()
            self._failed(item, options, replace(turn, end=FAILED), reason)

    def _good(self, item: QueueEntry, options: EntryOptions, turn: TurnRecord, ended: str) -> None:
        turns = (*options.turns, turn)
        spent = item.seconds + turn.seconds
        last = [known for known in turns if known.end == GOOD][-NO_TRIALS:]
        limit = math.inf if options.minutes is None else 60.0 * options.minutes
        if not ended and limit - spent < LEAST_SHARE * least_seconds(options.kernel_count):
            ended = "its minutes used up"
        elif not ended and len(last) == NO_TRIALS and not any(known.measured for known in last):
            ended = "nothing more was measured"
        if ended:
            self.progress.message(f"{name_of(item, options)} is finished: {ended}")
        state: EntryState = "finished" if ended else "waiting"
        self._keep(item, replace(options, ended=ended), turn, state)

    def _failed(
        self, item: QueueEntry, options: EntryOptions, turn: TurnRecord, reason: str
    ) -> None:
        failures = options.failures + 1
        is_same = failures >= SAME_FAILURES and reason == item.error
        state: EntryState = "failed" if is_same or failures >= MOST_FAILURES else "waiting"
        again = "" if state == "failed" else "; it is tried once more"
        self.progress.message(f"{name_of(item, options)} failed: {reason}{again}")
        self._keep(item, replace(options, failures=failures), turn, state, error=reason)

    def _keep(
        self,
        item: QueueEntry,
        options: EntryOptions,
        turn: TurnRecord,
        state: EntryState,
        error: str = "",
    ) -> None:
        options = replace(options, turns=(*options.turns, turn), turn=None)
        try:
            change_entry(
                self.store,
                item.id,
                state=state,
                seconds=item.seconds + turn.seconds,
                options=options.to_json(),
                error=error,
            )
        except DatabaseUnavailableError:
            raise
        except DatabaseError as problem:  # another runner has taken it, or it was removed
            self.progress.message(f"note: {problem.message}")

    def _close(self) -> None:
        """At the session's end, when no turn fits any more: what had a good one is finished, unless
        another runner goes on."""
        if self.deadline is None:
            return
        waiting = [item for item in entries(self.store) if item.state in ("waiting", "running")]
        if any(item.is_held for item in waiting):
            return
        for item in waiting:
            options = with_lost_turn(item, options_of(item))
            if options.good_turns and item.id not in self._aside:
                text = replace(options, ended=TIME_OVER)
                change_entry(self.store, item.id, state="finished", options=text.to_json())
