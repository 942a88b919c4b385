"""Build a model from the best records of a database, and tell kernel by kernel what was used."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from os import PathLike

from compiler.content_cache import ContentCache
from compiler.graph.ir import Graph
from compiler.kernels.kernel import FusedKernel
from compiler.kernels.workload_key import workload_key
from compiler.llvm.object_cache import ObjectCache
from compiler.pipeline import compile_model
from compiler.runtime.executable_spec import ExecutableSpec
from compiler.schedule.choice import ChooseSchedule, ScheduleChoice
from compiler.target import Target, baseline_target
from configs.settings import Settings, cache_folder
from db.store import Store
from measure.sandbox.import_model import import_model
from tuner.building.apply_best import Records
from tuner.building.build_report import BuildReport, check_share, require_share
from tuner.building.weigh_kernels import build_report
from tuner.limits import limits_of
from tuner.targets import target_of


@dataclass(frozen=True, slots=True)
class CompiledModel:
    """A model's code and how it was built; `kernels` and the `chosen` schedules by workload key."""

    spec: ExecutableSpec
    report: BuildReport
    kernels: Mapping[str, FusedKernel]
    chosen: Mapping[str, ScheduleChoice]


def compile_from(
    model: str | PathLike[str] | Graph,
    store: Store | None,
    settings: Settings,
    shapes: Mapping[str, tuple[int, ...]] | None = None,
    *,
    require_tuned: float = 0.0,
    fallback: bool = False,
) -> CompiledModel:
    """Compile `model` with the best records of `store` (None: default schedules).

    A `fallback` is for what every CPU of the family has, not for the target that the settings name.
    Raises TunefarmError if less than `require_tuned` of the estimated time would run tuned.
    """
    check_share(require_tuned)
    target = baseline_target(target_of(settings)) if fallback else None
    records = Records(store, settings, target)
    compiled = compile_with(model, records.choose, settings, shapes, target, fallback=fallback)
    report = replace(compiled.report, notes=records.notes(compiled.spec.kernels))
    require_share(report, require_tuned)
    return replace(compiled, report=report)


def compile_with(
    model: str | PathLike[str] | Graph,
    choose: ChooseSchedule | None,
    settings: Settings,
    shapes: Mapping[str, tuple[int, ...]] | None = None,
    target: Target | None = None,
    *,
    fallback: bool = False,
) -> CompiledModel:
    """Compile `model` with the schedules that `choose` gives (None: default schedules).

    `target` is the settings' if it is None. `fallback` is as in `compile_model`.
    """
    kernels: dict[str, FusedKernel] = {}
    chosen: dict[str, ScheduleChoice] = {}

    def remember(kernel: FusedKernel) -> ScheduleChoice | None:
        key = workload_key(kernel)
        kernels[key] = kernel
        choice = None if choose is None else choose(kernel)
        if choice is not None:
            chosen[key] = choice
        return choice

    folder, limits = cache_folder(settings), limits_of(settings)
    cache = None if folder is None else ContentCache(folder)
    objects = None if cache is None else ObjectCache(cache)
    spec = compile_model(
        model if isinstance(model, Graph) else import_model(model, shapes, limits),
        remember,
        target=target or target_of(settings),
        threads=settings.compile.threads,
        numerics=settings.compile.numerics,
        cache=objects,
        limits=limits,
        fallback=fallback,
    )
    if cache is not None and objects is not None and objects.misses:
        cache.trim()
    return CompiledModel(spec, build_report(spec.kernels, kernels), kernels, chosen)
