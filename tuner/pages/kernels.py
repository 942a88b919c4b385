"""The kernels of a page: a row of the table for each, and what is shown when it is opened."""

from __future__ import annotations

import math
import re
import shlex
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from tunefarm.compiler.content_cache import NOT_WHAT_WAS_KEPT
from tunefarm.compiler.errors import MeasureError, TunefarmError, with_count
from tunefarm.compiler.kernels.count_work import kernel_bytes, kernel_flops
from tunefarm.compiler.kernels.serialize import kernel_from_json
from tunefarm.configs.settings import shown_precision
from tunefarm.db.records import BestRecord, TaskKey, TrialRecord
from tunefarm.tuner.confirm.verdict import compare
from tunefarm.tuner.pages.contents import Contents, TaskRecords, seconds_in_models
from tunefarm.tuner.pages.packed import shortened
from tunefarm.tuner.records.model_latencies import MachineRoof
from tunefarm.tuner.records.trials import (
    best_record,
    confirmations,
    is_censored,
    is_confirmed,
    latency_of,
)
from tunefarm.tuner.reports.gains import gain, gain_class
from tunefarm.tuner.reports.report import KEY_CHARACTERS, format_seconds, format_share, format_time

# A kernel's trials as points: which latency was found when, and what became of it.

MOST_POINTS = 1_500
"""Of one kernel; of more every second, third, … one is left out, those that say little."""

OK, EARLY, NOISE, FAILED, REJECTED, APPLIED = (
    "measured",
    "given up early",
    "too noisy",
    "failed",
    "rejected",
    "applied",
)
"""What became of a trial; each is a kind of point. `rejected` ones were nominated by a search and
lost when the finalists met."""


def trial_points(trials: Sequence[TrialRecord], bests: Sequence[BestRecord]) -> dict[str, Any]:
    """Points by kind as lists of trial numbers, seconds and strings, and the best so far as a line.

    Failures have no latency: they stand above all others.
    """
    applied = bests[-1].schedule_hash if bests else None
    rejected = {hash for best in bests for hash in best.met} - {applied}
    known = [latency_of(trial) for trial in trials]
    top = max(filter(math.isfinite, known), default=1.0)
    points: dict[str, Any] = {
        kind: {"x": [], "y": [], "text": []}
        for kind in (OK, EARLY, NOISE, FAILED, REJECTED, APPLIED)
    }
    line_x: list[int] = []
    line_y: list[float] = []
    best = math.inf
    every = -(-len(trials) // MOST_POINTS)
    for number, (trial, seconds) in enumerate(zip(trials, known, strict=True), 1):
        improves = seconds < best and not is_censored(trial)
        if improves:
            best = seconds
            line_x.append(number)
            line_y.append(seconds)
        kind = _kind(trial, applied, rejected)
        if number % every and not improves and kind in (OK, EARLY, NOISE, FAILED):
            continue
        group = points[kind]
        group["x"].append(number)
        group["y"].append(_height(trial, seconds, top))
        group["text"].append(trial.sketch if kind in (OK, EARLY) else _text(trial))
    if line_x:
        line_x.append(len(trials))
        line_y.append(best)
    return {"points": points, "line": {"x": line_x, "y": line_y}, "shown": 1 / max(1, every)}


def _kind(trial: TrialRecord, applied: str | None, rejected: Collection[str]) -> str:
    if trial.is_lost_to_noise:
        return NOISE
    if not trial.is_ok:
        return FAILED
    if is_confirmed(trial):
        hash = trial.schedule_hash
        return APPLIED if hash == applied else REJECTED if hash in rejected else OK
    return EARLY if is_censored(trial) else OK


def _height(trial: TrialRecord, seconds: float, top: float) -> float:
    if math.isfinite(seconds):
        return seconds
    return trial.latency if trial.is_lost_to_noise and trial.latency else 1.15 * top


def _text(trial: TrialRecord) -> str:
    error = trial.error.strip().splitlines()
    return f"{trial.sketch}, {trial.status}: {error[-1][:120]}" if error else trial.sketch


_MOST_CHARACTERS = 60


def choices_text(choices: Mapping[str, Any]) -> str:
    """The choices of a candidate: `tile 4x2, unroll 4`."""
    return ", ".join(f"{name} {_value_text(value)}" for name, value in choices.items())


def _value_text(value: Any) -> str:
    """A value of a choice."""
    if isinstance(value, list | tuple):
        return shortened("x".join(map(str, value)), _MOST_CHARACTERS)
    return shortened(str(value), _MOST_CHARACTERS)


def _steps_text(schedule: Any) -> list[str]:
    """The steps of a recorded schedule, one a line: a name and its arguments."""
    if not isinstance(schedule, list):
        return [shortened(str(schedule), 200)]
    return [_step(step) for step in schedule]


def _step(step: Any) -> str:
    if isinstance(step, list) and step:
        name, *arguments = step
        return f"{name} {' '.join(map(_value_text, arguments))}".strip()
    return shortened(str(step), 200)


NOT_CONFIRMED = "not confirmed"
_MOST_TRIALS_LISTED = 10


@dataclass(frozen=True, slots=True)
class Kernel:
    """One kernel under one key, with all that is worked out of its records.

    `number` names it within the page. `seconds` are those of one call as it is applied, NaN where
    unknown, `in_model` those that a run of its newest model spends in it. `nodes` are the model's
    nodes that it computes, or its name where they are not known.
    """

    number: int
    records: TaskRecords
    applied: TrialRecord | None
    best: BestRecord | None
    seconds: float
    in_model: float
    calls: int
    nodes: str

    @property
    def anchor(self) -> str:
        """Its place in the page."""
        return f"k{self.number}"

    @property
    def name(self) -> str:
        """As the compiler called it."""
        return self.records.workload.name

    @property
    def key(self) -> TaskKey:
        """What its records have in common."""
        return self.records.key

    @property
    def cost(self) -> float:
        """Seconds of a run that are spent in it, timed there or by its record."""
        cost = self.in_model if math.isfinite(self.in_model) else self.calls * self.seconds
        return cost if math.isfinite(cost) else 0.0


def kernels_of(contents: Contents) -> list[Kernel]:
    """The page's kernels, those that cost most first."""
    spent = seconds_in_models(contents)
    found = []
    for records in contents.tasks:
        best = records.bests[-1] if records.bests else None
        applied = _applied(records, best)
        if best is not None:
            seconds = best.default_latency * best.ratio
        else:
            seconds = math.nan if applied is None else latency_of(applied)
        calls = contents.occurrences.get(records.key, 1)
        in_model = spent.get(records.key, math.nan)
        nodes = contents.nodes.get(records.key.workload) or records.workload.name
        found.append(Kernel(0, records, applied, best, seconds, in_model, calls, nodes))
    found.sort(key=lambda kernel: -kernel.cost)
    return [replace(kernel, number=number) for number, kernel in enumerate(found)]


def _applied(records: TaskRecords, best: BestRecord | None) -> TrialRecord | None:
    """The trial whose schedule a build applies."""
    if best is None:
        return best_record(records.trials)
    named = (best.schedule_hash, best.request_id)
    return next((t for t in records.trials if (t.schedule_hash, t.request_id) == named), None)


def rows_of(kernels: Sequence[Kernel]) -> list[dict[str, Any]]:
    """What the table of kernels shows: strings, and the values that its columns are sorted by."""
    totals: dict[tuple[str, int], float] = {}
    for kernel in kernels:
        group = kernel.key.target, kernel.key.threads
        totals[group] = totals.get(group, 0.0) + kernel.cost
    return [_row(kernel, totals[kernel.key.target, kernel.key.threads]) for kernel in kernels]


def _row(kernel: Kernel, total: float) -> dict[str, Any]:
    trials = kernel.records.trials
    lost = sum(trial.is_lost_to_noise for trial in trials)
    failed = sum(not trial.is_ok for trial in trials) - lost
    best = kernel.best
    default = math.nan if best is None else best.default_latency
    shown = NOT_CONFIRMED, "same"
    if best is not None:
        shown = gain(best.ratio, best.low, best.high), gain_class(best.low, best.high)
    share = kernel.cost / total if total > 0 else math.nan
    return {
        "anchor": kernel.anchor,
        "nodes": kernel.nodes,
        "name": kernel.name,
        "workload": kernel.key.workload,
        "target": kernel.key.target,
        "threads": kernel.key.threads,
        "calls": kernel.calls,
        "share": format_share(share),
        "cost": kernel.cost,
        "default": format_seconds(default),
        "default_value": _sortable(default),
        "now": format_seconds(kernel.seconds),
        "now_value": _sortable(kernel.seconds),
        "gain": shown[0],
        "gain_class": shown[1],
        "gain_value": 1.0 if best is None else 1.0 / best.ratio,
        "trials": len(trials),
        "failed": failed,
        "lost": lost,
    }


def _sortable(value: float) -> float:
    return value if math.isfinite(value) else 0.0


def details_of(kernel: Kernel, roof: Mapping[str, Any] | None, database: str) -> dict[str, Any]:
    """What is shown when a kernel is opened; `roof` is as its file makes it."""
    records, best = kernel.records, kernel.best
    key = kernel.key
    facts = [
        ("kernel", kernel.name),
        ("workload", key.workload),
        ("target", key.target),
        ("threads", str(key.threads)),
        ("precision", shown_precision(key.numerics)),
        ("compiler version", key.compiler_version),
        ("calls in the model", str(kernel.calls)),
        ("one call", format_seconds(kernel.seconds)),
        ("all calls of a run", format_seconds(kernel.in_model)),
    ]
    if best is not None:
        facts += [
            ("default schedule", format_seconds(best.default_latency)),
            ("confirmed", format_time(best.created)),
        ]
    return {
        "nodes": kernel.nodes,
        "name": kernel.name,
        "facts": [list(fact) for fact in facts],
        "gain": NOT_CONFIRMED if best is None else gain(best.ratio, best.low, best.high),
        "trials": trial_points(records.trials, records.bests),
        "finalists": _finalists_of(records.trials, best),
        "roof": roof,
        "schedule": _schedule(kernel.applied),
        "inspect": shlex.join(_inspected(key, database)),
        "failures": _failures_of(records.trials),
        "fastest": _fastest(records.trials),
    }


def _inspected(key: TaskKey, database: str) -> list[str]:
    """The command that prints the kernel's code, of a model that has it."""
    named = ["--db", database, "--kernel", key.workload[:KEY_CHARACTERS]]
    return ["tune", "inspect", "MODEL", *named, "--threads", str(key.threads), "--stage", "asm"]


def _schedule(trial: TrialRecord | None) -> dict[str, Any] | None:
    if trial is None:
        return None
    return {
        "hash": trial.schedule_hash,
        "sketch": trial.sketch,
        "choices": choices_text(trial.choices),
        "steps": _steps_text(trial.schedule),
    }


def _fastest(trials: Sequence[TrialRecord]) -> list[list[str]]:
    """The fastest trials of different schedules: latency, sketch and choices."""
    found: dict[str, TrialRecord] = {}
    for trial in sorted((t for t in trials if t.is_ok), key=latency_of):
        found.setdefault(trial.schedule_hash, trial)
        if len(found) == _MOST_TRIALS_LISTED:
            break
    return [
        [format_seconds(latency_of(trial)), trial.sketch, choices_text(trial.choices)]
        for trial in found.values()
    ]


_NUMBERS = re.compile(r"0x[0-9a-f]+|\d+(\.\d+)?(e[+-]?\d+)?")
_MOST_REASONS = 12
_EXAMPLE_CHARACTERS = 2_000


def _failures_of(trials: Iterable[TrialRecord]) -> list[dict[str, Any]]:
    """The reasons, the most frequent first; reasons that differ in numbers alone are one.

    What was too noisy has not failed, and is no part of it.
    """
    groups: dict[tuple[str, str], list[TrialRecord]] = {}
    for trial in trials:
        if not trial.is_ok and not trial.is_lost_to_noise:
            groups.setdefault((trial.status, _reason(trial.error)), []).append(trial)
    found = [
        {
            "status": status,
            "count": len(group),
            "reason": _line(group[0].error) or status,
            "error": shortened(group[0].error, _EXAMPLE_CHARACTERS),
            "example": f"{group[0].sketch}: {choices_text(group[0].choices)}",
        }
        for (status, _), group in groups.items()
    ]
    found.sort(key=lambda item: -int(str(item["count"])))
    return found[:_MOST_REASONS]


def _reason(error: str) -> str:
    """What two failures have in common."""
    return _NUMBERS.sub("#", _line(error))


def _line(error: str) -> str:
    """What a traceback or a message comes to: its last line."""
    lines = [line.strip() for line in error.splitlines() if line.strip()]
    return shortened(lines[-1], 200) if lines else ""


_MOST_FINALISTS = 12


def _finalists_of(trials: Sequence[TrialRecord], best: BestRecord | None) -> list[dict[str, Any]]:
    """The newest meetings of each schedule that was a finalist, the fastest first.

    Times are over the default schedule's, with 95 % intervals over all processes in which both took
    part; None of the default itself and of those that failed.
    """
    found = []
    for hash, group in confirmations(trials).items():
        compared = _against_default(group)
        failed = [trial for trial in group if not trial.is_ok and not trial.is_lost_to_noise]
        found.append(
            {
                "schedule": hash[:8],
                "sketch": group[-1].sketch,
                "choices": choices_text(group[-1].choices),
                "won": best is not None and hash == best.schedule_hash,
                "processes": len(group),
                "failed": failed[0].status if failed else "",
                **compared,
            }
        )
    found.sort(key=lambda item: (not item["won"], item["ratio"] or 1.0))
    return found[:_MOST_FINALISTS]


def _against_default(group: Sequence[TrialRecord]) -> Mapping[str, Any]:
    meetings = [
        {0: trial.reference_samples, 1: trial.samples}
        for trial in group
        if trial.is_ok and trial.samples and trial.reference_samples
    ]
    nothing = {"ratio": None, "low": None, "high": None, "pairs": 0}
    if not meetings:
        return nothing
    try:
        found = compare(meetings, 1, 0)
    except MeasureError:  # others' samples, which may be anything
        return nothing
    return {"ratio": found.ratio, "low": found.low, "high": found.high, "pairs": found.pairs}


# A kernel's time against the minimum that its machine's arithmetic and memory need.

_UNREADABLE = (TunefarmError, *NOT_WHAT_WAS_KEPT, ArithmeticError, AssertionError, RuntimeError)


@dataclass(frozen=True, slots=True)
class Work:
    """What one call of a kernel computes and moves, and how long it takes."""

    flops: int
    bytes: int
    seconds: float

    @property
    def intensity(self) -> float:
        """Operations per byte of operands and result."""
        return self.flops / self.bytes


def rooflines(contents: Contents, kernels: Sequence[Kernel]) -> dict[str, dict[str, Any]]:
    """What is shown of each kernel, by its place; those without figures are left out.

    The roof is what the newest job or benchmark for the same target and threads has measured.
    """
    roofs: dict[tuple[str, int], tuple[MachineRoof, str]] = {}
    for record, times in contents.models:
        if times.roof is not None:
            machine = str(record.machine.get("cpu", "-"))
            roofs.setdefault((record.target, record.threads), (times.roof, machine))
    works = {kernel.anchor: work for kernel in kernels if (work := _work(kernel)) is not None}
    points = {
        kernel.anchor: (kernel, works[kernel.anchor])
        for kernel in kernels
        if kernel.anchor in works
    }
    return {
        anchor: _roofline(kernel, work, *roofs[group], points)
        for anchor, (kernel, work) in points.items()
        if (group := (kernel.key.target, kernel.key.threads)) in roofs
    }


def _work(kernel: Kernel) -> Work | None:
    """None for what this version cannot rebuild, and what has no time or no arithmetic."""
    if not 0 < kernel.seconds < math.inf:
        return None
    try:
        built = kernel_from_json(kernel.records.workload.kernel)
        work = Work(kernel_flops(built), kernel_bytes(built), kernel.seconds)
    except _UNREADABLE:
        return None
    return work if work.flops > 0 and work.bytes > 0 else None


def _roofline(
    kernel: Kernel,
    work: Work,
    roof: MachineRoof,
    machine: str,
    points: Mapping[str, tuple[Kernel, Work]],
) -> dict[str, Any]:
    computing, moving = work.flops / roof.flops, work.bytes / roof.bytes
    least = max(computing, moving)
    bound = "arithmetic" if computing >= moving else "memory"
    bars = [
        ["one call takes", work.seconds, format_seconds(work.seconds)],
        ["its arithmetic alone", computing, _least(computing, work, f"{work.flops:,} operations")],
        ["its memory alone", moving, _least(moving, work, f"{work.bytes:,} bytes")],
    ]
    others = [
        (other.intensity, other.flops / other.seconds / 1e9, item.name)
        for anchor, (item, other) in points.items()
        if item.key.target == kernel.key.target and anchor != kernel.anchor
    ]
    ends = [point[0] for point in others] + [work.intensity]
    knee = roof.flops / roof.bytes
    low, high = min(*ends, knee) / 2, max(*ends, knee) * 2
    return {
        "bars": bars,
        "most": max(work.seconds, least),
        "note": (
            f"{format_share(min(1.0, least / work.seconds))} of what {bound} allows on {machine}: "
            f"{roof.flops / 1e9:.4g} GFLOP/s in f32 and {roof.bytes / 1e9:.3g} GB/s from memory, "
            f"measured with {with_count(kernel.key.threads, 'thread')}. What is in a cache already "
            "moves faster, and narrow types compute faster."
        ),
        "plot": {
            "line": {
                "x": [low, knee, high],
                "y": [low * roof.bytes / 1e9, roof.flops / 1e9, roof.flops / 1e9],
            },
            "others": _columns(others),
            "own": _columns([(work.intensity, work.flops / work.seconds / 1e9, kernel.name)]),
        },
    }


def _least(seconds: float, work: Work, what: str) -> str:
    return f"{format_seconds(seconds)} at least, {format_share(seconds / work.seconds)} ({what})"


def _columns(points: Sequence[tuple[float, float, str]]) -> dict[str, list[Any]]:
    x, y, text = zip(*points, strict=True) if points else ((), (), ())
    return {"x": list(x), "y": list(y), "text": list(text)}
