"""The forms of a built model other than the artifact: C, object code, LLVM, assembly, JSON."""

from __future__ import annotations

import json
import shlex
from collections.abc import Sequence
from pathlib import Path

from tunefarm.compiler.emit import assembly_text, llvm_text
from tunefarm.compiler.errors import ExportError, system_errors_as
from tunefarm.compiler.foreign_functions import CFunction, find_function
from tunefarm.compiler.graph.serialize import graph_to_json
from tunefarm.compiler.runtime.c_library.c_header import compile_command, object_command
from tunefarm.compiler.runtime.c_library.c_interface import c_interface
from tunefarm.compiler.runtime.c_library.c_programs import check_targets
from tunefarm.compiler.runtime.c_library.export_c import (
    check_folder,
    export_library,
    export_object,
    header_path,
    library_files,
)
from tunefarm.compiler.runtime.machine.check_target import platform_of
from tunefarm.compiler.runtime.machine.toolchain import find_toolchain
from tunefarm.compiler.runtime.spec.executable_spec import ExecutableSpec
from tunefarm.compiler.target import Target, host_target
from tunefarm.configs.files import write_text
from tunefarm.tuner.building.programs import Program
from tunefarm.tuner.building.request import LIBRARY, OBJECT, BuildRequest
from tunefarm.tuner.building.size_values import programs_of
from tunefarm.tuner.from_settings import targets_of


def check_c(request: BuildRequest) -> tuple[str, ...]:
    """Refuse a folder or a machine that cannot do. Returns the files that may be overwritten."""
    output, targets = request.output, targets_of(request.settings)
    several = len(targets) > 1 or len(programs_of(request.shapes)) > 1
    static = request.form == OBJECT or several
    if request.form == LIBRARY:
        check_folder(output)
    check_targets(targets)
    for target in targets:
        find_toolchain(target, request.compiler, static=static)
    if request.form == LIBRARY:
        if not Path(output).exists():
            return ()  # in a new folder nothing can be overwritten
        return tuple(str(Path(output, name)) for name in library_files(request.name))
    return output, str(header_path(output))


def write_form(request: BuildRequest, programs: Sequence[Program]) -> tuple[tuple[str, ...], str]:
    """Write programs of one model in a form other than the artifact, the preferred one first; the
    files, and the command to type next.

    In C the model has the name of its file. Raises TunefarmError.
    """
    form, output = request.form, request.output
    spec, *others = (program.spec for program in programs)
    if form in (LIBRARY, OBJECT):
        export = export_library if form == LIBRARY else export_object
        files = export(spec, output, request.name, others=others, compiler=request.compiler)
        return tuple(map(str, files)), _c_command(request, spec)
    built = programs[0].compiled
    assert built is not None, "these forms are of one program"
    if form == "graph":
        # Of its constants only the SHA-256.
        graph = graph_to_json(built.graph)
        _write(output, json.dumps(graph, indent=1, ensure_ascii=False))
        return (output,), f"less {shlex.quote(output)}"
    text = llvm_text if form == "llvm" else assembly_text
    _write(output, text(built))
    return (output,), assemble_command(form, output, spec.target)


def _c_command(request: BuildRequest, spec: ExecutableSpec) -> str:
    interface, output = c_interface([spec], request.name), request.output
    compiler = find_toolchain(spec.target, request.compiler).command
    functions = _linked(spec)
    if request.form == OBJECT:
        return object_command(shlex.quote(output), interface.threads, compiler, functions)
    command = compile_command(interface.name, compiler, functions)
    if platform_of(spec.target) == platform_of(host_target()):
        command += f" && ./{interface.name}_example"
    return f"cd {shlex.quote(output)} && {command}"


def _linked(spec: ExecutableSpec) -> str:
    """What the linker takes for the libraries whose functions a model calls."""
    registered = (find_function(function.name) for function in spec.functions)
    given = (function.implementation for function in registered if function is not None)
    libraries = dict.fromkeys(str(item.library) for item in given if isinstance(item, CFunction))
    return " ".join(map(_library, libraries))


def _library(named: str) -> str:
    """A library by its path, found where it lies by programs too; else by its name."""
    file = Path(named).resolve()
    if not file.is_file():
        return f"-l:{shlex.quote(named)}"
    return f"{shlex.quote(str(file))} -Wl,-rpath,{shlex.quote(str(file.parent))}"


def assemble_command(form: str, output: str, target: Target) -> str:
    """What makes an object file of code as text: `asm` or `llvm`."""
    code = Path(output).with_suffix(".o")
    path = shlex.quote(output)
    result = shlex.quote(f"{output}.o" if code == Path(output) else str(code))
    if form == "asm":
        return f"{_assembler(target)} -x assembler -c {path} -o {result}"
    return f"llc -O2 --relocation-model=pic -filetype=obj {path} -o {result}"


def _assembler(target: Target) -> str:
    """The usual C compiler, told of the CPU where assemblers refuse what others lack: Arm."""
    architecture = target.triple.split("-")[0]
    is_other = platform_of(target) != platform_of(host_target())
    compiler = f"{architecture}-linux-gnu-gcc" if is_other else "cc"
    return f"{compiler} -mcpu={target.cpu}" if architecture == "aarch64" else compiler


def _write(output: str, text: str) -> None:
    with system_errors_as(ExportError, f"write {output}"):
        write_text(output, text + "\n")
