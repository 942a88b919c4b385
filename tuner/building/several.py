"""Models in several programs: for the CPUs of `--targets`, and for several sizes of their inputs.

    sizes    x  targets   ->  a program each, from the records of its target
    programs              ->  one artifact, the best CPU's first; or one C library

A program is what a build of that target and these sizes alone would be.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from tunefarm.compiler.errors import SettingsError, TunefarmError
from tunefarm.compiler.graph.serialize import structural_hash
from tunefarm.compiler.runtime.artefact.file_header import digest_of
from tunefarm.compiler.runtime.artefact.write_artefact import save
from tunefarm.compiler.runtime.machine.check_target import platform_of
from tunefarm.compiler.runtime.spec.executable_spec import ExecutableSpec
from tunefarm.compiler.runtime.spec.guards import SizeGuard, sizes_text
from tunefarm.compiler.target import Target
from tunefarm.compiler.types.large_arrays import kept
from tunefarm.measure.sandbox.import_model import import_model
from tunefarm.tuner.building.apply_best import Records
from tunefarm.tuner.building.lowered import compile_with, keep_choice, lower_model, overflow_note
from tunefarm.tuner.building.model_file import other_file
from tunefarm.tuner.building.report import BuildReport, ProgramReport, build_report
from tunefarm.tuner.building.request import (
    ARTEFACT,
    OF_SEVERAL,
    BuildRequest,
    BuildResult,
    built_artefact,
)
from tunefarm.tuner.building.size_plan import range_programs, size_plan
from tunefarm.tuner.building.size_values import guards_of, programs_of
from tunefarm.tuner.from_settings import fallback_targets, limits_of, targets_of

if TYPE_CHECKING:
    from tunefarm.compiler.graph.ir import Graph
    from tunefarm.db.store import Store


@dataclass(frozen=True, slots=True)
class _Program:
    """A built program, and what is reported of it."""

    spec: ExecutableSpec
    report: BuildReport


def build_several(
    request: BuildRequest, store: Store | None, graph: Graph | None = None
) -> BuildResult:
    """Build every program of the request and write them in its form.

    `graph` is the model, if it was read before and is asked for at one size. Raises TunefarmError,
    also for targets of which one can never be chosen.
    """
    targets = targets_of(request.settings)
    check_reachable(targets)
    others = _fallbacks(targets) if request.fallback else ()
    sizes, limits = programs_of(request.shapes), limits_of(request.settings)
    precision = replace(request.precision, several=len(sizes) > 1)
    request = replace(request, precision=precision)
    graphs = [graph or import_model(request.model, item.shapes, limits) for item in sizes]
    built = [
        program
        for each, guards in zip(graphs, guards_of(graphs, sizes), strict=True)
        for target in (*targets, *others)
        for program in _build(request, each, guards, target, target in others, store)
    ]
    order = [(target, False) for target in targets] + [(target, True) for target in others]
    built.sort(key=lambda item: order.index((item.spec.target, item.spec.fallback)))
    specs = [item.spec for item in built]
    reports = tuple(map(_text, built))
    check_each(request, reports)
    first = reports[0].report
    if request.form != ARTEFACT:
        from tunefarm.tuner.building.emit import write_programs

        files, command = write_programs(request, specs)
        return BuildResult(request.form, request.output, files, first, command, programs=reports)
    save(specs[0], request.output, specs[1:])
    digest = digest_of(request.output)
    result = built_artefact(request.output, first, structural_hash(graphs[0]), digest, None)
    return replace(result, programs=reports)


def _build(
    request: BuildRequest,
    graph: Graph,
    guards: Sequence[SizeGuard],
    target: Target,
    fallback: bool,
    store: Store | None,
) -> list[_Program]:
    """The programs of a graph for a target, with its best records: one for each range of sizes."""
    settings = request.settings
    lowered = lower_model(graph, settings, request.precision, target, store)
    model_hash = structural_hash(graph)
    records = Records(store, settings, target, model_hash, accept_nominees=request.accept_nominees)
    plan = None
    if request.form in OF_SEVERAL and not fallback:
        plan, _ = size_plan(
            store, model_hash, settings, target, accept_nominees=request.accept_nominees
        )
    programs = []
    for item in range_programs(plan, lowered.graph, guards, records.choose):
        built = compile_with(
            lowered.graph,
            item.choose,
            settings,
            target,
            fallback=fallback,
            numerics=lowered.numerics,
            guards=item.guards,
        )
        kernels = built.spec.kernels
        text = [lowered.note, overflow_note(graph, built, settings), graph.structure.prefix.note]
        notes = (*filter(None, text), *records.notes(kernels))
        others = other_file(store, request.model)
        unapplied = () if fallback else (*others, *records.unapplied(kernels))
        standings = records.standings_of(kernels)
        report = build_report(kernels, built.kernels, notes, unapplied, standings)
        spec = replace(built.spec, constants=tuple(map(kept, built.spec.constants)))
        del built
        programs.append(_Program(spec, report))
    if lowered.chosen is not None and store is not None:
        note = keep_choice(lowered.chosen, request.name, graph, settings, target)
        first, *rest = programs
        report = replace(first.report, notes=(*first.report.notes, *filter(None, [note])))
        programs = [replace(first, report=report), *rest]
    return programs


def _text(program: _Program) -> ProgramReport:
    spec = program.spec
    return ProgramReport(
        spec.target.cpu, spec.target.key, sizes_text(spec.guards), spec.fallback, program.report
    )


def check_each(request: BuildRequest, programs: Sequence[ProgramReport]) -> None:
    """Raise TunefarmError unless every program but fallbacks is what is required, naming those that
    are not."""
    failed: list[str] = []
    hints: list[str] = []
    for program in programs:
        try:
            if not program.fallback:
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


def _fallbacks(targets: Sequence[Target]) -> tuple[Target, ...]:
    """For each family of CPUs the ladder below its best target, without what is built anyway."""
    found: list[Target] = []
    families: set[str] = set()
    for target in targets:
        if platform_of(target) in families:
            continue
        families.add(platform_of(target))
        taken = [set(other.features) for other in targets]
        found += [other for other in fallback_targets(target) if set(other.features) not in taken]
    return tuple(found)
