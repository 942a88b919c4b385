"""An example program in C for a built model: read or fill the inputs, run, show the outputs."""

from __future__ import annotations

from tunefarm.compiler.runtime.c_library.c_interface import (
    C_TYPES,
    CInterface,
    CPort,
    c_string,
    in_comment,
)
from tunefarm.compiler.types.chosen_sizes import choose_sizes
from tunefarm.compiler.types.dtypes import DType
from tunefarm.compiler.types.signature import ResultSource, ValueSource
from tunefarm.compiler.types.sizes import Dimension, Function, Size, Symbol

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
