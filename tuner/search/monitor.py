"""Monitor: tells those who are not the driver where a job stands: by the job's record, and if they
are asked for by a file for Prometheus and a trace.
"""

from __future__ import annotations

import math
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace

from tunefarm.configs.files import write_text
from tunefarm.db.store import Store
from tunefarm.measure.farm.runner import Runner, Step, TellsSteps
from tunefarm.tuner.reports.gains import UNKNOWN_GAIN, ModelGain
from tunefarm.tuner.reports.job_state import JobState, Moment, with_moment
from tunefarm.tuner.reports.report import TaskStatus
from tunefarm.tuner.reports.terminal import printable
from tunefarm.tuner.reports.trace import Trace

RECORD_SECONDS = 5.0  # between two states of a job in the database

PREPARING = "building the untuned model"
PLANNING = "choosing what the graph decides"
SEARCHING = "searching"
FINALISTS = "comparing the fastest"
SIZES = "comparing at several sizes"
CONFIRMING = "measuring the whole model"
_RUNNING = "running"
FINAL = "-final-"
"""In the ids of requests in which finalists meet."""
_LEAST_SECONDS = 1e-4  # of what the driver does, to be traced: a look at nothing takes less


class Monitor:
    """Where a job stands, written down now and then; one of all jobs of a command, in turn.

    The methods are for the driver's thread. What becomes of the files is no job's concern: one that
    cannot be written is reported once.
    """

    def __init__(
        self,
        *,
        metrics: str | None = None,
        trace: str | None = None,
        notify: Callable[[str], None] = lambda _: None,
        clock: Callable[[], float] = time.monotonic,
        now: Callable[[], float] = time.time,
    ) -> None:
        """`metrics` and `trace` are files to write; `tell` reports what goes wrong with them."""
        self.state = JobState()
        self._metrics, self._trace_file = metrics, trace
        self._trace = None if trace is None else Trace(clock())
        self._notify = notify
        self._problems: set[str] = set()
        self._clock, self._now = clock, now
        self._store: Store | None = None
        self._job = self._model = ""
        self._began = self._entered = clock()
        self._measured: Counter[str] = Counter()
        self._phase = ""
        self._workers = 0
        self._gain = UNKNOWN_GAIN
        self._written = -RECORD_SECONDS
        self._lock = threading.Lock()  # steps end in threads of the runner
        self._steps: list[Step] = []

    def begin(self, store: Store, job: str, model: str) -> None:
        """From now on it is about this job."""
        self._store, self._job, self._model = store, job, model
        self._began = self._entered = self._clock()
        self._measured.clear()
        self._phase, self._workers, self._gain = "", 0, UNKNOWN_GAIN
        self.state = JobState()

    def confirm(self, gain: ModelGain) -> None:
        """The whole model was measured."""
        self._gain = gain

    def watch(self, runner: Runner) -> None:
        """Trace what the runner does where, if it tells and there is a trace."""
        if self._trace is not None and isinstance(runner, TellsSteps):
            runner.watch = self._keep

    def count(self, statuses: Iterable[str]) -> None:
        """Count what measurements have come to."""
        self._measured.update(map(str, statuses))

    @contextmanager
    def doing(self, what: str) -> Iterator[None]:
        """What the driver itself does in the block takes its time."""
        began = self._clock()
        try:
            yield
        finally:
            ended = self._clock()
            if self._trace is not None and ended - began >= _LEAST_SECONDS:
                self._trace.slice(self._process, "driver", what, began, ended)

    def enter(self, phase: str, tasks: Sequence[TaskStatus], left: float | None) -> None:
        """The job does something else from now on; `left` are its seconds (None: no limit)."""
        self._leave()
        self._phase = phase
        self._take(tasks, left, busy=0)
        self._record()

    def update(
        self,
        tasks: Sequence[TaskStatus],
        left: float | None,
        *,
        workers: int,
        busy: int,
    ) -> None:
        """Where the job stands, with so many seconds `left`; `busy` of the requests that `workers`
        can take are under way."""
        self._workers = workers
        self._follow(tasks)
        if self._clock() - self._written < RECORD_SECONDS:
            return
        self._take(tasks, left, busy)
        self._record()

    def end(self, tasks: Sequence[TaskStatus], state: str) -> JobState:
        """The job has ended in this state; where it stands, for its record."""
        self._leave()
        self._workers = 0
        self._take(tasks, None, busy=0)
        self._store = None
        self._write_metrics(state)
        self._write_trace()
        return self.state

    @property
    def _process(self) -> str:
        return f"{self._model} ({self._job[:8]})"

    def _leave(self) -> None:
        """The current phase ends here."""
        now = self._clock()
        if self._trace is not None and self._phase:
            self._trace.slice(self._process, "phases", self._phase, self._entered, now)
        self._entered, self._phase = now, ""

    def _take(self, tasks: Sequence[TaskStatus], left: float | None, busy: int) -> None:
        self.state = JobState(
            tasks=tuple(tasks),
            phase=self._phase,
            elapsed=self._clock() - self._began,
            left=left,
            workers=self._workers,
            busy=busy,
            measured=dict(self._measured),
            at=self._now(),
            history=self._follow(tasks),
            model=self._gain,
        )

    def _follow(self, tasks: Sequence[TaskStatus]) -> tuple[Moment, ...]:
        """The history of the job, with where it stands now if that is another place."""
        state, history = JobState(tasks=tuple(tasks)), self.state.history
        moment = Moment(self._clock() - self._began, state.trials, state.expected.value)
        if not history or history[-1][1:] != moment[1:]:
            history = with_moment(history, moment)
            self.state = replace(self.state, history=history)
        return history

    def _record(self) -> None:
        self._written = self._clock()
        self._write_metrics(_RUNNING)
        if self._store is not None:
            self._store.update_job(self._job, self.state.to_json())

    def _write_metrics(self, state: str) -> None:
        if self._metrics is None:
            return
        text = metrics_text(self.state, self._job, self._model, state)
        with self._write_or_report(self._metrics):
            write_text(self._metrics, text)

    def _keep(self, step: Step) -> None:
        with self._lock:
            self._steps.append(step)

    def _write_trace(self) -> None:
        """Write the trace of everything so far."""
        if self._trace is None or self._trace_file is None:
            return
        with self._lock:
            steps, self._steps = self._steps, []
        names = {task.key: task.title for task in self.state.tasks}
        for step in steps:
            add_step(self._trace, step, names.get(step.workload, step.workload))
        with self._write_or_report(self._trace_file):
            self._trace.write(self._trace_file)

    @contextmanager
    def _write_or_report(self, path: str) -> Iterator[None]:
        try:
            yield
        except OSError as error:
            if path not in self._problems:
                self._problems.add(path)
                self._notify(f"cannot write {path}: {error.strerror or error}")


def add_step(trace: Trace, step: Step, kernel: str) -> None:
    """Add a step to the lane of its worker, with its parts as far as that tells them.

    What is left of it is the way there and back.
    """
    node = f"node {step.node}"
    lane = f"builder {step.index}" if step.is_build else f"timing slot {step.index}"
    name = f"finalists of {kernel}" if FINAL in step.request_id else kernel
    description = {"status": step.status, "request": step.request_id, "workload": step.workload}
    trace.slice(node, lane, name, step.began, step.ended, **description)
    parts = {"timed runs": step.run_seconds, "check": step.check_seconds}
    if step.is_build:
        parts = {"build": step.build_seconds}
    end = step.ended
    for name, seconds in parts.items():  # the last one first
        begin = max(step.began, end - max(0.0, seconds))
        if begin < end:
            trace.slice(node, lane, name, begin, end)
        end = begin


def metrics_text(state: JobState, job: str, model: str, job_state: str) -> str:
    """The state of a job as metrics, each with the job's id and its model's name."""
    common = {"job": job, "model": model}
    now = {**common, "state": job_state, "phase": state.phase}
    latency, untuned, whole = state.expected, state.untuned, state.model
    families = [
        _family("job_info", "gauge", "What the job is doing.", [(now, 1.0)]),
        _family(
            "trials_total",
            "counter",
            "Measurements of this job, by how they ended.",
            [({**common, "status": name}, count) for name, count in state.measured.items()],
        ),
        _one("model_latency_seconds", "Sum of kernels, as expected.", common, latency.value),
        _one("model_untuned_latency_seconds", "Sum of kernels, untuned.", common, untuned),
        _one("whole_model_seconds", "One run of the model, as confirmed.", common, whole.tuned),
        _one("whole_model_untuned_seconds", "The same untuned.", common, whole.untuned),
        *_kernels(state.tasks, common),
        _one("elapsed_seconds", "Since the job began.", common, state.elapsed),
        _one("left_seconds", "At most, to the job's end.", common, state.left),
        _one("workers", "Requests that can be under way.", common, state.workers),
        _one("requests_under_way", "Requests that are.", common, state.busy),
        _one("updated_timestamp_seconds", "When this was written.", common, state.at),
    ]
    return "".join(families)


def _kernels(tasks: Iterable[TaskStatus], common: Mapping[str, str]) -> list[str]:
    """What is known of each kernel."""
    rows = [
        (
            {
                **common,
                "kernel": task.kernel,
                "workload": task.key,
                "target": task.target,
                "sizes": task.sizes,
            },
            task,
        )
        for task in tasks
    ]
    return [
        _family(
            "kernel_latency_seconds",
            "gauge",
            "What a call with the best schedule is expected to take, or was confirmed to.",
            [(labels, task.latency.value) for labels, task in rows],
        ),
        _family(
            "kernel_default_latency_seconds",
            "gauge",
            "What a call with the default schedule takes.",
            [(labels, task.default) for labels, task in rows],
        ),
        _family(
            "kernel_trials",
            "gauge",
            "Trials of the kernel, those of earlier jobs included.",
            [(labels, task.trials) for labels, task in rows],
        ),
    ]


def _one(name: str, text: str, labels: Mapping[str, str], value: float | None) -> str:
    return _family(name, "gauge", text, [] if value is None else [(labels, value)])


def _family(
    name: str, kind: str, text: str, samples: Iterable[tuple[Mapping[str, str], float]]
) -> str:
    """A metric with all its samples that have a value; "" without any."""
    known = [(labels, value) for labels, value in samples if math.isfinite(value)]
    if not known:
        return ""
    name = f"tunefarm_{name}"
    lines = [f"# HELP {name} {text}", f"# TYPE {name} {kind}"]
    for labels, value in known:
        pairs = ",".join(f'{key}="{_escaped(text)}"' for key, text in labels.items())
        lines.append(f"{name}{{{pairs}}} {float(value)!r}")
    return "\n".join(lines) + "\n"


def _escaped(text: str) -> str:
    """A label's value, as the format has it."""
    visible = printable(text).replace("\\", "\\\\").replace('"', '\\"')
    return visible.replace("\n", "\\n")
