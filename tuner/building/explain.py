"""Why a build runs which schedule: for each kernel the record that was taken, the records that were
not and why, and the one command that would change it.

    conv_relu 89abcdef: tuned, record 12, confirmed here
      left: 31 schedules that were measured here and are slower
      left: 40 records of 1 kernel are for 2 threads
      next: tune verify net.onnx --db tuning.db --quick
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from tunefarm.compiler.errors import with_count
from tunefarm.compiler.runtime.spec.kernel_report import TUNED, KernelReport
from tunefarm.compiler.target import Target
from tunefarm.configs.temporary_folders import temporary_folder
from tunefarm.db import queries
from tunefarm.db.records import LOST_TO_NOISE, OK
from tunefarm.db.store import Store
from tunefarm.tuner.building.flow import build
from tunefarm.tuner.building.record import with_records
from tunefarm.tuner.building.report import BuildReport
from tunefarm.tuner.building.request import BuildRequest, BuildResult
from tunefarm.tuner.from_settings import target_of, targets_of
from tunefarm.tuner.records.applicable_records import ApplicableRecords, Claim, KernelRecords
from tunefarm.tuner.records.unapplied import (
    FAILED,
    NOMINEE,
    TUNE_AGAIN,
    Unapplied,
    Wanted,
    damaged_of,
    unapplied_of,
)
from tunefarm.tuner.reports.report import KEY_CHARACTERS, format_times

SLOWER, NOISY, MET, UNFIT, BETTER = "slower", "noisy", "met", "unfit", "better"
"""Further reasons of `Unapplied.differs`: measured here and slower, or too noisy; nominees that
were met, that do not fit the kernel any more, and that something confirmed goes before."""


@dataclass(frozen=True, slots=True)
class Explanation:
    """What a kernel runs and why, the records that were left, and what to type ("" if nothing).

    `target` is the CPU that it runs on, where the build is for several."""

    kernel: str
    key: str
    target: str
    taken: str
    left: tuple[Unapplied, ...]
    command: str

    @property
    def lines(self) -> list[str]:
        """For people."""
        where = f" for {self.target}" if self.target else ""
        lines = [f"{self.kernel} {self.key[:KEY_CHARACTERS]}{where}: {self.taken}"]
        lines += [f"  left: {item}" for item in self.left]
        return [*lines, f"  next: {self.command}"] if self.command else lines

    def to_json(self) -> dict[str, Any]:
        """As JSON values."""
        left = [item.to_json() for item in self.left]
        target = {"target": self.target} if self.target else {}
        named = {"kernel": self.kernel, "key": self.key, **target, "taken": self.taken}
        return {**named, "left": left, "command": self.command}


@dataclass(frozen=True, slots=True)
class Commands:
    """What would be typed for the model: to check nominees, by the target's CPU, and to tune."""

    verify: Mapping[str, str] = field(default_factory=dict)
    tune: str = ""


NO_COMMANDS = Commands()


def explain_build(
    request: BuildRequest, result: BuildResult, commands: Commands = NO_COMMANDS
) -> list[Explanation]:
    """An explanation of each distinct kernel of a build, of all its programs, the costliest first.

    Raises DatabaseError.
    """
    settings = request.settings
    reports = [(item.target, item.report) for item in result.programs if not item.fallback]
    reports = reports or [(target_of(settings).key, result.report)]

    def explain(store: Store | None) -> list[Explanation]:
        assert store is not None
        found: list[Explanation] = []
        targets = targets_of(settings)
        for target in targets:
            applicable = ApplicableRecords(
                store,
                target,
                settings.compile.threads,
                settings.compile.numerics,
                layers=store.layers,
                accept_nominees=request.accept_nominees,
                thorough=True,
            )
            own = [report for key, report in reports if key == target.key]
            kernels = _costliest_first(own)
            numerics = settings.compile.numerics
            items = [_explain(applicable, target, numerics, k, commands) for k in kernels]
            found += [replace(one, target=target.cpu) for one in items] if targets[1:] else items
        return found

    return with_records(request.databases, explain)


def explain_model(
    request: BuildRequest,
    commands: Commands = NO_COMMANDS,
    notify: Callable[[str], None] = lambda _: None,
) -> list[Explanation]:
    """The same of a build that is made for it, and leaves nothing; `notify` hears of damaged rows.

    The request's output is of no account. Raises TunefarmError for what cannot be built.
    """
    with temporary_folder("why") as folder:
        output = str(folder / f"{request.name}.tuned")
        asked = replace(request, output=output, listed=False)
        result = build(asked)
        for line in result.report.damage:
            notify(line)
        return explain_build(asked, result, commands)


def _costliest_first(reports: Sequence[BuildReport]) -> list[KernelReport]:
    """The kernels of a target's programs, each once."""
    uses = [use for report in reports for use in report.kernels]
    uses.sort(key=lambda use: -use.share)
    return list({use.report.key: use.report for use in uses}.values())


def _explain(
    applicable: ApplicableRecords,
    target: Target,
    precision: str,
    kernel: KernelReport,
    commands: Commands,
) -> Explanation:
    found = applicable.of(kernel.key)
    claims = (*found.nominees, *found.later, *found.met, *found.unfit)
    untuned = {} if found.taken is not None else {kernel.key: kernel.name}
    skipped = {claim.record.key for claim in claims}
    wanted = Wanted(applicable.like, target, precision, "", {kernel.key}, untuned, skipped)
    damaged, others = [], []
    for store in applicable.stores:
        damaged += damaged_of(store, kernel.key)
        where = "" if store is applicable.stores[0] else f" ({store.label})"
        differing = unapplied_of(store, wanted, kernel.key)
        others += [replace(item, reason=f"{item.reason}{where}") for item in differing]
    left = (*_measured_here(applicable, kernel, found), *_claims_left(found), *damaged, *others)
    command = _command(kernel, found, target, commands, damaged)
    taken = _taken(kernel, found)
    if found.taken is None and not left:
        taken += " (no record of this kernel)"
    return Explanation(kernel.title, kernel.key, "", taken, left, command)


def _taken(kernel: KernelReport, found: KernelRecords) -> str:
    if kernel.schedule_source != TUNED or found.taken is None:
        why = f" ({kernel.note})" if kernel.note else ""
        if found.taken is not None and not found.searched:
            why = f" (record {found.taken.record.number}: nothing else was tried)"
        return f"{kernel.schedule_source} schedule{why}"
    record = found.taken.record
    text = f"{kernel.schedule_source}, record {kernel.record_id}, {found.standing}"
    if found.taken.unchanged:
        return f"{text}: the default schedule is the fastest"
    if record.ratio is not None and record.low is not None and record.high is not None:
        times = format_times(record.ratio, record.low, record.high)
        return f"{text}, time relative to {_reference(found.taken)}: {times}"
    return text


def _reference(claim: Claim) -> str:
    """What a record was measured against: the first record of that schedule."""
    record = claim.record
    known = queries.trials_of_schedules(claim.store, record.key, [str(record.reference)])
    return f"record {known[0].number}" if known else f"schedule {record.reference}"


def _measured_here(
    applicable: ApplicableRecords, kernel: KernelReport, found: KernelRecords
) -> Iterator[Unapplied]:
    """The schedules of the first database's own trials that were not taken."""
    counts = queries.statuses(applicable.stores[0], applicable.key(kernel.key), applicable.own)
    is_taken = found.taken is not None and found.taken.store is applicable.stores[0]
    slower = counts.pop(OK, 0) - is_taken
    noisy = sum(counts.pop(status, 0) for status in LOST_TO_NOISE)
    if slower > 0:
        reason = f"{with_count(slower, 'schedule')} measured by this database: slower"
        yield Unapplied((SLOWER,), slower, 1, reason)
    if noisy:
        reason = f"{with_count(noisy, 'schedule')} measured by this database: too noisy to tell"
        yield Unapplied((NOISY,), noisy, 1, reason)
    if counts:
        each = ", ".join(f"{count} {status}" for status, count in sorted(counts.items()))
        total = sum(counts.values())
        reason = f"{with_count(total, 'schedule')} measured by this database failed: {each}"
        yield Unapplied((FAILED,), total, 1, reason)


def _claims_left(found: KernelRecords) -> Iterator[Unapplied]:
    """The records from elsewhere that were not taken."""
    for claim in found.nominees:
        if found.is_tuned and found.standing != NOMINEE:
            yield _left(claim, BETTER, "what was confirmed here goes before it")
        else:
            yield _left(claim, NOMINEE, "not measured on this CPU yet")
    for claim in found.later:
        yield _left(claim, NOMINEE, "others are measured first, or have the same schedule")
    for claim in found.met:
        yield _left(claim, MET, "its schedule was measured here already")
    for claim in found.unfit:
        yield _left(claim, UNFIT, "its schedule does not fit the kernel")


def _left(claim: Claim, differs: str, why: str) -> Unapplied:
    more = f", the best of {claim.trials}" if claim.trials > 1 else ""
    return Unapplied((differs,), claim.trials, 1, f"{_named(claim)}{more}: {why}")


def _named(claim: Claim) -> str:
    return f"record {claim.record.number}, {claim.came_from}"


def _command(
    kernel: KernelReport,
    found: KernelRecords,
    target: Target,
    commands: Commands,
    damaged: Sequence[Unapplied],
) -> str:
    if found.is_open:
        return commands.verify.get(target.cpu, "")
    if found.taken is None or not (found.searched or kernel.schedule_source == TUNED):
        return commands.tune
    advice = next((item.advice for item in damaged), "")
    return commands.tune if advice == TUNE_AGAIN else advice
