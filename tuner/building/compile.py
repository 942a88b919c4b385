"""Compile a model as the settings say, with the code that was made before."""

from __future__ import annotations

from collections.abc import Collection, Sequence

from tunefarm.compiler.content_cache import ContentCache
from tunefarm.compiler.graph.ir import Graph
from tunefarm.compiler.llvm.object_cache import ObjectCache
from tunefarm.compiler.pipeline import Compiled, compile_model
from tunefarm.compiler.plan.decisions.graph_plan import DEFAULT_PLAN, GraphPlan
from tunefarm.compiler.runtime.spec.guards import SizeGuard
from tunefarm.compiler.schedule.choice import ChooseSchedule
from tunefarm.compiler.target import Target
from tunefarm.compiler.types.numerics import Numerics
from tunefarm.configs.settings import Settings, cache_folder
from tunefarm.tuner.from_settings import limits_of, numerics_of


def compile_with(
    graph: Graph,
    choose: ChooseSchedule | None,
    settings: Settings,
    target: Target,
    *,
    fallback: bool = False,
    dump_after: str | None = None,
    dump_kernels: Collection[str] | None = None,
    keep_llvm: bool = False,
    numerics: Numerics | None = None,
    guards: Sequence[SizeGuard] = (),
    plan: GraphPlan | None = DEFAULT_PLAN,
) -> Compiled:
    """Compile a model with the schedules that `choose` gives (None: default schedules).

    `numerics` is that of the settings if None; denormal numbers are as they say. The rest
    is as in `compile_model`; where something is dumped all code is made anew.
    """
    folder = cache_folder(settings) if dump_after is None else None
    cache = None if folder is None else ContentCache(folder)
    objects = None if cache is None else ObjectCache(cache)
    compiled = compile_model(
        graph,
        choose,
        target=target,
        threads=settings.compile.threads,
        dump_after=dump_after,
        dump_kernels=dump_kernels,
        numerics=numerics_of(settings, numerics),
        cache=objects,
        limits=limits_of(settings),
        fallback=fallback,
        keep_llvm=keep_llvm,
        guards=guards,
        plan=plan,
    )
    if cache is not None and objects is not None and objects.misses:
        cache.trim()
    return compiled
