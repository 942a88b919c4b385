"""The forms that `tune build` writes a model in, from an artefact to C, LLVM and JSON."""

from __future__ import annotations

import difflib
import json
import shlex
from collections.abc import Mapping
from dataclasses import dataclass
from os import PathLike
from pathlib import Path
from typing import Any

from compiler.emit import assembly_text, llvm_text, schedules_of
from compiler.errors import ExportError, SettingsError
from compiler.graph.ir import Graph
from compiler.graph.optimise import optimise
from compiler.graph.serialize import graph_to_json
from compiler.pipeline import kernels_of
from compiler.runtime.artefact import save
from compiler.runtime.c_header import compile_command, object_command
from compiler.runtime.c_interface import c_interface
from compiler.runtime.executable_spec import ExecutableSpec
from compiler.runtime.export_c import (
    check_folder,
    check_toolchain,
    export_library,
    export_object,
    header_path,
)
from compiler.schedule.choice import ScheduleChoice
from compiler.target import baseline_target
from configs.settings import Settings
from db.store import Store
from measure.import_model import import_model
from tuner.build_model import BuildReport, compile_from, target_of
from tuner.command_line import check_output
from tuner.report import format_share

ARTEFACT = "artefact"
LIBRARY = "c-header+shared-library"
FORMS = (ARTEFACT, "llvm", "asm", "object", LIBRARY, "graph")


@dataclass(frozen=True, slots=True)
class Emitted:
    """What was written where, how each kernel was built, and the command to type next."""

    form: str
    output: str
    files: tuple[str, ...]
    report: BuildReport
    next_command: str

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
    if form == LIBRARY:
        check_folder(output)
        check_toolchain(target_of(settings))
        return
    check_output(output, inputs)
    if form == "object":
        check_toolchain(target_of(settings), static=True)
        check_output(str(header_path(output)), inputs)


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
    graph = import_model(model, shapes)
    chosen: dict[str, ScheduleChoice] = {}
    spec, report = compile_from(graph, store, settings, require_tuned=require_tuned, chosen=chosen)
    files: tuple[str, ...] = (output,)
    command = f"tune run {shlex.quote(output)} --repeat 20"
    if form == ARTEFACT:
        portable = None
        if fallback:
            target = baseline_target(spec.target)
            portable, _ = compile_from(graph, store, settings, target=target)
        save(spec, output, portable)
    elif form in (LIBRARY, "object"):
        name = Path(model).stem
        export = export_library if form == LIBRARY else export_object
        files = tuple(map(str, export(spec, output, name)))
        command = _c_command(form, spec, output, name)
    elif form == "graph":
        _write(output, json.dumps(_graph_json(graph, spec), indent=1, ensure_ascii=False))
        command = f"less {shlex.quote(output)}"
    else:
        _write(output, _code_text(form, graph, spec, chosen, settings))
        command = _assemble_command(form, output)
    return Emitted(form, output, files, report, command)


def _graph_json(graph: Graph, spec: ExecutableSpec) -> object:
    """The graph that kernels were made from; of its constants only the SHA-256."""
    return graph_to_json(optimise(graph, spec.target.lanes), with_constants=False)


def _code_text(
    form: str,
    graph: Graph,
    spec: ExecutableSpec,
    chosen: Mapping[str, ScheduleChoice],
    settings: Settings,
) -> str:
    program = kernels_of(graph, spec.target)
    schedules = schedules_of(program, spec, chosen, settings.compile.numerics)
    text = llvm_text if form == "llvm" else assembly_text
    return text(program, spec, schedules)


def _c_command(form: str, spec: ExecutableSpec, output: str, name: str) -> str:
    interface = c_interface(spec, name)
    if form == "object":
        return object_command(interface.name, shlex.quote(output), interface.threads)
    run = f"{compile_command(interface.name)} && ./{interface.name}_example"
    return f"cd {shlex.quote(output)} && {run}"


def _assemble_command(form: str, output: str) -> str:
    code = Path(output).with_suffix(".o")
    path = shlex.quote(output)
    result = shlex.quote(f"{output}.o" if code == Path(output) else str(code))
    if form == "asm":
        return f"cc -x assembler -c {path} -o {result}"
    return f"llc -O2 --relocation-model=pic -filetype=obj {path} -o {result}"


def _write(output: str, text: str) -> None:
    try:
        Path(output).write_text(text + "\n", encoding="utf-8")
    except OSError as error:
        raise ExportError(f"cannot write {output}: {error.strerror or error}") from error
