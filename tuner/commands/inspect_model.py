"""Programs of a model at one stage of the pipeline, as text."""

from __future__ import annotations

import difflib
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from os import PathLike
from typing import Any, TypeAlias

from tunefarm.compiler.errors import SettingsError
from tunefarm.compiler.kernel_stages import ChosenSchedule, KernelStages
from tunefarm.compiler.kernels.kernel import FusedKernel, KernelCall
from tunefarm.compiler.kernels.printer import format_kernel
from tunefarm.compiler.limits import ResourceBudget
from tunefarm.compiler.llvm.machine import assembly
from tunefarm.compiler.loops.ir import LoopNest
from tunefarm.compiler.loops.thread_shares import shares_of, shares_text, total_efficiency
from tunefarm.compiler.pipeline import STAGES, kernels_of
from tunefarm.compiler.schedule.schedule import ChooseSchedule
from tunefarm.compiler.schedule.spaces import SpaceCache, schedule_space
from tunefarm.compiler.stages import Stages, check_stage, format_program
from tunefarm.compiler.target import Target
from tunefarm.compiler.types.extents import Shapes
from tunefarm.configs.settings import CompileSettings, Settings
from tunefarm.db.store import Store
from tunefarm.measure.sandbox.import_model import import_model
from tunefarm.tuner.building.apply_best import Records
from tunefarm.tuner.building.lowered import compile_with, lower_model
from tunefarm.tuner.calibration.options import CHOSEN, PrecisionOptions
from tunefarm.tuner.commands.inspect_cli import VARIANTS
from tunefarm.tuner.from_settings import limits_of, target_of
from tunefarm.tuner.search.make_tasks import nodes_of

Model: TypeAlias = str | PathLike[str]

PROGRAMS = ("graph", "kernels", "space", "loops", "shares", "llvm", "asm")
STAGES_TO_INSPECT = (*PROGRAMS, VARIANTS)


def inspect_model(
    model: Model,
    stage: str,
    settings: Settings,
    *,
    kernel: str | None = None,
    shapes: Shapes | None = None,
    store: Store | None = None,
    dump_after: str | None = None,
) -> str:
    """The program after `stage` of all kernels, or of those that `kernel` names.

    `stage` is one of PROGRAMS; `kernel` a name, a key, the start of a key or the name of a node.
    They are lowered with the best schedules of `store`, else with the default ones, and where these
    do not fit as a build does. `dump_after` is as in `compile_with`; of single kernels those are
    dumped that `kernel` names. Raises SettingsError for an unknown stage or kernel, and for a
    kernel of the graph.
    """
    _check_request(stage, kernel, dump_after)
    target, options, limits = target_of(settings), settings.compile, limits_of(settings)
    imported = import_model(model, shapes, limits)
    lowered = lower_model(imported, settings, PrecisionOptions(), target, store)
    graph = lowered.graph
    if options.numerics in CHOSEN:  # which the graph has by now
        options = options.model_copy(update={"numerics": "default"})
    texts: dict[str, str] = {}
    observe = texts.__setitem__ if stage == "graph" else None
    numerics, threads = lowered.numerics, options.threads
    program = kernels_of(graph, target, None, observe, limits, numerics, threads=threads)
    calls = program.kernel_calls()
    selected, nodes = _select(calls, kernel), nodes_of(program)
    choose: ChooseSchedule | None = None
    if store is not None:
        choose = Records(store, settings, target).choose
    if dump_after is not None:
        compile_with(
            graph,
            choose,
            settings,
            target,
            dump_after=dump_after,
            dump_kernels=selected,
            numerics=numerics,
        )
    if stage == "graph":
        return texts["optimise"]
    if stage == "shares":
        loops = _lowered("loops", target, options, choose, ResourceBudget(limits))
        counts = {key: len(calls[key]) for key in selected}
        return _shares_text(selected, counts, loops, options.threads)
    show = _printer(stage, target, options, choose, ResourceBudget(limits))
    return "\n\n".join(
        f"{_heading(item, key, len(calls[key]), nodes[key])}\n{show(key, item)}"
        for key, item in selected.items()
    )


def _check_request(stage: str, kernel: str | None, dump_after: str | None) -> None:
    """Raise SettingsError for an unknown stage, and for a kernel of a stage that has none."""
    if stage not in PROGRAMS:
        near = difflib.get_close_matches(stage, STAGES_TO_INSPECT, n=1)
        hint = f"did you mean {near[0]}?" if near else f"stages: {', '.join(STAGES_TO_INSPECT)}"
        raise SettingsError(f"unknown stage {stage!r}", hint=hint)
    if stage == "graph" and kernel is not None:
        raise SettingsError("the graph has no kernels yet", hint="choose a later stage")
    if dump_after is not None:
        check_stage(dump_after, STAGES)


def _heading(kernel: FusedKernel, key: str, calls: int, nodes: str) -> str:
    return f"# {kernel.name} <{key}>, {calls} times{nodes and f': {nodes}'}"


def _select(
    calls: Mapping[str, Sequence[KernelCall]], wanted: str | None
) -> Mapping[str, FusedKernel]:
    """The kernels with this name or key, or that compute a node with this name."""
    kernels = {key: uses[0].kernel for key, uses in calls.items()}
    if wanted is None:
        return kernels
    found = {
        key: item
        for key, item in kernels.items()
        if wanted == item.name
        or (len(wanted) >= 4 and key.startswith(wanted))
        or any(wanted in call.sources for call in calls[key])
    }
    if not found:
        names = [*kernels, *(item.name for item in kernels.values())]
        near = difflib.get_close_matches(wanted, names, n=1)
        hint = f"did you mean {near[0]}?" if near else "tune inspect --stage kernels lists them"
        raise SettingsError(f"the model has no kernel {wanted!r}", hint=hint)
    return found


def _printer(
    stage: str,
    target: Target,
    options: CompileSettings,
    choose: ChooseSchedule | None,
    allowance: ResourceBudget,
) -> Callable[[str, FusedKernel], str]:
    """What shows a kernel, given its workload key and the kernel itself, after `stage`."""
    if stage == "kernels":
        return lambda key, kernel: format_kernel(kernel)
    if stage == "space":
        return lambda key, kernel: format_space(kernel, target, options)
    lowered = _lowered("llvm" if stage == "asm" else stage, target, options, choose, allowance)

    def show(key: str, kernel: FusedKernel) -> str:
        text = format_program(lowered(key, kernel))
        return assembly(text, target) if stage == "asm" else text

    return show


def _lowered(
    made_by: str,
    target: Target,
    options: CompileSettings,
    choose: ChooseSchedule | None,
    allowance: ResourceBudget,
) -> Callable[[str, FusedKernel], Any]:
    """What makes a kernel's program after a stage."""
    stages = Stages(STAGES, keep=(made_by,))
    kernels = KernelStages(stages, SpaceCache(target, options.threads, options.numerics), allowance)

    def lowered(key: str, kernel: FusedKernel) -> Any:
        chosen = ChosenSchedule(kernel, None if choose is None else choose(kernel))
        kernels.lower(key, "kernel", partial(kernels.first, key, chosen))
        return stages.kept[made_by].pop(key)

    return lowered


def _shares_text(
    kernels: Mapping[str, FusedKernel],
    calls: Mapping[str, int],
    loops: Callable[[str, FusedKernel], LoopNest],
    threads: int,
) -> str:
    """How evenly threads share each kernel, and all of them together."""
    found = {key: shares_of(loops(key, kernel), threads) for key, kernel in kernels.items()}
    total = total_efficiency((shares, calls[key]) for key, shares in found.items())
    texts = [
        f"# {kernels[key].name} <{key}>, {calls[key]} times\n{shares_text(shares)}"
        for key, shares in found.items()
    ]
    return "\n\n".join([*texts, f"# all: {total:.1%} of the ideal of {threads} threads"])


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
