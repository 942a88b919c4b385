"""What `tune build` writes: an artefact, or one of the forms of `tuner.emit_forms`.

An artefact that was built before takes no compiler: that is imported where it is needed.
"""

from __future__ import annotations

import shlex
from collections.abc import Mapping
from dataclasses import dataclass
from os import PathLike
from pathlib import Path
from typing import Any

from compiler.copy_file import ChangedFileError, copy_file
from compiler.errors import ArtefactError
from compiler.kernels.kernel import FusedKernel
from compiler.runtime.artefact import digest_of, save
from compiler.target import baseline_target
from configs.settings import Settings
from db.store import Store
from tuner.apply_best import Records
from tuner.build_cache import KnownModel
from tuner.build_report import BuildReport, build_report, check_share, require_share
from tuner.forms import ARTEFACT
from tuner.model_reading import ModelReading, begin_reading
from tuner.report import format_share


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
    reading: ModelReading | None = None,
) -> Emitted:
    """Build `model` as `tuner.build_model.compile_from` does, and write it to `output` as `form`.

    `form` is one of FORMS; in C the model has the name of its file. With `fallback` an artefact
    gets a second variant for CPUs that cannot run the first. `reading` has been begun before, see
    `begin_reading`. Raises TunefarmError.
    """
    check_share(require_tuned)
    reading = reading or begin_reading(form, model, settings, shapes, fallback=fallback)
    if form != ARTEFACT:
        return _other_form(form, Path(model).stem, output, store, settings, reading, require_tuned)
    known, kernels = reading.look_up()
    if known is not None and kernels is not None:
        report = _placed(known, kernels, store, settings, output, require_tuned)
        if report is not None:
            return _emitted(output, report, known.model_hash)
    from compiler.graph.serialize import structural_hash
    from tuner.build_model import compile_from

    graph = reading.graph()
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


def _other_form(
    form: str,
    name: str,
    output: str,
    store: Store | None,
    settings: Settings,
    reading: ModelReading,
    require_tuned: float,
) -> Emitted:
    from tuner.build_model import compile_from
    from tuner.emit_forms import write_form

    graph = reading.graph()
    built = compile_from(graph, store, settings, require_tuned=require_tuned)
    files, command = write_form(form, name, output, graph, built, settings)
    return Emitted(form, output, files, built.report, command)


def _placed(
    known: KnownModel,
    kernels: Mapping[str, FusedKernel],
    store: Store | None,
    settings: Settings,
    output: str,
    require_tuned: float,
) -> BuildReport | None:
    """Put an artefact that was built before to `output`; its report, or None if there is none."""
    records = Records(store, settings, None)
    found = known.artefact(kernels, records.choose)
    if found is None:
        return None
    spec, path = found
    report = build_report(spec.kernels, kernels, records.notes(spec.kernels))
    require_share(report, require_tuned)
    try:
        copy_file(path, Path(output))
    except ChangedFileError:  # another process has removed it
        return None
    except OSError as error:
        raise ArtefactError(f"cannot write {output}: {error.strerror or error}") from error
    return report
