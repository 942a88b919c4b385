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
    BuildRequest,
    BuildResult,
    built_artefact,
)
from tunefarm.tuner.from_settings import limits_of, target_of

if TYPE_CHECKING:
    from tunefarm.compiler.graph.ir import Graph
    from tunefarm.compiler.runtime.execution.executable import Executable
    from tunefarm.compiler.target import Target
    from tunefarm.compiler.types.extents import Shapes
    from tunefarm.db.store import Store


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
    graph = Future(
        lambda: _read(request, request.shapes) if is_read and known.result() is None else None
    )
    from tunefarm.tuner.building.record import with_records

    def read(shapes: Shapes) -> Graph:
        """The model, for which is waited when all is imported that compiles it."""
        found = graph.result() if is_read else None
        return found or _read(request, shapes)

    def make(store: Store | None) -> BuildResult:
        model, result = known.result(), None
        if cache is not None and model is not None:
            result = _put_together(request, target, cache, model, store)
        return result or _compiled(request, cache, read, store)

    result = with_records(request.databases, make)
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


def build_loaded(request: BuildRequest) -> tuple[Executable, BuildResult]:
    """Build an artifact by the same flow and load it; no file is left, so that none is listed.

    The request's output is of no account. Raises TunefarmError.
    """
    with temporary_folder("build") as folder:
        output = str(folder / f"{request.name}.tuned")
        result = build(replace(request, output=output, listed=False))
        from tunefarm.compiler.runtime.execution.executable import load

        return load(output), result  # maps the file, which lasts as long as that


def _read(request: BuildRequest, shapes: Shapes) -> Graph:
    from tunefarm.measure.sandbox.import_model import import_model

    return import_model(request.model, shapes, limits_of(request.settings))


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


def _compiled(
    request: BuildRequest,
    cache: BuildCache | None,
    read: Callable[[Shapes], Graph],
    store: Store | None,
) -> BuildResult:
    """The model compiled with the best records of `store`, and written."""
    from tunefarm.compiler.runtime.artefact.write_artefact import save
    from tunefarm.tuner.building.programs import build_programs, check_each

    output = request.output
    model_hash, programs = build_programs(request, store, read)
    reports = tuple(program.reported for program in programs)
    check_each(request, reports)
    first = programs[0]
    several = reports if sum(not each.fallback for each in reports) > 1 else ()
    if request.form != ARTEFACT:
        from tunefarm.tuner.building.emit import write_form

        files, command = write_form(request, programs)
        return BuildResult(request.form, output, files, first.report, command, programs=several)
    model, chosen, uses = KnownModel(model_hash, first.kernels), first.chosen, first.spec.kernels
    save(first.spec, output, [program.spec for program in programs[1:]])
    del programs, first  # whose constants leave room for the copy
    digest = digest_of(output)
    kept = None if cache is None or several else cache.keep(digest)
    if cache is not None and kept is not None:
        cache.remember_artefact(model, chosen, uses, kept)
    result = built_artefact(output, reports[0].report, model_hash, digest, kept)
    return replace(result, programs=several)


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
