"""A built model without Python: machine code and constants behind three C functions.

    NAME.h          the interface, with comments
    libNAME.so      entry function, kernels, constants; needs the C library and nothing else
    NAME_example.c  a program that uses it

or one relocatable object file and the header. The same model gives the same bytes. Linking is left
to a C compiler, which always brings the linker and the assembler: the system's `cc`, or a cross
compiler (`runtime.machine.toolchain`). Of several programs, for CPUs of one family, the library
runs the first that the CPU can run.
"""

from __future__ import annotations

import os
import shlex
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from os import PathLike
from pathlib import Path

from tunefarm.compiler.errors import ExportError, system_errors_as
from tunefarm.compiler.llvm.machine import object_code
from tunefarm.compiler.runtime.c_library.c_header import (
    YOUR_FUNCTIONS,
    compile_command,
    header_text,
    object_command,
)
from tunefarm.compiler.runtime.c_library.c_implementation import constants_text, implementation_text
from tunefarm.compiler.runtime.c_library.c_interface import (
    C_TYPES,
    CInterface,
    CPort,
    c_interface,
    c_string,
    in_comment,
    model_title,
)
from tunefarm.compiler.runtime.c_library.c_programs import (
    ConstantLayout,
    LinkedProgram,
    check_programs,
    linked_programs,
)
from tunefarm.compiler.runtime.machine.thread_pool import pool_ir
from tunefarm.compiler.runtime.machine.toolchain import (
    Toolchain,
    compile_c,
    find_toolchain,
    localise,
    run_tool,
)
from tunefarm.compiler.runtime.sizes.size_chain import chain_ir
from tunefarm.compiler.runtime.spec.executable_spec import (
    SIZES_SYMBOL,
    ExecutableSpec,
    needed_targets,
)
from tunefarm.compiler.target import baseline_target
from tunefarm.compiler.types.chosen_sizes import choose_sizes
from tunefarm.compiler.types.dtypes import DType
from tunefarm.compiler.types.signature import ResultSource, ValueSource
from tunefarm.compiler.types.sizes import Dimension, Function, Size, Symbol
from tunefarm.compiler.types.tensor_type import bytes_of

# An example program in C for a built model: read or fill the inputs, run, show the outputs.


SHOWN = 8  # elements of an output

ALLOCATE = """\
/* Memory that the model reads and writes in place. */
static void *allocate(size_t bytes)
{
    const size_t unit = ALIGNMENT;
    void *memory = aligned_alloc(unit, bytes / unit * unit + unit);

    if (memory == NULL) {
        fprintf(stderr, "no memory for %zu bytes\\n", bytes);
        exit(1);
    }
    return memory;
}

"""

_READ_FILE = """\
static void read_file(const char *path, void *memory, size_t bytes, size_t room)
{
    FILE *file = fopen(path, "rb");

    if (file == NULL) {
        perror(path);
        exit(1);
    }
    if (bytes > room || fread(memory, 1, bytes, file) != bytes || fgetc(file) != EOF) {
        fprintf(stderr, "%s: not a file of %zu bytes, or more than %zu\\n", path, bytes, room);
        exit(1);
    }
    fclose(file);
}

"""

_WRITE_FILE = """\
static void write_file(const char *path, const void *memory, size_t bytes)
{
    FILE *file = fopen(path, "wb");

    if (file == NULL || fwrite(memory, 1, bytes, file) != bytes || fclose(file) != 0) {
        perror(path);
        exit(1);
    }
}

"""


# Long: a text with places for names.
def example_text(interface: CInterface) -> str:
    """A program of standard C11 that uses every part of the interface."""
    name, macro, signature = interface.name, interface.macro, interface.signature
    inputs, outputs = interface.inputs, interface.outputs
    symbols = [s.symbol.name for s in signature.sources if not isinstance(s, ResultSource)]
    places = {symbol: f"sizes[{number}]" for number, symbol in enumerate(symbols)}
    variables = [(f"input_{i}", port) for i, port in enumerate(inputs)]
    variables += [(f"output_{i}", port) for i, port in enumerate(outputs)]
    allocated = "".join(
        f"    {port.c_type} *const {variable} = allocate({interface.size_macro(port, 'BYTES')});\n"
        for variable, port in variables
    )
    assigned = "".join(f"    io.{port.member} = {variable};\n" for variable, port in variables)
    assigned += "".join(
        f"    io.{port.member}_shape[{axis}] = {_expression(dimension, places)};\n"
        for port in inputs
        if port.declared.is_dynamic
        for axis, dimension in enumerate(port.declared.shape)
    )
    freed = "".join(f"    free({variable});\n" for variable, _ in variables)
    filled = "".join(_fill(interface, i, places) for i in range(len(inputs)))
    shown = "".join(_show(interface, i) for i in range(len(outputs)))
    helpers = ALLOCATE + (_READ_FILE if inputs else "") + _WRITE_FILE
    middle = ", ".join(str(size) for size in map(choose_sizes(signature, {}).get, symbols))
    sizes = f"    int64_t sizes[] = {{{middle}}};\n" if symbols else ""
    usage = " ".join([*(f"[{symbol}" for symbol in map(in_comment, symbols)), _files(interface)])
    usage += "]" * len(symbols)
    at = "NULL" if interface.is_dynamic else ""
    all_sizes = f"""\
    code = {name}_sizes(&io); /* the output shapes, for programs that allocate outputs */
    if (code == {macro}_OK)
        code = {name}_run(&io, workspace);
"""
    run = all_sizes if interface.is_dynamic else f"    code = {name}_run(&io, workspace);\n"
    return f"""/* Runs the model, on raw files of elements in the machine's order and nothing else:

       ./{name}_example {usage}

   Dynamic dimensions are given on the command line, or in the middle of their ranges. Without files
   the inputs are filled with a pattern. Without output files shapes and first values are printed.
   {name}.h has the command that compiles this. */
#include "{name}.h"

#include <stdio.h>
#include <stdlib.h>

enum {{
    INPUTS = {len(inputs)},
    OUTPUTS = {len(outputs)},
    SIZES = {len(symbols)},
    ALIGNMENT = {macro}_ALIGNMENT
}};

{helpers}int main(int argc, char **argv)
{{
    const int files = argc - 1 > SIZES ? argc - 1 - SIZES : 0;
    char **const paths = argv + SIZES + 1;
{sizes}    struct {name}_io io;
    void *const workspace = allocate({name}_workspace_bytes({at}));
{allocated}    int code = {macro}_OK;

    if (files != 0 && files != INPUTS && files != INPUTS + OUTPUTS) {{
        fprintf(stderr, "usage: %s %s\\n", argv[0], {c_string(usage)});
        return 2;
    }}
{_READ_SIZES if symbols else ""}{assigned}{filled}
{run}    if (code != {macro}_OK) {{
        fprintf(stderr, "{name}_run: %s\\n", {name}_error(code));
        goto end;
    }}
{shown}
end:
{freed}    free(workspace);
    return code == {macro}_OK ? 0 : 1;
}}
"""


def _files(interface: CInterface) -> str:
    """The files as a command line has them."""
    inputs, outputs = (
        " ".join(f"{port.member}.bin" for port in ports)
        for ports in (interface.inputs, interface.outputs)
    )
    return f"[{inputs} [{outputs}]]" if inputs else f"[{outputs}]"


def _fill(interface: CInterface, number: int, places: dict[str, str]) -> str:
    """Code that reads an input from its file, or makes one up."""
    port = interface.inputs[number]
    room = interface.size_macro(port, "BYTES")
    said = "".join(
        f"        input_{number}[{s.position}] = ({port.c_type}){places[s.symbol.name]};\n"
        for s in interface.signature.sources
        if isinstance(s, ValueSource) and s.input == port.name
    )
    return f"""
    if (files > 0) {{
        read_file(paths[{number}], input_{number}, {_bytes(interface, port)}, {room});
    }} else {{
        for (size_t i = 0; i < {interface.size_macro(port, "COUNT")}; i++)
            input_{number}[i] = {pattern_of(port)};
{said}    }}
"""


def _bytes(interface: CInterface, port: CPort) -> str:
    """The bytes of an array, at its shape in the struct where that is dynamic."""
    if not port.declared.is_dynamic:
        return interface.size_macro(port, "BYTES")
    return f"{_count(interface, port)} * sizeof({port.c_type})"


def _count(interface: CInterface, port: CPort) -> str:
    """The elements of an array, at its shape in the struct where that is dynamic."""
    if not port.declared.is_dynamic:
        return interface.size_macro(port, "COUNT")
    shape = (f"(size_t)io.{port.member}_shape[{n}]" for n in range(len(port.declared.shape)))
    return " * ".join(shape) or "(size_t)1"


def pattern_of(port: CPort) -> str:
    """A value for element i; integers that may be indices stay 0."""
    dtype = port.type.dtype
    if port.c_type in ("float", "double"):
        return f"({port.c_type})(i % 17) / 16 - ({port.c_type})0.5"
    if dtype is DType.BOOL:
        return "i % 2 != 0"
    return "0" if dtype.bytes > 1 or dtype.bits < 8 else f"({port.c_type})(i % 7)"


def format_of(dtype: DType) -> tuple[str, str]:
    """How printf shows an element, and the type that it is converted to."""
    if C_TYPES[dtype] in ("float", "double"):
        return "%.9g", "double"
    if C_TYPES[dtype].startswith("int"):
        return "%lld", "long long"
    return "%llu", "unsigned long long"  # the bits, where C has no such numbers


_READ_SIZES = """\
    for (int i = 0; i < SIZES && i + 1 < argc; i++)
        sizes[i] = atoll(argv[i + 1]);
"""


def _show(interface: CInterface, number: int) -> str:
    """Code that writes an output to its file, or prints its shape and the first values."""
    port = interface.outputs[number]
    declared, (form, cast) = port.declared, format_of(port.type.dtype)
    begin = count = ""
    if declared.others:  # sizes decide its rank
        count = f"count_{number}"
        begin = f"""
    size_t {count} = 1;
    for (int64_t axis = 0; axis < io.{port.member}_rank; axis++)
        {count} *= (size_t)io.{port.member}_shape[axis];"""
        printed = f"""\
        printf("{port.member} [");
        for (int64_t axis = 0; axis < io.{port.member}_rank; axis++)
            printf(axis ? ", %lld" : "%lld", (long long)io.{port.member}_shape[axis]);
        printf("]:");
"""
    else:
        count = _count(interface, port)
        extents = [
            f"io.{port.member}_shape[{axis}]" if declared.is_dynamic else str(extent)
            for axis, extent in enumerate(declared.shape)
        ]
        forms = ", ".join("%lld" for _ in extents)
        values = "".join(f", (long long){extent}" for extent in extents)
        printed = f"""\
        printf("{port.member} [{forms}]:"{values});
"""
    size = f"{count} * sizeof({port.c_type})" if declared.others else _bytes(interface, port)
    return f"""{begin}
    if (files == INPUTS + OUTPUTS) {{
        write_file(paths[INPUTS + {number}], output_{number}, {size});
    }} else {{
{printed}        for (size_t i = 0; i < {count} && i < {SHOWN}; i++)
            printf(" {form}", ({cast})output_{number}[i]);
        printf("\\n");
    }}
"""


def _expression(dimension: Dimension, places: dict[str, str]) -> str:
    """A dimension as C; `places` are its symbols."""
    if not isinstance(dimension, Size):
        return str(dimension)
    terms = []
    for atoms, factor in dimension.terms:
        product = [str(factor)] if factor != 1 or not atoms else []
        terms.append(" * ".join([*product, *(_atom(atom, places) for atom in atoms)]))
    return f"({' + '.join(terms)})" if len(terms) > 1 else terms[0]


def _atom(atom: Symbol | Function, places: dict[str, str]) -> str:
    if isinstance(atom, Symbol):
        return places[atom.name]
    left, right = (_expression(operand, places) for operand in atom.operands)
    if atom.name in ("min", "max"):
        return f"({left} {'<' if atom.name == 'min' else '>'} {right} ? {left} : {right})"
    return f"({left} {'/' if atom.name == '//' else '%'} {right})"


# What code reaches its constants by is 32 bits wide.
_MOST_CONSTANT_BYTES = 2**31 - 2**26
_MAPPED = (
    "-shared",
    "-Wl,-Bsymbolic",
    "-Wl,--version-script=exports.map",
    "-Wl,-z,noexecstack,-z,relro,-z,now",
    "-Wl,--build-id=none",
    "-Wl,--as-needed",
)


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
    spec: ExecutableSpec,
    folder: str | PathLike[str],
    name: str | None = None,
    *,
    others: Sequence[ExecutableSpec] = (),
    compiler: str | None = None,
) -> tuple[Path, ...]:
    """Write header, shared library and example into `folder`; the three paths.

    The folder is made if it is missing; files are replaced one by one when all are complete. `name`
    is the model's, by default the spec's; as a C identifier it starts every name in the files.
    `others` are programs of the same model for less able CPUs, each taken where none before it can
    run. `compiler` is the C compiler, by default one for the target. Raises `ExportError`.
    """
    programs = (spec, *others)
    check_programs(programs)
    tools = find_toolchain(spec.target, compiler, static=len(programs) > 1)
    check_folder(folder)
    interface = _interface(programs, name)
    header, library, example = library_files(interface.name)
    command = compile_command(interface.name, tools.command, _functions(interface))
    targets = list(needed_targets(programs).values())
    texts = {
        header: header_text(interface, targets, command),
        example: example_text(interface),
    }
    with (
        _new_folder(Path(folder)),
        tempfile.TemporaryDirectory(dir=folder, prefix=".tune-") as made,
    ):
        work = Path(made)
        parts = _write_parts(interface, programs, work, texts, tools)
        _link_library(interface, work, library, parts, tools)
        return _move(work, {file: Path(folder, file) for file in (header, library, example)})


@contextmanager
def _new_folder(folder: Path) -> Iterator[None]:
    """A folder to write into, which is not left behind empty; `ExportError` where that fails."""
    is_new = not folder.exists()
    with system_errors_as(ExportError, f"write into {folder}"):
        folder.mkdir(parents=True, exist_ok=True)
        try:
            yield
        except BaseException:
            if is_new:
                with suppress(OSError):  # something is in it
                    folder.rmdir()
            raise


def export_object(
    spec: ExecutableSpec,
    path: str | PathLike[str],
    name: str | None = None,
    *,
    others: Sequence[ExecutableSpec] = (),
    compiler: str | None = None,
) -> tuple[Path, ...]:
    """Write a relocatable object file to `path`, and the header next to it; the two paths.

    The object holds what the shared library holds, constants included, and defines no symbol but
    the interface's functions, so that objects of several models may be linked into one program.
    The rest is as in `export_library`. Raises `ExportError`.
    """
    programs = (spec, *others)
    check_programs(programs)
    tools = find_toolchain(spec.target, compiler, static=True)
    target, header = Path(path), header_path(path)
    interface = _interface(programs, name)
    command = object_command(
        shlex.quote(target.name), interface.threads, tools.command, _functions(interface)
    )
    targets = list(needed_targets(programs).values())
    texts = {f"{interface.name}.h": header_text(interface, targets, command)}
    with (
        system_errors_as(ExportError, f"write {path}"),
        tempfile.TemporaryDirectory(dir=target.parent, prefix=".tune-") as scratch,
    ):
        work = Path(scratch)
        parts = _write_parts(interface, programs, work, texts, tools)
        run_tool(work, *tools.compiler, "-r", "-nostdlib", "-o", "model", *parts)
        localise(work, tools, "model", interface.functions)
        return _move(work, {"model": target, f"{interface.name}.h": header})


def _functions(interface: CInterface) -> str:
    return YOUR_FUNCTIONS if interface.called else ""


def _interface(programs: Sequence[ExecutableSpec], name: str | None) -> CInterface:
    if ConstantLayout.of(programs).bytes > _MOST_CONSTANT_BYTES:
        raise ExportError(
            "the model has more than 2 GiB of constants, too many for a library",
            hint="build an artifact",
        )
    links = (link for program in programs for link in program.functions)
    python = next((link.name for link in links if not link.symbol), None)
    if python is not None:
        raise ExportError(
            f"the model calls the function {python}, which is Python: a C library has none",
            hint="register it as CFunction(library, symbol), or build an artifact",
        )
    return c_interface(programs, name)


def _write_parts(
    interface: CInterface,
    programs: Sequence[ExecutableSpec],
    work: Path,
    texts: dict[str, str],
    tools: Toolchain,
) -> list[str]:
    """Write everything that is linked, and `texts`, into `work`; the object files' names.

    All tools run inside of `work` on relative names, so that its path gets into no file.
    """
    for file, text in texts.items():
        (work / file).write_text(text, encoding="utf-8")
    linked = linked_programs(programs)
    parts = _write_programs(linked, work, tools)
    target = programs[0].target
    if len(programs) > 1:
        target = baseline_target(target)  # what all programs share
    codes = {"choice": chain_ir(interface.ports, lambda n: linked[n].symbols[SIZES_SYMBOL])}
    if interface.threads > 1:
        codes["pool"] = pool_ir(target.triple.split("-")[0])
    for name, code in codes.items():
        (work / f"{name}.o").write_bytes(object_code(code, target))
        parts.append(f"{name}.o")
    _write_constants(ConstantLayout.of(programs), work / "constants.bin")
    (work / "constants.s").write_text(constants_text("constants.bin"), encoding="utf-8")
    compile_c(work, tools, "model", implementation_text(interface, programs))
    run_tool(work, *tools.compiler, "-c", "-o", "constants.o", "constants.s")
    return ["model.o", *parts, "constants.o"]


def _write_programs(programs: Sequence[LinkedProgram], work: Path, tools: Toolchain) -> list[str]:
    """Write the programs' code; the object files' names.

    Of several nothing can be seen but kernels and entry functions, by their names in the library.
    """
    files: dict[str, str] = {}
    for number, program in enumerate(programs):
        for part in program.spec.objects:
            symbol = program.symbols[part.symbol]
            if symbol not in files:
                files[symbol] = _write_object(part.code, f"kernel{len(files)}.o", work)
                if len(programs) > 1:
                    _rename(files[symbol], program, [symbol], work, tools)
        entry = files[program.entry] = _write_object(program.spec.entry, f"entry{number}.o", work)
        if len(programs) > 1:
            _rename(entry, program, program.entry_functions, work, tools)
    return list(files.values())


def _write_object(code: bytes, file: str, work: Path) -> str:
    (work / file).write_bytes(code)
    return file


def _rename(
    file: str, program: LinkedProgram, kept: Sequence[str], work: Path, tools: Toolchain
) -> None:
    """Have an object file call symbols as the library does, and define only those that are kept."""
    renames = (f"--redefine-sym={own}={name}" for own, name in program.symbols.items())
    run_tool(work, tools.objcopy, *renames, file)
    localise(work, tools, file, kept)


def _write_constants(layout: ConstantLayout, path: Path) -> None:
    with path.open("wb") as file:
        for array, start in zip(layout.arrays, layout.starts, strict=True):
            file.write(bytes(start - file.tell()))
            file.write(bytes_of(array))
        file.write(bytes(layout.bytes - file.tell()))


def _link_library(
    interface: CInterface, work: Path, library: str, parts: Sequence[str], tools: Toolchain
) -> None:
    """Link the parts; models' libraries in one process see nothing of each other's kernels."""
    functions = " ".join(f"{symbol};" for symbol in interface.functions)
    (work / "exports.map").write_text(f"{{ global: {functions} local: *; }};\n", encoding="utf-8")
    flags = [*_MAPPED, f"-Wl,-soname,{library}"]
    if not interface.called:
        flags.append("-Wl,-z,defs")
    if interface.threads > 1:
        flags += ["-Wl,-z,nodelete", "-pthread"]  # its threads run in it until the process ends
    run_tool(work, *tools.compiler, *flags, "-o", library, *parts, "-lm")


def _move(work: Path, places: dict[str, Path]) -> tuple[Path, ...]:
    """Move finished files from `work` to their places, each at once."""
    for file, place in places.items():
        os.replace(work / file, place)
    return tuple(places.values())
