"""A built model without Python: machine code and constants behind three C functions.

    NAME.h          the interface, with comments
    libNAME.so      entry function, kernels, constants; needs the C library and nothing else
    NAME_example.c  a program that uses it

or one relocatable object file and the header. The same model gives the same bytes. Linking is left
to the system's C compiler `cc`, which always brings the linker and the assembler.
"""

from __future__ import annotations

import os
import shlex
import shutil
import subprocess
import tempfile
from collections.abc import Sequence
from os import PathLike
from pathlib import Path

from compiler.errors import ExportError
from compiler.llvm.machine import object_code
from compiler.runtime.c_example import example_text
from compiler.runtime.c_header import compile_command, header_text, object_command
from compiler.runtime.c_implementation import (
    constant_offsets,
    constants_text,
    implementation_text,
)
from compiler.runtime.c_interface import CInterface, c_interface, model_title
from compiler.runtime.check_target import platform_of
from compiler.runtime.executable_spec import ExecutableSpec
from compiler.runtime.thread_pool import pool_ir
from compiler.target import Target, host_target
from compiler.types.tensor_type import bytes_of

# What code reaches its constants by is 32 bits wide.
_MOST_CONSTANT_BYTES = 2**31 - 2**26
_INSTALL = "install a C compiler, e.g. apt-get install gcc libc6-dev"
_MAPPED = (
    "-shared",
    "-Wl,-Bsymbolic",
    "-Wl,--version-script=exports.map",
    "-Wl,-z,noexecstack,-z,relro,-z,now,-z,defs",
    "-Wl,--build-id=none",
    "-Wl,--as-needed",
)


def check_toolchain(target: Target, *, static: bool = False) -> None:
    """Raise `ExportError` if this machine cannot make C libraries for `target`.

    `static` also asks for what object files need.
    """
    here, made_for = platform_of(host_target()), platform_of(target)
    if not made_for.endswith(" linux") or made_for != here:
        raise ExportError(
            f"this machine's C compiler makes code for {here}, the model is built for {made_for}",
            hint="build it on such a machine running Linux, or emit llvm or asm",
        )
    for tool in ("cc", "objcopy") if static else ("cc",):
        if shutil.which(tool) is None:
            raise ExportError(f"there is no {tool} on PATH to link the model with", hint=_INSTALL)


def check_folder(folder: str | PathLike[str]) -> None:
    """Raise `ExportError` unless files can be written into `folder`, which need not exist yet."""
    path = Path(folder)
    if not str(folder) or "\0" in str(folder):
        raise ExportError(f"{str(folder)!r} is not the name of a folder")
    nearest = next(parent for parent in (path, *path.absolute().parents) if parent.exists())
    if not nearest.is_dir():
        raise ExportError(f"cannot write into {folder}: {nearest} is a file, a folder is wanted")
    if not os.access(nearest, os.W_OK | os.X_OK):
        raise ExportError(f"cannot write into {folder}: permission denied")


def header_path(path: str | PathLike[str]) -> Path:
    """Where the header of the object file `path` goes; `ExportError` if that is `path`."""
    header = Path(path).with_suffix(".h")
    if header == Path(path):
        raise ExportError(f"{path} is where the header goes", hint="end the object's name in .o")
    return header


def library_files(name: str) -> tuple[str, ...]:
    """The names that `export_library` gives the header, the library and the example."""
    title = model_title(name)
    return f"{title}.h", f"lib{title}.so", f"{title}_example.c"


def export_library(
    spec: ExecutableSpec, folder: str | PathLike[str], name: str | None = None
) -> tuple[Path, ...]:
    """Write header, shared library and example into `folder`; the three paths.

    The folder is made if it is missing; files are replaced one by one when all are complete. `name`
    is the model's, by default the spec's; as a C identifier it starts every name in the files.
    Raises `ExportError`.
    """
    check_toolchain(spec.target)
    check_folder(folder)
    interface = _interface(spec, name)
    header, library, example = library_files(interface.name)
    texts = {
        header: header_text(interface, spec.target, compile_command(interface.name)),
        example: example_text(interface),
    }
    try:
        Path(folder).mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=folder, prefix=".tune-") as scratch:
            work = Path(scratch)
            parts = _write_parts(interface, spec, work, texts)
            _link_library(interface, work, library, parts)
            return _move(work, {file: Path(folder, file) for file in (header, library, example)})
    except OSError as error:
        raise ExportError(f"cannot write into {folder}: {error.strerror or error}") from error


def export_object(
    spec: ExecutableSpec, path: str | PathLike[str], name: str | None = None
) -> tuple[Path, ...]:
    """Write a relocatable object file to `path`, and the header beside it; the two paths.

    The object holds what the shared library holds, constants included, and defines no symbol but
    the interface's functions, so that objects of several models may be linked into one program.
    Raises `ExportError`.
    """
    check_toolchain(spec.target, static=True)
    target, header = Path(path), header_path(path)
    interface = _interface(spec, name)
    command = object_command(interface.name, shlex.quote(target.name), interface.threads)
    texts = {f"{interface.name}.h": header_text(interface, spec.target, command)}
    try:
        with tempfile.TemporaryDirectory(dir=target.parent, prefix=".tune-") as scratch:
            work = Path(scratch)
            parts = _write_parts(interface, spec, work, texts)
            _run(work, "cc", "-r", "-nostdlib", "-o", "model", *parts)
            keep = (f"--keep-global-symbol={symbol}" for symbol in interface.functions)
            _run(work, "objcopy", *keep, "model")
            return _move(work, {"model": target, f"{interface.name}.h": header})
    except OSError as error:
        raise ExportError(f"cannot write {path}: {error.strerror or error}") from error


def _interface(spec: ExecutableSpec, name: str | None) -> CInterface:
    if constant_offsets(spec)[-1] > _MOST_CONSTANT_BYTES:
        raise ExportError(
            "the model has more than 2 GiB of constants, too many for a library",
            hint="build an artefact",
        )
    return c_interface(spec, name)


def _write_parts(
    interface: CInterface, spec: ExecutableSpec, work: Path, texts: dict[str, str]
) -> list[str]:
    """Write everything that is linked, and `texts`, into `work`; the object files' names.

    All tools run inside of `work` on relative names, so that its path gets into no file.
    """
    for file, text in texts.items():
        (work / file).write_text(text, encoding="utf-8")
    objects = [spec.entry, *(part.code for part in spec.objects)]
    if interface.threads > 1:
        pool = pool_ir(spec.target.triple.split("-")[0])
        objects.append(object_code(pool, spec.target))
    parts = [f"part{number}.o" for number in range(len(objects))]
    for part, code in zip(parts, objects, strict=True):
        (work / part).write_bytes(code)
    _write_constants(spec, work / "constants.bin")
    (work / "constants.s").write_text(constants_text("constants.bin"), encoding="utf-8")
    (work / "model.c").write_text(implementation_text(interface, spec), encoding="utf-8")
    flags = ("-std=gnu11", "-O2", "-g0", "-fPIC", "-fvisibility=hidden", "-pthread")
    _run(work, "cc", "-c", *flags, "-o", "model.o", "model.c")
    _run(work, "cc", "-c", "-o", "constants.o", "constants.s")
    return ["model.o", *parts, "constants.o"]


def _write_constants(spec: ExecutableSpec, path: Path) -> None:
    with path.open("wb") as file:
        for array, end in zip(spec.constants, constant_offsets(spec)[1:], strict=True):
            file.write(bytes_of(array))
            file.write(bytes(end - file.tell()))


def _link_library(interface: CInterface, work: Path, library: str, parts: Sequence[str]) -> None:
    """Link the parts; models' libraries in one process see nothing of each other's kernels."""
    functions = " ".join(f"{symbol};" for symbol in interface.functions)
    (work / "exports.map").write_text(f"{{ global: {functions} local: *; }};\n", encoding="utf-8")
    flags = [*_MAPPED, f"-Wl,-soname,{library}"]
    if interface.threads > 1:
        flags += ["-Wl,-z,nodelete", "-pthread"]  # its threads run in it until the process ends
    _run(work, "cc", *flags, "-o", library, *parts, "-lm")


def _run(work: Path, tool: str, *arguments: str) -> None:
    done = subprocess.run(
        ["env", "TMPDIR=.", tool, *arguments],  # its temporary files go with `work`
        cwd=work,
        capture_output=True,
        text=True,
        errors="replace",
        check=False,
    )
    if done.returncode != 0:
        lines = [line for line in done.stderr.splitlines() if line.strip()]
        reason = next((line for line in lines if "error" in line), (lines or ["no reason"])[-1])
        raise ExportError(f"{tool} failed with code {done.returncode}: {reason.strip()}")


def _move(work: Path, places: dict[str, Path]) -> tuple[Path, ...]:
    """Move finished files from `work` to their places, each at once."""
    for file, place in places.items():
        os.replace(work / file, place)
    return tuple(places.values())
