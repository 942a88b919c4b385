"""Programs of a model at one stage of the pipeline, as text."""

from __future__ import annotations

import difflib
from collections.abc import Callable, Mapping
from os import PathLike
from typing import TypeAlias

from compiler.errors import SettingsError
from compiler.graph.ir import Graph
from compiler.kernels.kernel import FusedKernel
from compiler.kernels.printer import format_kernel
from compiler.limits import Limits
from compiler.llvm.emit_kernel import emit_kernel
from compiler.llvm.machine import assembly
from compiler.loops.printer import format_loops
from compiler.pipeline import kernels_of
from compiler.schedule.apply_schedule import lower
from compiler.schedule.choice import ChooseSchedule
from compiler.schedule.schedule import Schedule
from compiler.schedule.spaces import default_schedule, schedule_space
from compiler.target import Target
from configs.settings import CompileSettings, Settings
from db.store import Store
from measure.sandbox.import_model import import_model
from tuner.building.apply_best import choose_from
from tuner.from_settings import limits_of, target_of
from tuner.search.make_tasks import distinct_kernels

Model: TypeAlias = str | PathLike[str]
Shapes: TypeAlias = Mapping[str, tuple[int, ...]] | None

STAGES = ("graph", "kernels", "space", "loops", "llvm", "asm")


def inspect_model(
    model: Model,
    stage: str,
    settings: Settings,
    *,
    kernel: str | None = None,
    shapes: Shapes = None,
    store: Store | None = None,
) -> str:
    """The program after `stage` (see `STAGES`) of all kernels, or of those that `kernel` names.

    `kernel` is a name, a key or the start of a key.

    Kernels are lowered with the best schedule of `store`, else with the default one. Raises
    SettingsError for an unknown stage or kernel, and for a kernel of the graph.
    """
    if stage not in STAGES:
        near = difflib.get_close_matches(stage, STAGES, n=1)
        hint = f"did you mean {near[0]}?" if near else f"stages: {', '.join(STAGES)}"
        raise SettingsError(f"unknown stage {stage!r}", hint=hint)
    if stage == "graph" and kernel is not None:
        raise SettingsError("the graph has no kernels yet", hint="choose a later stage")
    target, threads = target_of(settings), settings.compile.threads
    limits = limits_of(settings)
    graph = import_model(model, shapes, limits)
    if stage == "graph":
        return _graph(graph, target, limits)
    choose: ChooseSchedule | None = None
    if store is not None:
        choose = choose_from(store, target, threads, settings.compile.numerics)
    show = _printer(stage, target, settings.compile, choose)
    program = kernels_of(graph, target, limits=limits)
    found = {key: (item, times) for key, (item, times) in distinct_kernels(program).items()}
    chosen = _select({key: item for key, (item, _) in found.items()}, kernel)
    return "\n\n".join(
        f"# {item.name} <{key}>, {found[key][1]} times\n{show(item)}"
        for key, item in chosen.items()
    )


def _graph(graph: Graph, target: Target, limits: Limits) -> str:
    dumped: dict[str, str] = {}
    kernels_of(graph, target, dump_after=dumped.__setitem__, limits=limits)
    return dumped["optimise"]


def _select(kernels: Mapping[str, FusedKernel], wanted: str | None) -> Mapping[str, FusedKernel]:
    if wanted is None:
        return kernels
    found = {
        key: item
        for key, item in kernels.items()
        if wanted == item.name or (len(wanted) >= 4 and key.startswith(wanted))
    }
    if not found:
        names = [*kernels, *(item.name for item in kernels.values())]
        near = difflib.get_close_matches(wanted, names, n=1)
        hint = f"did you mean {near[0]}?" if near else "tune inspect --stage kernels lists them"
        raise SettingsError(f"the model has no kernel {wanted!r}", hint=hint)
    return found


def _printer(
    stage: str, target: Target, options: CompileSettings, choose: ChooseSchedule | None
) -> Callable[[FusedKernel], str]:
    def schedule(kernel: FusedKernel) -> Schedule:
        choice = None if choose is None else choose(kernel)
        if choice is not None:
            return choice.schedule
        return default_schedule(kernel, target, options.threads, options.numerics)

    def loops(kernel: FusedKernel) -> str:
        return format_loops(lower(kernel, schedule(kernel)))

    def llvm(kernel: FusedKernel) -> str:
        text, _ = emit_kernel(lower(kernel, schedule(kernel)), target, "kernel")
        return text

    return {
        "kernels": format_kernel,
        "space": lambda kernel: format_space(kernel, target, options),
        "loops": loops,
        "llvm": llvm,
        "asm": lambda kernel: assembly(llvm(kernel), target),
    }[stage]


def format_space(kernel: FusedKernel, target: Target, options: CompileSettings) -> str:
    """The sketches and choices of a kernel's schedule space; the default's values are marked."""
    space = schedule_space(kernel, target, options.threads, options.numerics)
    lines = [f"{space.size} schedules"]
    for sketch in space.sketches:
        lines.append(f"sketch {sketch.name}: {sketch.size} schedules")
        for choice, default in zip(sketch.choices, sketch.default, strict=True):
            values = " ".join(
                f"[{_text(value)}]" if value == default else _text(value) for value in choice.values
            )
            lines.append(f"  {choice.name}: {values}")
    return "\n".join(lines)


def _text(value: object) -> str:
    return "x".join(map(str, value)) if isinstance(value, tuple) else str(value)
