"""An example program in C for a built model: read or fill the inputs, run, show the outputs.

With dynamic shapes sizes come from the command line.
"""

from __future__ import annotations

from tunefarm.compiler.runtime.c_library.c_interface import C_TYPES, CInterface, CPort, in_comment
from tunefarm.compiler.runtime.c_library.c_sizes import CSizes
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
static void read_file(const char *path, void *memory, size_t bytes)
{
    FILE *file = fopen(path, "rb");

    if (file == NULL) {
        perror(path);
        exit(1);
    }
    if (fread(memory, 1, bytes, file) != bytes || fgetc(file) != EOF) {
        fprintf(stderr, "%s: not a file of %zu bytes\\n", path, bytes);
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


def example_text(interface: CInterface) -> str:
    """A program of standard C11 that uses every part of the interface."""
    name, macro = interface.name, interface.macro
    inputs, outputs = interface.inputs, interface.outputs
    files = [f"{port.member}.bin" for port in (*inputs, *outputs)]
    variables = [
        *((f"input_{i}", port) for i, port in enumerate(inputs)),
        *((f"output_{i}", port) for i, port in enumerate(outputs)),
    ]
    allocated = "\n".join(
        f"    {port.c_type} *const {variable} = allocate({interface.size_macro(port, 'BYTES')});"
        for variable, port in variables
    )
    assigned = "\n".join(f"    io.{port.member} = {variable};" for variable, port in variables)
    freed = "\n".join(f"    free({variable});" for variable, _ in variables)
    filled = "\n".join(_fill(interface, port, i) for i, port in enumerate(inputs))
    shown = "\n".join(_show(interface, port, i) for i, port in enumerate(outputs))
    helpers = ALLOCATE + (_READ_FILE if inputs else "") + _WRITE_FILE
    return f"""/* Runs the model on raw files, elements in the machine's order and nothing else:

       ./{name}_example {" ".join(files)}

   Without files the inputs are filled with a pattern. Without output files the first values of
   each output are printed. {name}.h has the command that compiles this. */
#include "{name}.h"

#include <stdio.h>
#include <stdlib.h>

enum {{ INPUTS = {len(inputs)}, OUTPUTS = {len(outputs)}, ALIGNMENT = {macro}_ALIGNMENT }};

{helpers}int main(int argc, char **argv)
{{
    const int files = argc - 1;
    struct {name}_io io;
    void *const workspace = allocate({name}_workspace_bytes());
{allocated}
    int code;

    if (files != 0 && files != INPUTS && files != INPUTS + OUTPUTS) {{
        fprintf(stderr, "usage: %s [{_usage(files, len(inputs))}]\\n", argv[0]);
        return 2;
    }}
{filled}

{assigned}
    code = {name}_run(&io, workspace);
    if (code != {macro}_OK) {{
        fprintf(stderr, "{name}_run: %s\\n", {name}_error(code));
        return 1;
    }}
{shown}

{freed}
    free(workspace);
    return 0;
}}
"""


def _usage(files: list[str], inputs: int) -> str:
    outputs = f"[{' '.join(files[inputs:])}]"
    return " ".join([*files[:inputs], outputs]) if inputs else " ".join(files[inputs:])


def _fill(interface: CInterface, port: CPort, number: int) -> str:
    size = interface.size_macro(port, "BYTES")
    count = interface.size_macro(port, "COUNT")
    return f"""
    if (files > 0)
        read_file(argv[{number + 1}], input_{number}, {size});
    else
        for (size_t i = 0; i < {count}; i++)
            input_{number}[i] = {pattern_of(port)};"""


def pattern_of(port: CPort) -> str:
    """A value for element i; integers that may be indices stay 0."""
    dtype = port.type.dtype
    if port.c_type in ("float", "double"):
        return f"({port.c_type})(i % 17) / 16 - ({port.c_type})0.5"
    if dtype is DType.BOOL:
        return "i % 2 != 0"
    return "0" if dtype.bytes > 1 or dtype.bits < 8 else f"({port.c_type})(i % 7)"


def _show(interface: CInterface, port: CPort, number: int) -> str:
    size = interface.size_macro(port, "BYTES")
    count = interface.size_macro(port, "COUNT")
    form, cast = format_of(port.type.dtype)
    return f"""
    if (files == INPUTS + OUTPUTS) {{
        write_file(argv[INPUTS + {number + 1}], output_{number}, {size});
    }} else {{
        printf("{port.member} (%zu elements):", {count});
        for (size_t i = 0; i < {count} && i < {SHOWN}; i++)
            printf(" {form}", ({cast})output_{number}[i]);
        printf("\\n");
    }}"""


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


def sized_example_text(interface: CInterface) -> str:
    """A program of standard C11 that uses every part of the interface."""
    name, macro, sizes = interface.name, interface.macro, CSizes.of(interface)
    chosen = choose_sizes(sizes.signature, {})
    symbols = [s.symbol.name for s in sizes.signature.sources if not isinstance(s, ResultSource)]
    places = {symbol: f"sizes[{number}]" for number, symbol in enumerate(symbols)}
    allocated = "\n".join(
        f"    {port.c_type} *const {kind}_{i} = allocate({interface.size_macro(port, 'BYTES')});"
        for kind, ports in (("input", interface.inputs), ("output", interface.outputs))
        for i, port in enumerate(ports)
    )
    filled = "".join(
        f"    for (size_t i = 0; i < {interface.size_macro(port, 'COUNT')}; i++)\n"
        f"        input_{i}[i] = {pattern_of(port)};\n"
        for i, port in enumerate(interface.inputs)
    )
    numbers = {port.name: i for i, port in enumerate(interface.inputs)}
    filled += "".join(
        f"    input_{numbers[s.input]}[{s.position}] = "
        f"({interface.inputs[numbers[s.input]].c_type}){places[s.symbol.name]};\n"
        for s in sizes.signature.sources
        if isinstance(s, ValueSource)
    )
    assigned = "".join(
        f"    io.{port.member} = {kind}_{i};\n"
        for kind, ports in (("input", interface.inputs), ("output", interface.outputs))
        for i, port in enumerate(ports)
    )
    assigned += "".join(
        f"    io.{port.member}_shape[{axis}] = {_expression(dimension, places)};\n"
        for port, sized in sizes.inputs
        if sized.symbols
        for axis, dimension in enumerate(sized.shape)
    )
    shown = "".join(_show_sized(sizes, i) for i in range(len(interface.outputs)))
    freed = "".join(f"    free(input_{i});\n" for i in range(len(interface.inputs)))
    freed += "".join(f"    free(output_{i});\n" for i in range(len(interface.outputs)))
    usage = "".join(f" [{symbol}]" for symbol in map(in_comment, symbols))
    said = ", with dynamic dimensions from the command line" if symbols else ""
    middle = ", ".join(str(chosen[symbol]) for symbol in symbols)
    declared = f"    int64_t sizes[] = {{{middle}}};\n" if symbols else ""
    return f"""/* Runs the model on inputs that are filled with a pattern{said}:

       ./{name}_example{usage}

   Prints the shape and the first values of each output. {name}.h has the command that compiles
   this. */
#include "{name}.h"

#include <stdio.h>
#include <stdlib.h>

enum {{ ALIGNMENT = {macro}_ALIGNMENT{f", SIZES = {len(symbols)}" if symbols else ""} }};

{ALLOCATE}int main({"int argc, char **argv" if symbols else "void"})
{{
{declared}    struct {name}_io io;
    void *const workspace = allocate({name}_workspace_bytes(NULL));
{allocated}
    int code;

{_READ_SIZES if symbols else ""}{filled}{assigned}
    code = {name}_sizes(&io); /* the output shapes, for programs that allocate outputs */
    if (code == {macro}_OK)
        code = {name}_run(&io, workspace);
    if (code != {macro}_OK) {{
        fprintf(stderr, "{name}_run: %s\\n", {name}_error(code));
        goto end;
    }}
{shown}
end:
{freed}    free(workspace);
    return code == {macro}_OK ? 0 : 1;
}}
"""


def _show_sized(sizes: CSizes, number: int) -> str:
    port, sized = sizes.outputs[number]
    form, cast = format_of(port.type.dtype)
    if sized.others:
        return _show_ranked(port, number, form, cast)
    extents = [
        f"io.{port.member}_shape[{axis}]" if sized.symbols else str(extent)
        for axis, extent in enumerate(sized.shape)
    ]
    count = " * ".join(f"(size_t){extent}" for extent in extents) or "(size_t)1"
    forms = ", ".join("%lld" for _ in extents)
    values = "".join(f", (long long){extent}" for extent in extents)
    return f"""
    printf("{port.member} [{forms}]:"{values});
{_values(number, count, form, cast)}"""


def _show_ranked(port: CPort, number: int, form: str, cast: str) -> str:
    """Of an output whose rank the sizes decide."""
    return f"""
    size_t count_{number} = 1;
    printf("{port.member} [");
    for (int64_t axis = 0; axis < io.{port.member}_rank; axis++) {{
        printf(axis ? ", %lld" : "%lld", (long long)io.{port.member}_shape[axis]);
        count_{number} *= (size_t)io.{port.member}_shape[axis];
    }}
    printf("]:");
{_values(number, f"count_{number}", form, cast)}"""


def _values(number: int, count: str, form: str, cast: str) -> str:
    """The first values of an output."""
    return f"""\
    for (size_t i = 0; i < {count} && i < {SHOWN}; i++)
        printf(" {form}", ({cast})output_{number}[i]);
    printf("\\n");
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
