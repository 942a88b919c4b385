"""Build a model from the best records of a database, and tell kernel by kernel what was used."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from os import PathLike
from typing import Any

from rich.table import Table

from compiler.errors import SettingsError, TunefarmError
from compiler.graph.ir import Graph
from compiler.kernels.count_work import kernel_bytes, kernel_flops
from compiler.kernels.kernel import FusedKernel
from compiler.kernels.workload_key import workload_key
from compiler.llvm.object_cache import ObjectCache
from compiler.pipeline import compile_model
from compiler.runtime.executable_spec import ExecutableSpec, KernelReport
from compiler.schedule.choice import ChooseSchedule, ScheduleChoice
from compiler.target import Target, host_target
from configs.settings import Settings, cache_folder, load_target
from db.store import Store
from measure.import_model import import_model
from tuner.apply_best import TUNED, choose_from, task_key
from tuner.records import unusable
from tuner.report import KEY_CHARACTERS, format_seconds, format_share

# A coarse roofline of one core, only to weigh kernels against each other.
_FLOPS_PER_SECOND = 50e9
_BYTES_PER_SECOND = 8e9


@dataclass(frozen=True, slots=True)
class KernelUse:
    """One distinct kernel of a build; `share` is its share of the model's estimated time."""

    report: KernelReport
    share: float


@dataclass(frozen=True, slots=True)
class BuildReport:
    """Every distinct kernel, and the share of the estimated time that runs tuned schedules.

    `notes` say what of the database could not be used.
    """

    kernels: tuple[KernelUse, ...]
    notes: tuple[str, ...] = ()

    @property
    def tuned_share(self) -> float:
        if not self.kernels:
            return 1.0
        return sum(use.share for use in self.kernels if use.report.schedule_source == TUNED)

    def to_json(self) -> dict[str, Any]:
        """The report as JSON values."""
        kernels = [{**asdict(use.report), "share": use.share} for use in self.kernels]
        return {"tuned_share": self.tuned_share, "notes": list(self.notes), "kernels": kernels}


def target_of(settings: Settings) -> Target:
    """The target that the settings name; this machine if none."""
    if settings.compile.target is None:
        return host_target()
    named = load_target(settings.compile.target)
    return Target(**named.model_dump())


def compile_from(
    model: str | PathLike[str] | Graph,
    store: Store | None,
    settings: Settings,
    shapes: Mapping[str, tuple[int, ...]] | None = None,
    *,
    require_tuned: float = 0.0,
    chosen: dict[str, ScheduleChoice] | None = None,
    target: Target | None = None,
) -> tuple[ExecutableSpec, BuildReport]:
    """Compile `model` with the best records of `store` (None: default schedules).

    `chosen` gets the schedules that were chosen for kernels, by workload key. `target` is built
    for instead of the one that the settings name. Raises TunefarmError if less than
    `require_tuned` of the estimated time would run tuned.
    """
    if not 0.0 <= require_tuned <= 1.0:
        raise SettingsError(f"require_tuned = {require_tuned}: must be between 0 and 1")
    choose = None
    notes: tuple[str, ...] = ()
    target = target or target_of(settings)
    if store is not None:
        threads = settings.compile.threads
        choose = choose_from(store, target, threads, settings.compile.numerics, predict=True)
        notes = tuple(unusable(store, task_key("", target, threads, settings.compile.numerics)))
    spec, report = compile_with(model, choose, settings, shapes, chosen, target)
    report = replace(report, notes=notes)
    if report.tuned_share < require_tuned:
        raise TunefarmError(
            f"only {format_share(report.tuned_share)} of the model's estimated time is tuned, "
            f"{format_share(require_tuned)} is required",
            hint=f"tune more: {untuned_names(report)} have no record",
        )
    return spec, report


def compile_with(
    model: str | PathLike[str] | Graph,
    choose: ChooseSchedule | None,
    settings: Settings,
    shapes: Mapping[str, tuple[int, ...]] | None = None,
    chosen: dict[str, ScheduleChoice] | None = None,
    target: Target | None = None,
) -> tuple[ExecutableSpec, BuildReport]:
    """Compile `model` with the schedules that `choose` gives (None: default schedules).

    `chosen` gets these, by workload key. `target` is the settings' if it is None.
    """
    kernels: dict[str, FusedKernel] = {}

    def remember(kernel: FusedKernel) -> ScheduleChoice | None:
        key = workload_key(kernel)
        kernels[key] = kernel
        choice = None if choose is None else choose(kernel)
        if choice is not None and chosen is not None:
            chosen[key] = choice
        return choice

    folder = cache_folder(settings)
    cache = None if folder is None else ObjectCache(folder)
    spec = compile_model(
        model if isinstance(model, Graph) else import_model(model, shapes),
        remember,
        target=target or target_of(settings),
        threads=settings.compile.threads,
        numerics=settings.compile.numerics,
        cache=cache,
    )
    if cache is not None and cache.misses:
        cache.trim()
    return spec, _report(spec.kernels, kernels)


def untuned_names(report: BuildReport) -> str:
    """The kernels without a record, a few by name."""
    names = [use.report.name for use in report.kernels if use.report.schedule_source != TUNED]
    more = f" and {len(names) - 5} more" if len(names) > 5 else ""
    return ", ".join(names[:5]) + more


def build_table(report: BuildReport) -> Table:
    """A row per distinct kernel, the costliest first."""
    table = Table(header_style="bold")
    table.add_column("kernel", overflow="ellipsis", no_wrap=True, ratio=1)
    table.add_column("key", no_wrap=True)
    for name in ("times", "share", "schedule", "record", "latency"):
        table.add_column(name, justify="right", no_wrap=True)
    table.add_column("note", overflow="fold")
    for use in sorted(report.kernels, key=lambda use: -use.share):
        kernel = use.report
        table.add_row(
            kernel.name,
            kernel.key[:KEY_CHARACTERS],
            str(kernel.occurrences),
            format_share(use.share),
            kernel.schedule_source,
            kernel.record_id or "-",
            "-" if kernel.latency is None else format_seconds(kernel.latency),
            kernel.note,
        )
    return table


def _report(reports: Sequence[KernelReport], kernels: Mapping[str, FusedKernel]) -> BuildReport:
    seconds = [report.occurrences * _estimated_seconds(kernels[report.key]) for report in reports]
    total = sum(seconds)
    return BuildReport(
        tuple(
            KernelUse(report, cost / total if total else 0.0)
            for report, cost in zip(reports, seconds, strict=True)
        )
    )


def _estimated_seconds(kernel: FusedKernel) -> float:
    return max(kernel_flops(kernel) / _FLOPS_PER_SECOND, kernel_bytes(kernel) / _BYTES_PER_SECOND)
