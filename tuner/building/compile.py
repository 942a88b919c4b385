"""Compile a model with schedules that are chosen for it, and report kernel by kernel."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from compiler.content_cache import ContentCache
from compiler.graph.ir import Graph
from compiler.kernels.kernel import FusedKernel
from compiler.kernels.workload_key import workload_key
from compiler.llvm.object_cache import ObjectCache
from compiler.pipeline import compile_model
from compiler.runtime.executable_spec import ExecutableSpec
from compiler.schedule.choice import ChooseSchedule, ScheduleChoice
from compiler.target import Target
from configs.settings import Settings, cache_folder
from tuner.building.report import BuildReport, build_report
from tuner.from_settings import limits_of


@dataclass(frozen=True, slots=True)
class CompiledModel:
    """A model's code and how it was built; `kernels` and the `chosen` schedules by workload key."""

    spec: ExecutableSpec
    report: BuildReport
    kernels: Mapping[str, FusedKernel]
    chosen: Mapping[str, ScheduleChoice]


def compile_with(
    graph: Graph,
    choose: ChooseSchedule | None,
    settings: Settings,
    target: Target,
    *,
    fallback: bool = False,
    dump_after: str | None = None,
) -> CompiledModel:
    """Compile a model with the schedules that `choose` gives (None: default schedules).

    `fallback` and `dump_after` are as in `compile_model`; with the latter all code is made anew.
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

    folder = cache_folder(settings) if dump_after is None else None
    cache = None if folder is None else ContentCache(folder)
    objects = None if cache is None else ObjectCache(cache)
    spec = compile_model(
        graph,
        remember,
        target=target,
        threads=settings.compile.threads,
        dump_after=dump_after,
        numerics=settings.compile.numerics,
        cache=objects,
        limits=limits_of(settings),
        fallback=fallback,
    )
    if cache is not None and objects is not None and objects.misses:
        cache.trim()
    return CompiledModel(spec, build_report(spec.kernels, kernels), kernels, chosen)
