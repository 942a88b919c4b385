"""What a build used, kernel by kernel, as a table and as JSON; how much of the time is tuned."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

from rich.table import Table

from tunefarm.compiler.errors import TunefarmError, with_count
from tunefarm.compiler.runtime.spec.kernel_report import NAIVE, TUNED, KernelReport
from tunefarm.configs.settings import shown_precision
from tunefarm.tuner.records.unapplied import DAMAGED, NOMINEE, Unapplied
from tunefarm.tuner.reports.report import (
    KEY_CHARACTERS,
    format_seconds,
    format_share,
    short_titles,
)

if TYPE_CHECKING:
    from tunefarm.compiler.kernels.kernel import FusedKernel

COLUMNS = "kernel key times share schedule standing record latency precision note".split()
NOMINEE_LEFT = f"{NOMINEE} left"
NOTES_IN_A_HINT = 3
SCALAR_IN_A_NOTE = 3

_NONE: Mapping[str, str] = {}

# A coarse roofline of one core, only to weigh kernels against each other.
_FLOPS_PER_SECOND = 50e9
_BYTES_PER_SECOND = 8e9


@dataclass(frozen=True, slots=True)
class KernelUse:
    """One distinct kernel of a build; `share` is its share of the model's estimated time.

    `standing` says what its schedule rests on: "confirmed here", "confirmed on …", "nominee"
    (`tunefarm.tuner.records.applicable_records`), or where no record applies the schedule's source,
    behind it NOMINEE_LEFT where one was left.
    """

    report: KernelReport
    share: float
    standing: str = ""


@dataclass(frozen=True, slots=True)
class BuildReport:
    """Every distinct kernel, and the share of the estimated time that runs tuned schedules.

    `notes` say which kernels are scalar loops, and what of the database could not be used;
    `unapplied` are the records that were left, which `notes` say too.
    """

    kernels: tuple[KernelUse, ...]
    notes: tuple[str, ...] = ()
    unapplied: tuple[Unapplied, ...] = ()

    @property
    def tuned_share(self) -> float:
        """The share of the estimated time that runs tuned schedules."""
        if not self.kernels:
            return 1.0
        rest = sum(use.share for use in self.kernels if use.report.schedule_source != TUNED)
        return max(0.0, 1.0 - rest)  # exactly 1 if all are tuned, 0 if none is

    @property
    def damage(self) -> list[str]:
        """What is left of the databases because it is damaged, one line each."""
        return [str(item) for item in self.unapplied if DAMAGED in item.differs]

    def to_json(self) -> dict[str, Any]:
        """The report as JSON values."""
        kernels = [
            {**asdict(use.report), "share": use.share, "standing": use.standing}
            for use in self.kernels
        ]
        return {
            "tuned_share": self.tuned_share,
            "notes": list(self.notes),
            "unapplied": [item.to_json() for item in self.unapplied],
            "kernels": kernels,
        }

    @staticmethod
    def from_json(data: Mapping[str, Any]) -> BuildReport:
        """The inverse of `to_json`; `KeyError` or `TypeError` on other JSON."""
        values = [dict(kernel) for kernel in data["kernels"]]
        shares = [(kernel.pop("share"), str(kernel.pop("standing"))) for kernel in values]
        uses = (
            (report, *rest)
            for report, rest in zip(map(KernelReport.from_json, values), shares, strict=True)
        )
        unapplied = tuple(map(Unapplied.from_json, data["unapplied"]))
        kernels = tuple(KernelUse(*use) for use in uses)
        return BuildReport(kernels, tuple(data["notes"]), unapplied)


@dataclass(frozen=True, slots=True)
class ProgramReport:
    """One of several programs of a build: the CPU and the sizes that it is for, and its report."""

    cpu: str
    target: str  # its key
    sizes: str
    fallback: bool
    report: BuildReport

    def __str__(self) -> str:
        kind = f"{self.cpu}, as a fallback" if self.fallback else self.cpu
        return f"{kind}, {self.sizes}" if self.sizes else kind

    def to_json(self) -> dict[str, Any]:
        """The report as JSON values."""
        named = {"cpu": self.cpu, "target": self.target, "sizes": self.sizes}
        return {**named, "fallback": self.fallback, **self.report.to_json()}


def build_report(
    reports: Sequence[KernelReport],
    kernels: Mapping[str, FusedKernel],
    notes: tuple[str, ...] = (),
    unapplied: tuple[Unapplied, ...] = (),
    standings: Mapping[str, str] = _NONE,
) -> BuildReport:
    """The report of a build; `kernels` and `standings` are by workload key, `unapplied` is
    what was left of the database, which goes to the notes.

    A kernel's time is the one that was measured, or an estimate: by a coarse roofline, scaled so
    that it is right on the whole for the kernels that were measured.
    """
    estimates = [_estimated_seconds(kernels[report.key]) for report in reports]
    measured = [(r.latency, e) for r, e in zip(reports, estimates, strict=True) if r.latency]
    scale = sum(m for m, _ in measured) / sum(e for _, e in measured) if measured else 1.0
    seconds = [
        report.occurrences * (report.latency or scale * estimate)
        for report, estimate in zip(reports, estimates, strict=True)
    ]
    total = sum(seconds)
    uses = tuple(
        KernelUse(
            report,
            cost / total if total else 0.0,
            standings.get(report.key, report.schedule_source),
        )
        for report, cost in zip(reports, seconds, strict=True)
    )
    notes = (*_scalar_note(uses), *notes, *map(str, unapplied))
    return BuildReport(uses, notes, unapplied)


def _scalar_note(uses: Sequence[KernelUse]) -> tuple[str, ...]:
    """A line if there are kernels that vectors do nothing for; others say so of naive ones."""
    found = [
        use for use in uses if use.report.not_vectorised and use.report.schedule_source != NAIVE
    ]
    if not found:
        return ()
    found.sort(key=lambda use: -use.share)
    named = [f"{use.report.title}: {use.report.not_vectorised}" for use in found[:SCALAR_IN_A_NOTE]]
    more = f"; and {len(found) - len(named)} more" if len(found) > len(named) else ""
    share = format_share(sum(use.share for use in found))
    kernels = "1 kernel is" if len(found) == 1 else f"{len(found)} kernels are"
    return (f"{kernels} not vectorised ({share} of the estimated time): {'; '.join(named)}{more}",)


def _estimated_seconds(kernel: FusedKernel) -> float:
    from tunefarm.compiler.kernels.count_work import kernel_bytes, kernel_flops  # with NumPy

    return max(kernel_flops(kernel) / _FLOPS_PER_SECOND, kernel_bytes(kernel) / _BYTES_PER_SECOND)


def require_share(report: BuildReport, required: float) -> None:
    """Raise TunefarmError if less than `required` of the estimated time would run tuned."""
    if report.tuned_share < required:
        names = [use.report.title for use in report.kernels if use.report.schedule_source != TUNED]
        more = f" and {len(names) - 5} more" if len(names) > 5 else ""
        wanted = f"tune more: no record applies to {', '.join(names[:5])}{more}"
        left = [str(item) for item in report.unapplied]
        notes = [*left, *(note for note in report.notes if note not in left)]
        raise TunefarmError(
            f"only {format_share(report.tuned_share)} of the model's estimated time is tuned, "
            f"{format_share(required)} is required",
            hint="; ".join([wanted, *notes[:NOTES_IN_A_HINT]]),
        )


def require_verified(report: BuildReport) -> None:
    """Raise TunefarmError if there are records that nobody has met on this CPU, applied or left."""
    names = [use.report.title for use in report.kernels if NOMINEE in use.standing]
    if names:
        more = f" and {len(names) - 5} more" if len(names) > 5 else ""
        raise TunefarmError(
            f"{with_count(len(names), 'kernel')} have records that were not confirmed on this CPU: "
            f"{', '.join(names[:5])}{more}",
            hint="tune verify MODEL --quick measures them against the default schedules",
        )


def build_tables(report: BuildReport, programs: Sequence[ProgramReport] = ()) -> list[Table]:
    """A table for each of several programs, or that of the only one."""
    if not programs:
        return [build_table(report)]
    return [build_table(program.report, f"for {program}") for program in programs]


def build_table(report: BuildReport, title: str | None = None) -> Table:
    """A row per distinct kernel, the costliest first."""
    table = Table(header_style="bold", title=title, title_justify="left", title_style="")
    first, second, *figures, last = COLUMNS
    table.add_column(first, overflow="ellipsis", no_wrap=True, ratio=1)
    table.add_column(second, no_wrap=True)
    for name in figures:
        table.add_column(name, justify="right", no_wrap=True)
    table.add_column(last, overflow="fold")
    uses = _costliest_first(report)
    titles = short_titles([use.report.title for use in uses])
    for name, use in zip(titles, uses, strict=True):
        table.add_row(name, *_cells(use))
    return table


def _costliest_first(report: BuildReport) -> list[KernelUse]:
    return sorted(report.kernels, key=lambda use: -use.share)


def _cells(use: KernelUse) -> tuple[str, ...]:
    """A kernel's figures, by `COLUMNS` but the first."""
    kernel = use.report
    return (
        kernel.key[:KEY_CHARACTERS],
        str(kernel.occurrences),
        format_share(use.share),
        kernel.schedule_source,
        use.standing,
        kernel.record_id or "-",
        "-" if kernel.latency is None else format_seconds(kernel.latency),
        shown_precision(kernel.numerics),
        _note(kernel),
    )


def _note(kernel: KernelReport) -> str:
    why = f"not vectorised: {kernel.not_vectorised}" if kernel.not_vectorised else ""
    return "; ".join(filter(None, (kernel.note, why)))
