"""The whole of a build, by the shortest way there is: found, put together, or compiled.

A build that is repeated takes a third of a second, most of it for imports. So what only other
builds need is imported where they begin, while a thread reads the model.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from tunefarm.compiler.errors import ArtefactError, UntunedWarning
from tunefarm.compiler.runtime.artefact.file_header import (
    MOST_PARENTS,
    Lineage,
    digest_of,
    lineage_of,
)
from tunefarm.compiler.runtime.spec.kernel_report import TUNED
from tunefarm.configs.settings import has_database
from tunefarm.configs.temporary_folders import temporary_folder
from tunefarm.tuner.building.cache import BuildCache, KnownModel
from tunefarm.tuner.building.model_file import Future, begin_digest, other_file
from tunefarm.tuner.building.report import build_report
from tunefarm.tuner.building.request import (
    ARTEFACT,
    CODE_TEXTS,
    OF_SEVERAL,
    BuildRequest,
    BuildResult,
    built_artefact,
)
from tunefarm.tuner.from_settings import fallback_targets, limits_of, target_of

if TYPE_CHECKING:
    from tunefarm.compiler.graph.ir import Graph
    from tunefarm.compiler.runtime.execution.executable import Executable
    from tunefarm.compiler.runtime.spec.executable_spec import ExecutableSpec
    from tunefarm.compiler.target import Target
    from tunefarm.configs.settings import Settings
    from tunefarm.db.store import Store
    from tunefarm.tuner.building.lowered import LoweredModel


def build(request: BuildRequest, digest: Future[str | None] | None = None) -> BuildResult:
    """Build what is asked for, and list it in the database that it is made from.

    `digest` of the model may have been begun before, see `begin_digest`. Raises TunefarmError.
    """
    target = target_of(request.settings)
    parent = ParentChoice.of(request)
    cache = BuildCache.of(request, target, digest or begin_digest(request.model))
    repeated = None if cache is None else cache.repeated()
    if repeated is not None:
        named = parent.name_in(repeated)
        is_listed = not named.parent or parent.is_same(named)
        return named if is_listed else _listed(request, target, named)
    known = Future(lambda: None if cache is None else cache.model())
    is_read = not request.is_several
    graph = Future(lambda: _read(request) if is_read and known.result() is None else None)
    from tunefarm.tuner.building.record import with_records

    def make(store: Store | None) -> BuildResult:
        if request.is_several:
            return _several(request, store, parent)
        model, result = known.result(), None
        if cache is not None and model is not None:
            result = _put_together(request, target, cache, model, store)
        if result is not None:
            return result
        return _compiled(
            request, target, cache, lambda: graph.result() or _read(request), store, parent
        )

    result = with_records(request.databases, make)
    if result.programs:
        return result  # listed already
    result = _listed(request, target, parent.name_in(result))
    if cache is not None:
        cache.remember(result)
    return result


def _listed(request: BuildRequest, target: Target, result: BuildResult) -> BuildResult:
    """The result, once it is in the database that it was made from."""
    if not result.digest or not request.is_listed:
        return result
    from tunefarm.tuner.building.record import record_build

    return replace(result, not_listed=record_build(request, target, result))


def _several(
    request: BuildRequest, store: Store | None, parent: ParentChoice, graph: Graph | None = None
) -> BuildResult:
    """A build of several programs, listed once for each of their targets."""
    from tunefarm.tuner.building.record import record_programs
    from tunefarm.tuner.building.several import build_several

    result = parent.name_in(build_several(request, store, graph))
    if not result.digest or not request.is_listed:
        return result
    return replace(result, not_listed=record_programs(request, result))


def build_loaded(request: BuildRequest) -> tuple[Executable, BuildResult]:
    """Build an artifact by the same flow and load it; no file is left, so that none is listed.

    The request's output is of no account. Raises TunefarmError.
    """
    with temporary_folder("build") as folder:
        output = str(folder / f"{request.name}.tuned")
        result = build(replace(request, output=output, listed=False))
        from tunefarm.compiler.runtime.execution.executable import load

        return load(output), result  # maps the file, which lasts as long as that


def _read(request: BuildRequest) -> Graph:
    from tunefarm.measure.sandbox.import_model import import_model

    return import_model(request.model, request.shapes, limits_of(request.settings))


def _put_together(
    request: BuildRequest, target: Target, cache: BuildCache, model: KnownModel, store: Store | None
) -> BuildResult | None:
    """The artifact of the same kernels with the same schedules; None if there is none."""
    from tunefarm.tuner.building.apply_best import Records
    from tunefarm.tuner.building.size_plan import size_plan

    asked = (store, model.model_hash, request.settings, target)
    accept = request.accept_nominees
    sizes, left = size_plan(*asked, accept_nominees=accept)
    if sizes is not None:
        return None
    records = Records(
        store, request.settings, target, model.model_hash, accept_nominees=request.accept_nominees
    )
    found = cache.artefact(model, records.chosen(model.kernels))
    if found is None:
        return None
    reports, kept = found
    notes = (*left, *records.notes(reports))
    unapplied = (*other_file(store, request.model), *records.unapplied(reports))
    standings = records.standings_of(reports)
    report = build_report(reports, model.kernels, notes, unapplied, standings)
    result = built_artefact(request.output, report, model.model_hash, kept.digest, kept)
    return result if cache.place(result) else None


# Long: constants are dropped between steps, so as not to be in memory twice.
def _compiled(
    request: BuildRequest,
    target: Target,
    cache: BuildCache | None,
    read: Callable[[], Graph],
    store: Store | None,
    parent: ParentChoice,
) -> BuildResult:
    """The model compiled with the best records of `store`, and written.

    `read` waits for the model: that is asked for when all is imported that compiles it.
    """
    from tunefarm.compiler.graph.serialize import structural_hash
    from tunefarm.compiler.runtime.artefact.write_artefact import save
    from tunefarm.compiler.types import large_arrays
    from tunefarm.tuner.building.apply_best import Records
    from tunefarm.tuner.building.lowered import (
        compile_with,
        keep_choice,
        lower_model,
        overflow_note,
    )
    from tunefarm.tuner.building.size_plan import size_plan

    settings, output, graph = request.settings, request.output, read()
    model_hash = structural_hash(graph)
    asked = (store, model_hash, settings, target)
    accept = request.accept_nominees
    is_sized = request.form in OF_SEVERAL and not graph.is_fixed
    sizes, left = size_plan(*asked, accept_nominees=accept) if is_sized else (None, ())
    if sizes is not None and request.dump_after is None:
        return _several(request, store, parent, graph)
    lowered = lower_model(graph, settings, request.precision, target, store)
    records = Records(store, settings, target, model_hash, accept_nominees=accept)

    built = compile_with(
        lowered.graph,
        records.choose,
        settings,
        target,
        numerics=lowered.numerics,
        dump_after=request.dump_after,
        keep_llvm=request.form in CODE_TEXTS,
    )
    reports = built.spec.kernels
    text = [lowered.note, overflow_note(graph, built, settings), graph.structure.prefix.note]
    notes = (*filter(None, text), *left, *records.notes(reports))
    unapplied = (*other_file(store, request.model), *records.unapplied(reports))
    standings = records.standings_of(reports)
    report = build_report(reports, built.kernels, notes, unapplied, standings)
    request.check(report)
    if lowered.chosen is not None and store is not None:
        note = keep_choice(lowered.chosen, request.name, graph, settings, target)
        report = replace(report, notes=(*report.notes, *filter(None, [note])))
    if request.form != ARTEFACT:
        from tunefarm.tuner.building.emit import write_form

        files, command = write_form(request, built)
        return BuildResult(request.form, output, files, report, command)
    spec, chosen = built.spec, built.chosen
    model = KnownModel(model_hash, built.kernels)
    del built  # whose constants, not packed, would stay next to those of the fallbacks
    others, fallbacks = fallback_targets(target) if request.fallback else (), []
    if others:
        spec = replace(spec, constants=tuple(map(large_arrays.kept, spec.constants)))
    for other in others:
        fallbacks.append(_fallback(lowered, settings, other, store))
    save(spec, output, fallbacks)
    del spec, fallbacks  # whose constants leave room for the copy
    digest = digest_of(output)
    kept = None if cache is None else cache.keep(digest)
    if cache is not None and kept is not None:
        cache.remember_artefact(model, chosen, reports, kept)
    return built_artefact(output, report, model.model_hash, digest, kept)


def _fallback(
    lowered: LoweredModel, settings: Settings, target: Target, store: Store | None
) -> ExecutableSpec:
    """The variant for other CPUs, from their own records."""
    from tunefarm.tuner.building.apply_best import Records
    from tunefarm.tuner.building.lowered import compile_with

    choose, numerics = Records(store, settings, target).choose, lowered.numerics
    return compile_with(
        lowered.graph, choose, settings, target, fallback=True, numerics=numerics
    ).spec


@dataclass(frozen=True, slots=True)
class ParentChoice:
    """The artifact that a build replaces; None for none. A `given` one is no former build at the
    output."""

    former: Lineage | None = None
    given: bool = False

    @staticmethod
    def of(request: BuildRequest) -> ParentChoice:
        """What is known before anything is built. Raises `ArtefactError` for a parent that is
        given and is none."""
        if request.form != ARTEFACT:
            return ParentChoice()
        if request.parent is not None:
            return ParentChoice(lineage_of(request.parent), given=True)
        try:
            return ParentChoice(lineage_of(request.output))
        except ArtefactError:  # a new file, or one that is replaced whatever it is
            return ParentChoice()

    def name_in(self, result: BuildResult) -> BuildResult:
        """The result, with its parents in the file. Raises `ArtefactError` if it cannot be
        written."""
        if not result.digest or self.former is None or self.is_same(result):
            return result
        built = lineage_of(result.output)
        parents = self._parents(self.former, built)
        if not parents:
            return result
        from tunefarm.compiler.runtime.artefact.artefact import set_parents  # with NumPy

        set_parents(result.output, parents)
        return replace(result, digest=built.digest_with(parents), parent=parents[0])

    def is_same(self, result: BuildResult) -> bool:
        """Whether the result is the artifact that was at the output."""
        return self.former is not None and not self.given and self.former.digest == result.digest

    def _parents(self, former: Lineage, built: Lineage) -> tuple[str, ...]:
        if former.model != built.model and not self.given:
            return ()
        line = (former.digest, *former.parents)
        for number, digest in enumerate(() if self.given else line):
            if built.digest_with(line[number + 1 :]) == digest:
                return line[number + 1 :]
        return line[:MOST_PARENTS]


# Builds for Python: loaded at once, untuned where nobody named a database and there is none.


def build_in_memory(request: BuildRequest, *, stacklevel: int) -> Executable:
    """Build what is asked for and load it; an `UntunedWarning` if no kernel is tuned, or some are
    not though the database has records that might do.

    `stacklevel` is as in `warnings.warn`, counted from the caller of this function. Raises
    TunefarmError.
    """
    executable, note = build_and_note(request)
    if note:
        warnings.warn(note, UntunedWarning, stacklevel=stacklevel + 1)
    return executable


def build_and_note(request: BuildRequest) -> tuple[Executable, str]:
    """What `build_in_memory` builds, and the text of its warning, "" for none."""
    url = request.settings.database.url
    without = not has_database(request.settings)
    without_any = without and not request.asks_only_shipped
    executable, result = build_loaded(replace(request, untuned=without_any))
    sources = [kernel.schedule_source for kernel in executable.kernels]
    left = "; ".join(dict.fromkeys(map(str, result.unapplied)))
    if sources and TUNED not in sources:
        reason = f"there is no database {url}" if without else "no record of the database applies"
        reason += f" ({left})" if left else ""
        text = f"is built untuned: {reason}; tunefarm.tune measures its kernels"
    elif left and (untuned := sum(source != TUNED for source in sources)):
        text = f"is built with {untuned} of {len(sources)} kernels untuned: {left}"
    else:
        return executable, ""
    return executable, f"{'the model' if request.temporary else request.model} {text}"
