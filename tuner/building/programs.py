"""The programs of a build: for the CPUs of `--targets`, and for several sizes of their inputs.

    sizes    x  targets   ->  a program each, from the records of its target
    programs              ->  one artifact, the best CPU's first; or one C library

A program is what a build of that target and these sizes alone would be; most builds have one.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from tunefarm.compiler.errors import SettingsError, TunefarmError
from tunefarm.compiler.graph.serialize import structural_hash
from tunefarm.compiler.pipeline import Compiled
from tunefarm.compiler.runtime.machine.check_target import platform_of
from tunefarm.compiler.runtime.spec.executable_spec import ExecutableSpec
from tunefarm.compiler.runtime.spec.guards import SizeGuard, sizes_text
from tunefarm.compiler.target import Target
from tunefarm.tuner.building.apply_best import Records
from tunefarm.tuner.building.lowered import (
    LoweredModel,
    compile_with,
    keep_choice,
    lower_model,
    overflow_note,
)
from tunefarm.tuner.building.model_file import other_file
from tunefarm.tuner.building.report import BuildReport, ProgramReport, build_report
from tunefarm.tuner.building.request import CODE_TEXTS, OF_SEVERAL, BuildRequest
from tunefarm.tuner.building.size_plan import range_programs, size_plan
from tunefarm.tuner.building.size_values import guards_of, programs_of
from tunefarm.tuner.from_settings import fallback_targets, targets_of

if TYPE_CHECKING:
    from tunefarm.compiler.graph.ir import Graph
    from tunefarm.compiler.kernels.kernel import FusedKernel
    from tunefarm.compiler.schedule.schedule import ScheduleChoice
    from tunefarm.compiler.types.extents import Shapes
    from tunefarm.db.store import Store


@dataclass(frozen=True, slots=True)
class Program:
    """A built program, what is reported of it, and what was chosen for each of its kernels.

    `compiled` is there for forms that are code or a graph as text: for others its constants, which
    are not packed, would stay in memory next to those of further programs.
    """

    spec: ExecutableSpec
    report: BuildReport
    kernels: Mapping[str, FusedKernel]
    chosen: Mapping[str, ScheduleChoice | None]
    compiled: Compiled | None

    @property
    def reported(self) -> ProgramReport:
        """The report, with what the program is for."""
        spec = self.spec
        sizes = sizes_text(spec.guards)
        return ProgramReport(spec.target.cpu, spec.target.key, sizes, spec.fallback, self.report)


def build_programs(
    request: BuildRequest, store: Store | None, read: Callable[[Shapes], Graph]
) -> tuple[str, list[Program]]:
    """The hash of the model, and every program of the request: the best target's first, fallbacks
    last. `read` imports the model with these shapes.

    Raises TunefarmError, also for targets of which one can never be chosen.
    """
    targets = targets_of(request.settings)
    check_reachable(targets)
    sizes = programs_of(request.shapes)
    precision = replace(request.precision, several=len(sizes) > 1)
    request = replace(request, precision=precision)
    graphs = [read(item.shapes) for item in sizes]
    built = [
        program
        for graph, guards in zip(graphs, guards_of(graphs, sizes), strict=True)
        for target in targets
        for program in _build(request, graph, guards, target, targets, store)
    ]
    places = [(program.spec.fallback, program.spec.target) for program in built]
    built.sort(key=lambda item: (item.spec.fallback, places.index(_place(item))))
    return structural_hash(graphs[0]), built


def _place(program: Program) -> tuple[bool, Target]:
    return program.spec.fallback, program.spec.target


def _build(
    request: BuildRequest,
    graph: Graph,
    guards: Sequence[SizeGuard],
    target: Target,
    targets: Sequence[Target],
    store: Store | None,
) -> list[Program]:
    """The programs of a graph for one of the targets and, where asked for, its fallbacks."""
    lowered = lower_model(graph, request.settings, request.precision, target, store)
    others = _fallbacks(target, targets) if request.fallback else ()
    programs = list(_programs(request, graph, lowered, guards, target, store))
    for other in others:
        programs += _programs(request, graph, lowered, guards, other, store, fallback=True)
    if lowered.chosen is not None and store is not None:
        note = keep_choice(lowered.chosen, request.name, graph, request.settings, target)
        first, *rest = programs
        report = replace(first.report, notes=(*first.report.notes, *filter(None, [note])))
        programs = [replace(first, report=report), *rest]
    return programs


def _programs(
    request: BuildRequest,
    graph: Graph,
    lowered: LoweredModel,
    guards: Sequence[SizeGuard],
    target: Target,
    store: Store | None,
    *,
    fallback: bool = False,
) -> Iterator[Program]:
    """The programs of a graph for a target, with its best records: one for each range of sizes."""
    settings, accept = request.settings, request.accept_nominees
    model_hash = structural_hash(graph)
    records = Records(store, settings, target, model_hash, accept_nominees=accept)
    plan, left = None, tuple[str, ...]()
    is_one = request.form not in OF_SEVERAL or request.dump_after is not None
    if not (is_one or fallback or graph.is_fixed):
        plan, left = size_plan(store, model_hash, settings, target, accept_nominees=accept)
    for item in range_programs(plan, lowered.graph, guards, records.choose):
        built = compile_with(
            lowered.graph,
            item.choose,
            settings,
            target,
            fallback=fallback,
            dump_after=None if fallback else request.dump_after,
            numerics=lowered.numerics,
            keep_llvm=request.form in CODE_TEXTS,
            guards=item.guards,
            to_write=True,
        )
        uses = built.spec.kernels
        text = [lowered.note, overflow_note(graph, built, settings), graph.structure.prefix.note]
        notes = (*filter(None, text), *left, *records.notes(uses))
        others = other_file(store, request.model)
        unapplied = () if fallback else (*others, *records.unapplied(uses))
        standings = records.standings_of(uses)
        report = build_report(uses, built.kernels, notes, unapplied, standings)
        compiled = None if request.form in OF_SEVERAL else built
        program = Program(built.spec, report, built.kernels, built.chosen, compiled)
        del built, compiled  # whose constants, not packed, would stay next to the next ones'
        yield program


def check_each(request: BuildRequest, programs: Sequence[ProgramReport]) -> None:
    """Raise TunefarmError unless every program but fallbacks is what is required, naming those that
    are not where there are several."""
    asked = [program for program in programs if not program.fallback]
    if len(asked) == 1:
        request.check(asked[0].report)
        return
    failed: list[str] = []
    hints: list[str] = []
    for program in asked:
        try:
            request.check(program.report)
        except TunefarmError as error:
            failed.append(f"for {program}: {error.message}")
            hints.append(error.hint)
    if failed:
        raise TunefarmError("; ".join(failed), hint=hints[0])


def check_reachable(targets: Sequence[Target]) -> None:
    """Raise SettingsError for a target whose code no CPU would run: another one comes before it."""
    for number, target in enumerate(targets):
        for better in targets[:number]:
            same = platform_of(better) == platform_of(target)
            if same and set(better.features) <= set(target.features):
                raise SettingsError(
                    f"code for {target.cpu} would never run: every CPU that can run it runs that "
                    f"for {better.cpu}, which needs no other features",
                    hint="name one of the two",
                )


def _fallbacks(target: Target, targets: Sequence[Target]) -> tuple[Target, ...]:
    """The ladder below the best target of a family of CPUs, without what is built anyway; none
    below the others."""
    family = [other for other in targets if platform_of(other) == platform_of(target)]
    if target != family[0]:
        return ()
    taken = [set(other.features) for other in targets]
    return tuple(other for other in fallback_targets(target) if set(other.features) not in taken)
