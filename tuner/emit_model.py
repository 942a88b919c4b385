"""What `tune build` writes: an artefact, or one of the forms of `tuner.emit_forms`.

An artefact that was built before takes no compiler: that is imported where it is needed.
"""

from __future__ import annotations

import difflib
import shlex
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from os import PathLike
from pathlib import Path
from typing import TYPE_CHECKING, Any

from compiler.errors import ArtefactError, SettingsError
from compiler.runtime.artefact import digest_of, save
from compiler.target import baseline_target
from configs.settings import Settings
from db.store import Store
from tuner.apply_best import Records, target_of
from tuner.build_cache import KnownModel, place
from tuner.build_report import BuildReport, build_report, check_share, require_share
from tuner.command_line import check_output
from tuner.report import format_share

if TYPE_CHECKING:
    from compiler.graph.ir import Graph

ARTEFACT = "artefact"
LIBRARY = "c-header+shared-library"
OBJECT = "object"
FORMS = (ARTEFACT, "llvm", "asm", OBJECT, LIBRARY, "graph")


@dataclass(frozen=True, slots=True)
class Emitted:
    """What was written where, how each kernel was built, and the command to type next.

    `model_hash` and `digest` name the model and the artefact; other forms have neither.
    """

    form: str
    output: str
    files: tuple[str, ...]
    report: BuildReport
    next_command: str
    model_hash: str = ""
    digest: str = ""

    def to_json(self) -> dict[str, Any]:
        """All of it as JSON values."""
        named = {"output": self.output, "emit": self.form, "files": list(self.files)}
        return {**named, **self.report.to_json()}

    def lines(self) -> list[str]:
        """What to tell the user below the table of kernels."""
        share = format_share(self.report.tuned_share)
        return [
            f"{', '.join(self.files)}: {share} of the estimated time runs tuned schedules",
            f"next: {self.next_command}",
        ]


def check_emit(form: str, output: str, inputs: list[str | None], settings: Settings) -> None:
    """Refuse a form, a path or a machine that cannot do, before the long work starts.

    `inputs` are files that the command reads. Raises TunefarmError.
    """
    if form not in FORMS:
        near = difflib.get_close_matches(form, FORMS, n=1)
        meant = f"did you mean {near[0]}? " if near else ""
        raise SettingsError(
            f"there is no form {form!r} to emit", hint=f"{meant}forms: {', '.join(FORMS)}"
        )
    if form in (LIBRARY, OBJECT):
        from tuner.emit_forms import check_c

        check_c(form, output, inputs, settings)
    else:
        check_output(output, inputs)


def emit_model(
    form: str,
    model: str | PathLike[str],
    output: str,
    store: Store | None,
    settings: Settings,
    shapes: Mapping[str, tuple[int, ...]] | None = None,
    *,
    require_tuned: float = 0.0,
    fallback: bool = False,
) -> Emitted:
    """Build `model` as `tuner.build_model.compile_from` does, and write it to `output` as `form`.

    `form` is one of FORMS; in C the model has the name of its file. With `fallback` an artefact
    gets a second variant for CPUs that cannot run the first. Raises TunefarmError.
    """
    if fallback and form != ARTEFACT:
        raise SettingsError(f"--fallback is for artefacts, not for {form}")
    check_share(require_tuned)
    if form != ARTEFACT:
        return _other_form(form, model, output, store, settings, shapes, require_tuned)
    known = None if fallback else KnownModel.of(model, settings, target_of(settings), shapes)
    report = None if known is None else _placed(known, store, settings, output, require_tuned)
    if known is not None and report is not None:
        return _emitted(output, report, known.model_hash)
    graph = _import_beside(model, shapes)
    from compiler.graph.serialize import structural_hash
    from tuner.build_model import compile_from

    model_hash = structural_hash(graph)
    built = compile_from(graph, store, settings, require_tuned=require_tuned)
    portable = None
    if fallback:
        target = baseline_target(built.spec.target)
        portable = compile_from(graph, store, settings, target=target).spec
    save(built.spec, output, portable)
    if known is not None:
        known.remember(built.kernels, built.chosen, model_hash, Path(output))
    return _emitted(output, built.report, model_hash)


def _emitted(output: str, report: BuildReport, model_hash: str) -> Emitted:
    command = f"tune run {shlex.quote(output)} --repeat 20"
    return Emitted(ARTEFACT, output, (output,), report, command, model_hash, digest_of(output))


def _import_beside(
    model: str | PathLike[str], shapes: Mapping[str, tuple[int, ...]] | None
) -> Graph:
    """Read the model, which a child process does, while this one imports the compiler."""
    from measure.import_model import import_model

    with ThreadPoolExecutor(1) as thread:
        graph = thread.submit(import_model, model, shapes)
        import tuner.build_model  # noqa: F401 - what comes next

        return graph.result()


def _other_form(
    form: str,
    model: str | PathLike[str],
    output: str,
    store: Store | None,
    settings: Settings,
    shapes: Mapping[str, tuple[int, ...]] | None,
    require_tuned: float,
) -> Emitted:
    graph = _import_beside(model, shapes)
    from tuner.build_model import compile_from
    from tuner.emit_forms import write_form

    built = compile_from(graph, store, settings, require_tuned=require_tuned)
    files, command = write_form(form, Path(model).stem, output, graph, built, settings)
    return Emitted(form, output, files, built.report, command)


def _placed(
    known: KnownModel, store: Store | None, settings: Settings, output: str, require_tuned: float
) -> BuildReport | None:
    """Put an artefact that was built before to `output`; its report, or None if there is none."""
    kernels = known.kernels()
    if kernels is None:
        return None
    records = Records(store, settings, None)
    found = known.artefact(kernels, records.choose)
    if found is None:
        return None
    spec, path = found
    report = build_report(spec.kernels, kernels, records.notes)
    require_share(report, require_tuned)
    try:
        place(path, Path(output))
    except OSError as error:
        raise ArtefactError(f"cannot write {output}: {error.strerror or error}") from error
    return report
