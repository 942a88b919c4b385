"""A model as it was recorded next to the model as it is now: plain values in, judgements out.

What is compared is the gain over the untuned model, measured in pairs then and now: the clock of
the core, which wanders from day to day, is in neither. Times in seconds are shown next to it.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from statistics import median
from typing import Any

from tunefarm.compiler.runtime.spec.kernel_report import TUNED
from tunefarm.measure.machine import known_as
from tunefarm.tuner.records.model_latencies import AppliedKernel, MeasuredModel, ModelTimes, Ratio
from tunefarm.tuner.reports.report import format_share

WIDE = 0.03
"""Half of an interval (of the logarithm) beyond which a slowdown that matters could hide in it."""
CHANGED, MATTERS = 0.10, 0.02
"""By how much of its own time, and of the model's, a kernel must change against the others to be
named: profiles of one moment and another differ by some per cent."""
BETWEEN_PROCESSES = 0.003
"""Standard deviation of the logarithm of what two processes find of one model, beyond the errors of
each, which met the untuned model at several placements (`python -m tests.benchmarks.same_build
again`)."""
_REACH = 1.96  # standard deviations of a 95 % interval
_FACTS = {
    "cpu": "CPU",
    "features": "CPU features",
    "cores": "number of cores",
    "kernel": "kernel of the system",
    "governor": "governor",
}


class Verdict(StrEnum):
    """Whether a model still is what was recorded."""

    HOLDS = "holds"
    DRIFTED = "drifted"
    UNCLEAR = "cannot be judged"


EXIT_CODES: Mapping[Verdict, int] = {Verdict.HOLDS: 0, Verdict.DRIFTED: 1, Verdict.UNCLEAR: 3}
"""Of `tune verify --require`; 2 are wrong options."""


@dataclass(frozen=True, slots=True)
class Situation:
    """What a model was built and measured with; `machine` is a fingerprint."""

    target: str
    compiler_version: str
    llvm: str
    machine: Mapping[str, Any]

    @staticmethod
    def of(measured: MeasuredModel) -> Situation:
        """That of a record."""
        record = measured.record
        return Situation(
            record.target, record.compiler_version, measured.times.llvm, record.machine
        )


@dataclass(frozen=True, slots=True)
class KernelDrift:
    """A distinct kernel then and now: how it was built, and its seconds in a run of the model.

    `relative` is its time now over then, over the same of all kernels (None where not profiled):
    1.2 is a kernel that became slower by 20 % against the others. `change` says in words what is
    different, "" if nothing is.
    """

    key: str
    name: str
    before: AppliedKernel | None
    now: AppliedKernel | None
    seconds_before: float | None
    seconds_now: float | None
    relative: float | None
    change: str


@dataclass(frozen=True, slots=True)
class Drift:
    """What has become of a model since it was recorded.

    `slowdown` is its time now over then, both over the untuned model; None where there is nothing
    to compare with. `applied` is the share of what was tuned then, by time, that runs from records
    now. `causes` say what else is different.
    """

    slowdown: Ratio | None
    applied: float
    causes: tuple[str, ...] = ()
    kernels: tuple[KernelDrift, ...] = field(default=())

    @property
    def speed(self) -> Ratio | None:
        """The share of the recorded speed that is left: 1 over the slowdown."""
        if self.slowdown is None:
            return None
        ratio = self.slowdown
        return Ratio(1.0 / ratio.ratio, 1.0 / ratio.high, 1.0 / ratio.low)

    def judge(self, require: float) -> tuple[Verdict, str]:
        """Whether `require` of the recorded speed is left, with 95 % confidence, and why."""
        wanted = f"{format_share(require)} is required"
        if self.applied < require:
            text = f"records apply to {format_share(self.applied)} of what was tuned"
            return Verdict.DRIFTED, f"{text}, {wanted}"
        speed = self.speed
        if speed is None:
            return Verdict.UNCLEAR, "no latency of this model is recorded to compare with"
        if speed.is_unchanged:
            return Verdict.HOLDS, "it is the untuned build, unchanged, as it was recorded"
        text = f"{format_share(speed.ratio)} of the recorded speed is left "
        text += f"({format_share(speed.low)} to {format_share(speed.high)})"
        if speed.high < require:
            return Verdict.DRIFTED, f"{text}, {wanted}"
        is_wide = math.log(speed.high / speed.low) / 2.0 > max(WIDE, -math.log(require))
        if is_wide and speed.low < require:
            return Verdict.UNCLEAR, f"{text}, which is too noisy to see {format_share(require)}"
        return Verdict.HOLDS, text


def choose_baseline(
    measured: Iterable[MeasuredModel], target: str, machine: Mapping[str, Any]
) -> MeasuredModel | None:
    """What a model is compared with, of all that is recorded of it (newest first); None without.

    The newest that a job measured on such a machine, else the first that was verified there, else
    the newest of any machine. What met no untuned model cannot be compared.
    """
    usable = [item for item in measured if item.times.over_untuned is not None]
    here = [
        item
        for item in usable
        if item.record.target == target and _is_same_cpu(item.record.machine, machine)
    ]
    of_jobs = [item for item in here if item.record.purpose == "job"]
    if of_jobs:
        return of_jobs[0]
    if here:
        return here[-1]
    return next((item for item in usable if item.record.purpose == "job"), None)


def compare_times(
    before: MeasuredModel | None,
    now: ModelTimes,
    situation: Situation,
    tuned_share: float,
) -> Drift:
    """What has become of a model; `tuned_share` is that of its build now."""
    if before is None:
        return Drift(None, tuned_share)
    former = Situation.of(before)
    is_same = _is_same_cpu(former.machine, situation.machine)
    is_comparable = former.target == situation.target and is_same
    slowdown = slowdown_of(before.times.over_untuned, now.over_untuned) if is_comparable else None
    return Drift(
        slowdown,
        applied_share(before.times, now, tuned_share),
        tuple(causes(former, situation)),
        tuple(kernel_drifts(before.times, now)),
    )


def _is_same_cpu(before: Mapping[str, Any], now: Mapping[str, Any]) -> bool:
    return before.get("cpu", "") in known_as(now.get("cpu", ""))


def slowdown_of(before: Ratio | None, now: Ratio | None) -> Ratio | None:
    """Time now over then, of what was measured over the untuned model each time.

    Two runs of one pair differ by their errors and `BETWEEN_PROCESSES`, unless the model was and
    is the untuned build: that is no measurement.
    """
    if before is None or now is None:
        return None
    if before.is_unchanged and now.is_unchanged:
        return now
    mean = math.log(now.ratio / before.ratio)
    reach = _REACH * math.hypot(deviation(before), deviation(now), BETWEEN_PROCESSES)
    return Ratio(math.exp(mean), math.exp(mean - reach), math.exp(mean + reach))


def deviation(ratio: Ratio) -> float:
    """Standard error of the logarithm, of a ratio with its 95 % interval."""
    return math.log(ratio.high / ratio.low) / (2.0 * _REACH)


def causes(before: Situation, now: Situation) -> list[str]:
    """What is different of machine and compiler, a line each."""
    found = []
    if before.target != now.target:
        found.append(f"another target: {before.target}, now {now.target}; records do not apply")
    if before.compiler_version != now.compiler_version:
        versions = f"{before.compiler_version}, now {now.compiler_version}"
        found.append(
            f"another version of the compiler: {versions}; records are nominees until tune verify "
            "--quick has met them"
        )
    if before.llvm != now.llvm:
        found.append(f"another LLVM: {before.llvm}, now {now.llvm}")
    for name, words in _FACTS.items():
        former, present = before.machine.get(name), now.machine.get(name)
        is_same = former == present or (name == "cpu" and _is_same_cpu(before.machine, now.machine))
        if former is not None and not is_same:
            found.append(f"another {words}: {former or 'none'}, now {present or 'none'}")
    return found


def applied_share(before: ModelTimes, now: ModelTimes, tuned_share: float) -> float:
    """Of the time of the kernels that ran from records then, the share that does so now.

    Where nothing is known of them, that of the build now.
    """
    tuned = {key: kernel for key, kernel in before.kernels.items() if kernel.source == TUNED}
    weights = {key: _weight(before, key, kernel) for key, kernel in tuned.items()}
    total = sum(weights.values())
    if total <= 0.0:
        return tuned_share
    applying = sum(
        weight
        for key, weight in weights.items()
        if key in now.kernels and now.kernels[key].source == TUNED
    )
    return applying / total


def kernel_drifts(before: ModelTimes, now: ModelTimes) -> list[KernelDrift]:
    """Every distinct kernel of both, the costliest first."""
    then, present = _seconds(before), _seconds(now)
    common = [present[key] / then[key] for key in then.keys() & present.keys() if then[key] > 0.0]
    overall = median(common) if common else None
    total = sum(present.values())
    found = []
    for key in dict.fromkeys((*now.kernels, *before.kernels)):
        former, kernel = before.kernels.get(key), now.kernels.get(key)
        relative = None
        if overall and then.get(key) and present.get(key):
            relative = present[key] / then[key] / overall
        found.append(
            KernelDrift(
                key,
                (kernel or former or _UNKNOWN).name,
                former,
                kernel,
                then.get(key),
                present.get(key),
                relative,
                _change(former, kernel, relative, present.get(key, 0.0) / total if total else 0.0),
            )
        )
    return sorted(found, key=lambda item: -(item.seconds_now or item.seconds_before or 0.0))


_UNKNOWN = AppliedKernel("", 0, "", "", None, 0)


def _change(
    before: AppliedKernel | None, now: AppliedKernel | None, relative: float | None, share: float
) -> str:
    """What is different of a kernel that takes this `share` of the model's time, in words."""
    if now is None:
        return "the model has no such kernel any more"
    if before is None:
        return "the model had no such kernel"
    parts = []
    if before.source == TUNED and now.source != TUNED:
        parts.append(f"its record does not apply any more: {now.source}")
    elif before.source != now.source:
        parts.append(f"{before.source}, now {now.source}")
    elif before.schedule != now.schedule:
        parts.append("another schedule, of a later job")
    moved = 0.0 if relative is None else abs(math.log(relative))
    if relative is not None and moved > math.log1p(CHANGED) and moved * share > MATTERS:
        parts.append(
            f"{'slower' if relative > 1 else 'faster'} relative to the others: {relative:.2f}x"
        )
    return "; ".join(parts)


def _weight(times: ModelTimes, key: str, kernel: AppliedKernel) -> float:
    return _seconds(times).get(key) or kernel.occurrences * (kernel.latency or 0.0)


def _seconds(times: ModelTimes) -> dict[str, float]:
    """Seconds of each profiled kernel in a run, by its key."""
    found: defaultdict[str, float] = defaultdict(float)
    for step in times.steps:
        if step.key and step.seconds is not None:
            found[step.key] += step.seconds
    return dict(found)
