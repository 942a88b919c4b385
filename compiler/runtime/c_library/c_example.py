"""An example program in C for a built model: read or fill the inputs, run, show the outputs."""

from __future__ import annotations

from tunefarm.compiler.runtime.c_library.c_interface import C_TYPES, CInterface, CPort
from tunefarm.compiler.types.dtypes import DType

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
