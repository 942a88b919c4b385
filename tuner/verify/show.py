"""A verification for people, and as JSON values."""

from __future__ import annotations

from dataclasses import asdict
from typing import Any

from rich.table import Table

from tunefarm.compiler.errors import with_count
from tunefarm.tuner.records.model_latencies import MeasuredModel, Ratio
from tunefarm.tuner.reports.gains import UNCHANGED
from tunefarm.tuner.reports.report import (
    KEY_CHARACTERS,
    format_ratio,
    format_seconds,
    format_share,
    format_time,
    format_times,
)
from tunefarm.tuner.verify.drift import Drift, Verdict, deviation
from tunefarm.tuner.verify.quick import Met, QuickCheck
from tunefarm.tuner.verify.verify import Verification

NOISY_RECORD = 0.01
"""Standard error of a recorded ratio beyond which no later one can be judged well."""


def verification_lines(found: Verification, require: float) -> list[str]:
    """What has become of the model, and why."""
    verdict, why = found.drift.judge(require)
    times = found.times
    lines = [f"{found.model}: {verdict.value}: {why}"]
    gain = _gain(times.over_untuned)
    lines.append(f"now: {format_seconds(times.tuned)}{gain}{_at(times.sizes)}")
    lines.append(_recorded_line(found.baseline))
    lines.append(f"records apply to {format_share(found.drift.applied)} of what was tuned, by time")
    lines += [f"changed: {cause}" for cause in found.drift.causes]
    if found.baseline is not None and not found.drift.causes:
        lines.append("nothing has changed of machine, LLVM and compiler")
    if verdict is Verdict.UNCLEAR:
        lines.append(advice(found))
    return lines


def advice(found: Verification) -> str:
    """What would let an unclear case be judged."""
    then = None if found.baseline is None else found.baseline.times.over_untuned
    now = found.times.over_untuned
    if then is None or now is None or found.drift.slowdown is None:
        return "tune measures this model here, and records its latency"
    if deviation(then) > max(NOISY_RECORD, deviation(now)):
        return (
            "the recorded latency itself is that unsure: the same tune command on a quieter "
            "machine measures the model anew, and searches for nothing that it has found"
        )
    return "give it more --minutes, or wait; tune doctor says how noisy this machine is"


def kernel_table(drift: Drift) -> Table:
    """A row per kernel, the costliest first; times are of profiles."""
    table = Table(header_style="bold")
    table.add_column("kernel", overflow="ellipsis", no_wrap=True)
    table.add_column("key", no_wrap=True)
    for name in ("recorded", "now", "against others", "schedule"):
        table.add_column(name, justify="right", no_wrap=True)
    table.add_column("changed", overflow="fold")
    for kernel in drift.kernels:
        table.add_row(
            kernel.name,
            kernel.key[:KEY_CHARACTERS],
            *map(_seconds, (kernel.seconds_before, kernel.seconds_now)),
            "-" if kernel.relative is None else f"{kernel.relative:.2f}",
            "-" if kernel.now is None else kernel.now.source,
            kernel.change,
        )
    return table


def verification_to_json(found: Verification, require: float) -> dict[str, Any]:
    """The verification as JSON values."""
    verdict, why = found.drift.judge(require)
    drift = found.drift
    return {
        "model": found.model,
        "verdict": verdict.value,
        "why": why,
        "require": require,
        "unchanged": _is_unchanged(found.times.over_untuned),
        "slowdown": _ratio_to_json(drift.slowdown),
        "applied_share": drift.applied,
        "causes": list(drift.causes),
        "now": {
            **found.times.to_json(),
            "over_untuned": _ratio_to_json(found.times.over_untuned),
        },
        "recorded": None if found.baseline is None else _item_to_json(found.baseline),
        "kernels": [asdict(kernel) for kernel in drift.kernels],
        "notes": list(found.notes),
    }


def _item_to_json(item: MeasuredModel) -> dict[str, Any]:
    record = item.record
    return {
        "purpose": record.purpose,
        "created": record.created,
        "job": record.job,
        "target": record.target,
        "compiler_version": record.compiler_version,
        "machine": dict(record.machine),
        "seconds": item.times.tuned,
        "llvm": item.times.llvm,
        "unchanged": _is_unchanged(item.times.over_untuned),
        "over_untuned": _ratio_to_json(item.times.over_untuned),
    }


def _is_unchanged(ratio: Ratio | None) -> bool:
    return ratio is not None and ratio.is_unchanged


def _ratio_to_json(ratio: Ratio | None) -> dict[str, Any] | None:
    """None where there is none, and where both sides are one build."""
    return None if ratio is None or ratio.is_unchanged else asdict(ratio)


def _recorded_line(baseline: MeasuredModel | None) -> str:
    if baseline is None:
        return "recorded: nothing; the next verification compares with this one"
    times, record = baseline.times, baseline.record
    gain = _gain(times.over_untuned)
    by = "a job" if record.purpose == "job" else "a verification"
    where = record.machine.get("cpu", "an unknown CPU")
    return (
        f"recorded: {format_seconds(times.tuned)}{gain}, by {by} of "
        f"{format_time(record.created)} UTC on {where}"
    )


def _gain(ratio: Ratio | None) -> str:
    """The tuned model next to the untuned one, behind its latency."""
    if ratio is None:
        return ""
    if ratio.is_unchanged:
        return f", {UNCHANGED}: the tuned build is the untuned one"
    low, high = format_ratio(1.0 / ratio.high), format_ratio(1.0 / ratio.low)
    return f", {format_ratio(1.0 / ratio.ratio)} ({low} to {high}) as fast as untuned"


def _at(sizes: Any) -> str:
    return f", at {', '.join(f'{n}={s}' for n, s in sizes.items())}" if sizes else ""


def _seconds(value: float | None) -> str:
    return "-" if value is None else format_seconds(value)


def check_table(found: QuickCheck) -> Table:
    """A row per nominee that was met."""
    table = Table(header_style="bold")
    table.add_column("kernel", overflow="ellipsis", no_wrap=True)
    table.add_column("key", no_wrap=True)
    table.add_column("record", justify="right", no_wrap=True)
    table.add_column("from", overflow="fold")
    table.add_column("time relative to default", justify="right", no_wrap=True)
    table.add_column("applies", overflow="fold")
    for item in found.met:
        table.add_row(
            item.kernel,
            item.key.workload[:KEY_CHARACTERS],
            str(item.claim.record.number),
            item.claim.came_from,
            _times(item),
            "yes" if item.applies else f"no: {item.why}",
        )
    return table


def _times(item: Met) -> str:
    found = item.compared
    return "-" if found is None else format_times(found.ratio, found.low, found.high)


def check_lines(found: QuickCheck) -> list[str]:
    """What a quick check came to, below its table."""
    if not found.met:
        return [f"{found.model}: no kernel has a nominee: there is nothing to check"]
    kernels = len({item.key for item in found.met})
    lines = [
        f"{found.model}: {found.accepted} of {with_count(kernels, 'kernel')} with nominees are "
        "confirmed here; the others run default schedules"
    ]
    if found.open:
        lines.append(
            f"{with_count(found.open, 'kernel')} could not be measured: try the same command again"
        )
    if found.latency is not None:
        latency = found.latency
        ratio = Ratio(latency.ratio, latency.low, latency.high)
        lines.append(f"now: {format_seconds(latency.tuned)}{_gain(ratio)}")
    return [*lines, *found.notes]


def check_to_json(found: QuickCheck) -> dict[str, Any]:
    """A quick check as JSON values."""
    return {
        "model": found.model,
        "accepted": found.accepted,
        "open": found.open,
        "nominees": [item.to_json() for item in found.met],
        "latency": None if found.latency is None else found.latency.to_json(),
        "notes": list(found.notes),
    }
