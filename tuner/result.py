"""What a job came to: as values, as JSON, and in a few lines for people."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass, field, replace
from typing import Any

from tunefarm.compiler.errors import with_count
from tunefarm.measure.measurement import is_unchanged
from tunefarm.tuner.building.report import BuildReport
from tunefarm.tuner.confirm.latency import ModelLatency
from tunefarm.tuner.confirm.placement import moved_lines
from tunefarm.tuner.confirm.whole_model import Exchanged
from tunefarm.tuner.records.size_ranges import SizePlan
from tunefarm.tuner.reports.gains import (
    UNCHANGED,
    UNKNOWN_GAIN,
    ModelGain,
    headline,
    largest_gains,
)
from tunefarm.tuner.reports.report import (
    TaskStatus,
    format_counts,
    format_duration,
    format_seconds,
    format_share,
    task_to_json,
)
from tunefarm.tuner.search.budget import End
from tunefarm.tuner.search.session import Overhead

_BAR = 32  # characters of the longest bar of a drawing


@dataclass(frozen=True, slots=True)
class Outcome:
    """Of one kernel, as times over the default schedule's: what the search expected of its nominee
    and what was confirmed of the schedule that is applied, with the 95 % interval from `low` to
    `high`; NaN before that."""

    claimed: float = math.nan
    confirmed: float = math.nan
    low: float = math.nan
    high: float = math.nan
    reason: str = ""  # which choices differ from the default schedule's

    def applied_to(self, status: TaskStatus) -> TaskStatus:
        """The status with both; what was expected before gives way to what was confirmed."""
        text = replace(status, claimed=self.claimed, confirmed=self.confirmed, reason=self.reason)
        if not math.isfinite(status.default * self.confirmed):
            return text
        return replace(
            text,
            expected=status.default * self.confirmed,
            low=status.default * self.low,
            high=status.default * self.high,
        )


@dataclass(frozen=True, slots=True)
class TrialCounts:
    """Trials of all kernels, those discarded as too noisy, and those that failed."""

    trials: int = 0
    scattered: int = 0
    failures: int = 0

    @staticmethod
    def of(tasks: Iterable[TaskStatus]) -> TrialCounts:
        """The counts of these tasks together."""
        tasks = list(tasks)
        return TrialCounts(
            sum(task.trials for task in tasks),
            sum(task.scattered for task in tasks),
            sum(task.failures for task in tasks),
        )

    def since(self, before: TrialCounts) -> TrialCounts:
        """Those that have come after `before`."""
        return TrialCounts(
            self.trials - before.trials,
            self.scattered - before.scattered,
            self.failures - before.failures,
        )


@dataclass(frozen=True, slots=True)
class TargetResult:
    """What a job for several targets came to for one of them, by its CPU's name.

    The whole model is measured on this machine, or `elsewhere`: by a node of a cluster where this
    machine is of another kind. `latency` is None where none could.
    """

    cpu: str
    latency: ModelLatency | None
    build: BuildReport
    elsewhere: bool = False
    exchanged: Exchanged = field(default_factory=Exchanged)


@dataclass(frozen=True, slots=True)
class SizeResult:
    """What a job for several sizes of a model's inputs came to for one of them."""

    sizes: str
    latency: ModelLatency | None


@dataclass(frozen=True, slots=True, repr=False)
class TuneResult:
    """What a job did. `latency` and `build` are None when it was interrupted, `latency` also where
    this machine cannot measure it; `known` are the trials of earlier jobs. With several `targets`
    they and `exchanged` are those of this machine's target, or of the first; with several `sizes`,
    of the last."""

    model: str
    database: str
    job: str
    end: End
    measured: int  # results of this run
    seconds: float
    tasks: tuple[TaskStatus, ...]
    latency: ModelLatency | None
    build: BuildReport | None
    overhead: Overhead = field(default_factory=Overhead)  # of the search itself
    known: TrialCounts = field(default_factory=TrialCounts)
    targets: tuple[TargetResult, ...] = ()
    sizes: tuple[SizeResult, ...] = ()
    size_plan: SizePlan | None = None  # of a model with a range of sizes
    moved: str = ""  # where the database is that was renamed, or saved, during the job
    lost: str = ""  # a line about one that was deleted or replaced during the job
    changed: str = ""  # how the model's file is another one now
    exchanged: Exchanged = field(default_factory=Exchanged)  # kernels in the running model
    target_gain: float | None = None  # speed-up of the whole model at which the job was to stop

    @property
    def interrupted(self) -> bool:
        """Whether it was ended before its time."""
        return self.end is End.INTERRUPTED

    @property
    def new(self) -> TrialCounts:
        """The trials of this run."""
        return TrialCounts.of(self.tasks).since(self.known)

    @property
    def claimed_seconds(self) -> float:
        """Time of the model's kernels as the search expected it before its finalists met."""
        return kernel_sums(self.tasks)[0]

    @property
    def confirmed_seconds(self) -> float:
        """Time of the model's kernels as it was confirmed, from the same default latencies."""
        return kernel_sums(self.tasks)[1]

    def to_json(self) -> dict[str, Any]:
        """The result as JSON values."""
        several = len(self.targets) > 1
        return {
            "model": self.model,
            "database": self.database,
            "job": self.job,
            "end": self.end.value,
            "measured": self.measured,
            "seconds": self.seconds,
            "search": self._search_to_json(),
            "overhead_seconds": asdict(self.overhead),
            "tasks": [task_to_json(task) for task in self.tasks],
            "latency": None if self.latency is None else self.latency.to_json(),
            "build": None if self.build is None else self.build.to_json(),
            "exchange": None if self.latency is None else self.exchanged.to_json(),
            **({"targets": [_target_to_json(item) for item in self.targets]} if several else {}),
            **({"sizes": [_size_to_json(item) for item in self.sizes]} if self.sizes else {}),
            **({} if self.size_plan is None else {"size_plan": self.size_plan.to_json()}),
            "model_changed": self.changed or None,
            "target_gain": self.target_gain,
        }

    def __repr__(self) -> str:
        """The headline and the summary of the job, line by line."""
        return "\n".join((self.headline, *summary_lines(self, self._next)))

    @property
    def headline(self) -> str:
        """What the job gained, with the 95 % interval, in one line."""
        if self.latency is None:
            why = "interrupted" if self.interrupted else "the whole model was not measured here"
            return f"{self.model}: {why}"
        return f"{self.model}: {headline(*self.gain.interval)}{self.gain_of}"

    @property
    def gain(self) -> ModelGain:
        """The whole model as it was confirmed, see `ModelGain`."""
        return model_gain(self.latency, self.size_plan)

    @property
    def gain_of(self) -> str:
        """What the gain is a mean of, in words; nothing where it is of one size."""
        count = 0 if self.size_plan is None else len(self.size_plan.ratios)
        return f", mean of {with_count(count, 'size')}" if count else ""

    @property
    def _next(self) -> str:
        return f"tunefarm.build({self.model!r}, db={self.database!r})"

    def _search_to_json(self) -> dict[str, Any]:
        """What the search claimed and what was confirmed; null where the job was interrupted."""
        new = self.new
        found: dict[str, Any] = {
            "trials": new.trials,
            "failed": new.failures,
            "lost_to_noise": new.scattered,
        }
        names = ("claimed_seconds", "confirmed_seconds", "speedup", "speedup_low", "speedup_high")
        if self.latency is None:
            return found | dict.fromkeys(("unchanged", *names))
        ratio, low, high = self.gain.interval
        unchanged = is_unchanged(low, high)
        speed_up = (None,) * 3 if unchanged else (1.0 / ratio, 1.0 / high, 1.0 / low)
        figures = self.claimed_seconds, self.confirmed_seconds, *speed_up
        found["unchanged"] = unchanged
        return found | dict(zip(names, figures, strict=True))


def model_gain(latency: ModelLatency | None, plan: SizePlan | None = None) -> ModelGain:
    """The model as it is applied from now on next to the untuned one."""
    if latency is None:
        return UNKNOWN_GAIN
    applied = latency.applied
    mean = None if plan is None else plan.mean_ratio
    ratios = (applied.ratio, applied.low, applied.high) if mean is None else mean
    kept = latency.kept
    tuned = latency.tuned if kept is None else latency.untuned * kept.ratio
    return ModelGain(latency.untuned, tuned, *ratios)


def kernel_sums(tasks: Iterable[TaskStatus]) -> tuple[float, float]:
    """Seconds of all kernels together, claimed and confirmed.

    Only kernels of which something was claimed, and with it confirmed, at the maximum sizes.
    """
    known = [t for t in tasks if math.isfinite(t.default * t.claimed * t.confirmed) and not t.sizes]
    claimed = sum(t.occurrences * t.default * t.claimed for t in known)
    return claimed, sum(t.occurrences * t.default * t.confirmed for t in known)


def _target_to_json(item: TargetResult) -> dict[str, Any]:
    return {
        "cpu": item.cpu,
        "latency": None if item.latency is None else item.latency.to_json(),
        "build": item.build.to_json(),
    }


def _size_to_json(item: SizeResult) -> dict[str, Any]:
    latency = None if item.latency is None else item.latency.to_json()
    return {"sizes": item.sizes, "latency": latency}


def size_lines(sizes: Sequence[SizeResult]) -> list[str]:
    """The model's latency against its sizes, drawn: a bar for what the tuned model takes, and dots
    up to what the untuned one does."""
    known = [(item.sizes, item.latency) for item in sizes if item.latency is not None]
    return _drawn([(name, found.tuned, found.untuned) for name, found in known], "untuned")


def plan_lines(plan: SizePlan) -> list[str]:
    """Latencies against sizes, drawn, and how many ranges have schedules of their own."""
    title, times, other = "at its sizes:", plan.models, "untuned"
    if not times:
        title, times, other = "kernels that depend on sizes:", plan.seconds, "with one schedule"
    rows = [(name, own, one) for name, (own, one) in times.items()]
    own = sum(bool(item.schedules) for item in plan.ranges)
    ranges = f"{own} of {len(plan.ranges)} ranges of sizes have schedules of their own"
    return [title, *_drawn(rows, other), ranges]


def _drawn(rows: Sequence[tuple[str, float, float]], other: str) -> list[str]:
    """A line for each name and two latencies: a bar for the first, dots up to the `other`; of one
    build there is one latency."""
    longest = max((max(first, second) for _, first, second in rows), default=1.0)
    width = max((len(name) for name, _, _ in rows), default=0)
    lines = []
    for name, first, second in rows:
        bar = "█" * max(1, round(_BAR * first / longest))
        rest = "·" * (round(_BAR * second / longest) - len(bar))
        rival = UNCHANGED if first == second else f"{other} {format_seconds(second)}"
        figures = f"{format_seconds(first)}, {rival}"
        lines.append(f"{name:{width}}  {bar + rest:{_BAR}}  {figures}")
    return lines


def result_line(result: TuneResult) -> str:
    """What came of a job, in one line."""
    if result.interrupted:
        return f"{result.model}: interrupted; all results are kept in {result.database}"
    if result.sizes:
        known = [
            f"{item.sizes} {model_gain(item.latency).as_fast}"
            for item in result.sizes
            if item.latency
        ]
        return f"{result.model}: {', '.join(known) or 'not measured on this machine'}"
    if result.latency is None:
        return f"{result.model}: tuned; not measured as a whole on this machine"
    if result.gain_of:
        return result.headline
    return f"{result.model}: {result.gain}"


def _count_line(result: TuneResult) -> str:
    count = "1 measurement" if result.measured == 1 else f"{result.measured} measurements"
    count = format_counts(count, result.new.failures, result.new.scattered)
    return f"{count} in {format_duration(result.seconds)}: {result.end}"


def summary_lines(result: TuneResult, command: str) -> list[str]:
    """What a job did and what to do next, for people."""
    overhead = 100 * result.overhead.total / result.seconds
    lines = [f"{_count_line(result)}; the search itself took {overhead:.1f} % of that"]
    latency = result.latency
    if result.sizes:
        lines += size_lines(result.sizes)
    elif latency is not None:
        claimed, confirmed = result.claimed_seconds, result.confirmed_seconds
        if confirmed > 0:
            lines.append(
                f"sum of kernels: {format_seconds(claimed)} claimed by the search, "
                f"{format_seconds(confirmed)} confirmed side by side"
            )
        if result.gain_of:
            lines.append(f"whole model: {headline(*result.gain.interval)}{result.gain_of}")
            lines.append(f"at its maximum sizes: {model_gain(latency)}")
        else:
            lines.append(f"whole model: {result.gain}")
        if result.exchanged != Exchanged():
            lines.append(result.exchanged.summary)
        if latency.is_slower:
            former = "former" if latency.former is not None else "default"
            lines.append(
                f"with the new schedules it takes {format_seconds(latency.tuned)}: "
                f"the {former} ones stay"
            )
    if result.target_gain is not None and latency is not None:
        reached = "reached" if result.gain.reaches(result.target_gain) else "not reached"
        lines.append(f"target gain: {result.target_gain:g}x, {reached}")
    if result.size_plan is not None:
        lines += plan_lines(result.size_plan)
    for item in result.targets if len(result.targets) > 1 else ():
        text = "its kernels alone, this machine is of another kind"
        if item.latency is not None:
            where = "a node of its kind" if item.elsewhere else "this machine"
            text = (
                f"its kernels, and the whole model on {where}: {model_gain(item.latency).as_fast}"
            )
        share = format_share(item.build.tuned_share)
        lines.append(f"for {item.cpu}: {share} of the estimated time is tuned; measured: {text}")
    gains = largest_gains(result.tasks)
    lines += ["largest gains:", *(f"  {line}" for line in gains)] if gains else []
    lines += moved_lines(result.tasks)
    if result.changed:
        lines.append(f"note: {changed_note(result.model, result.changed)}")
    lines.append(f"next: {command}")
    return lines


def changed_note(model: str, difference: str) -> str:
    """That a model's file is not what a job has read."""
    return (
        f"{model} is not the file any more that this job read ({difference}): its records are of "
        "the former model, the same command goes on with the new one"
    )
