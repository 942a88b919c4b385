"""The kernels of a model as C functions of their own, which a library exports on request."""

from __future__ import annotations

from collections.abc import Sequence

from tunefarm.compiler.machine.float_state import float_state_c
from tunefarm.compiler.runtime.c_library.c_interface import CInterface, CKernels, in_comment
from tunefarm.compiler.runtime.c_library.c_programs import LinkedProgram
from tunefarm.compiler.runtime.execution.kernel_functions import KernelOperands
from tunefarm.compiler.target import Target
from tunefarm.compiler.types.numerics import FLUSH
from tunefarm.compiler.types.tensor_type import TensorType


def kernels_header(interface: CInterface) -> str:
    """What the header declares besides the model's functions; nothing where none are exported.

    Of a library of several programs it is what those of each are by names of its own.
    """
    return "".join(
        (f"\n/* The kernels of the program for {in_comment(own.sizes)}. */\n" if own.sizes else "")
        + _kernels(own, interface.macro)
        for own in interface.kernels
        if own.kernels
    )


def _kernels(own: CKernels, whole: str) -> str:
    name, macro = own.name, own.macro
    each = "\n".join(_declaration(own, kernel) for kernel in own.kernels)
    return f"""
/* The kernels of a run, to call separately. Inputs and output are dense, in row-major order, and
   aligned to their element types; the output must not overlap an input. Constants are bound to
   those of the model's first call of the kernel. A workspace is aligned to {whole}_ALIGNMENT, or
   NULL if it has 0 bytes. Returns {whole}_OK, or an error code and nothing was computed. Several
   threads may call kernels at once, each with its own workspace and output. An input of sizes has
   the actual dimensions of the other inputs. */
struct {name}_kernel {{
    const char *name;
    size_t inputs;
    const size_t *input_bytes;
    size_t output_bytes;
    size_t workspace_bytes;
    int (*run)(const void *const *inputs, void *output, void *workspace);
}};

#define {macro}_KERNELS {len(own.kernels)}

/* The kernel with this number, in order of first use; NULL from {macro}_KERNELS on. */
const struct {name}_kernel *{name}_kernel_at(size_t number);

{each}"""


def kernels_text(interface: CInterface, programs: Sequence[LinkedProgram], start: str) -> str:
    """GNU C11 that defines what `kernels_header` declares, behind the model's own functions.

    `start` starts threads.
    """
    exported = [own for own in interface.kernels if own.kernels]
    if not exported:
        return ""
    specs = [programs[own.number].spec for own in exported]
    flushing = next((s.target.triple for s in specs if s.denormals == FLUSH), "")
    floats = f"{float_state_c(flushing)}\n" if flushing else ""
    symbols = dict.fromkeys(
        programs[own.number].symbols[kernel.symbol] for own in exported for kernel in own.kernels
    )
    declared = "\n".join(
        f"extern void {symbol}(const void *const *, void *, const struct runtime *);"
        for symbol in symbols
    )
    each = "".join(_text(interface, own, programs[own.number], start) for own in exported)
    return f"\n{declared}\n\n{floats}{each}"


def _text(interface: CInterface, own: CKernels, program: LinkedProgram, start: str) -> str:
    """The functions of one program's kernels; what is static has the program's number."""
    name, macro, number = own.name, interface.macro, own.number
    sizes = "\n".join(
        f"static const size_t kernel_bytes_{number}_{place}[] = {{{_bytes(kernel.inputs)}}};"
        for place, kernel in enumerate(own.kernels)
    )
    rows = "\n".join(
        f'    {{"{_name(kernel)}", {len(kernel.inputs)}, kernel_bytes_{number}_{place}, '
        f"{kernel.output.bytes}, {kernel.workspace_bytes}, {own.symbol(kernel)}}},"
        for place, kernel in enumerate(own.kernels)
    )
    functions = "\n".join(
        _functions(macro, own, place, program, start) for place in range(len(own.kernels))
    )
    return f"""
{_tiles(program.spec.needed_target, number)}
{sizes}

static const struct {name}_kernel kernels_{number}[] = {{
{rows}
}};

const struct {name}_kernel *{name}_kernel_at(size_t number)
{{
    return number < {own.macro}_KERNELS ? &kernels_{number}[number] : NULL;
}}

static int check_kernel_{number}(const struct {name}_kernel *kernel, const void *const *inputs,
                                 const void *output, const void *workspace)
{{
    if (inputs == NULL && kernel->inputs > 0)
        return {macro}_ERROR_NULL;
    for (size_t i = 0; i < kernel->inputs; i++)
        if (inputs[i] == NULL && kernel->input_bytes[i] > 0)
            return {macro}_ERROR_NULL;
    if (output == NULL && kernel->output_bytes > 0)
        return {macro}_ERROR_NULL;
    if (workspace == NULL && kernel->workspace_bytes > 0)
        return {macro}_ERROR_NULL;
    if (!is_aligned(workspace))
        return {macro}_ERROR_WORKSPACE;
    if (program_number() != {own.machine})
        return {macro}_ERROR_CPU;
    return {macro}_OK;
}}

{functions}"""


def _declaration(own: CKernels, kernel: KernelOperands) -> str:
    count = len(kernel.calls)
    called = "once" if count == 1 else f"{count} times"
    lines = [f"{in_comment(kernel.name)}, which a run calls {called}."]
    lines += [f"inputs[{n}]: {_described(type)}" for n, type in enumerate(kernel.inputs)]
    comment = "\n   ".join([*lines, f"output: {_described(kernel.output)}"])
    symbol = own.symbol(kernel)
    return (
        f"/* {comment} */\n"
        f"int {symbol}(const void *const *inputs, void *output, void *workspace);\n"
        f"size_t {symbol}_workspace_bytes(void);\n"
    )


def _described(type: TensorType) -> str:
    return f"{type}, {type.bytes} bytes"


def _functions(macro: str, own: CKernels, place: int, program: LinkedProgram, start: str) -> str:
    number, kernel = own.number, own.kernels[place]
    symbol = own.symbol(kernel)
    flush = restore = ""
    if program.spec.denormals == FLUSH:
        flush = "    const unsigned long long floats = flush_floats();\n"
        restore = "    set_floats(floats);\n"
    given = iter(range(len(kernel.inputs)))
    buffers = [
        f"(const unsigned char *)constants_{number}[{location.number}] + {location.offset}"
        if is_bound
        else f"inputs[{next(given)}]"
        for location, is_bound in zip(kernel.calls[0].buffers, kernel.bound, strict=False)
    ]
    return f"""\
size_t {symbol}_workspace_bytes(void)
{{
    return {kernel.workspace_bytes};
}}

int {symbol}(const void *const *inputs, void *output, void *workspace)
{{
    const int code = check_kernel_{number}(&kernels_{number}[{place}], inputs, output, workspace);
    if (code != {macro}_OK)
        return code;

    const void *buffers[] = {{{", ".join([*buffers, "output"])}}};
{start}    begin_tiles_{number}();
{flush}    {program.symbols[kernel.symbol]}(buffers, workspace, &runtime);
{restore}    end_tiles_{number}();
    return {macro}_OK;
}}
"""


def _tiles(target: Target, number: int) -> str:
    """Functions that set up the matrix tiles of the target for kernels, and release them."""
    begin = end = ""
    shapes = ""
    if target.matrix_tiles is not None:
        content = ", ".join(map(str, target.matrix_tiles.configuration()))
        shapes = f"static const unsigned char tile_shapes_{number}[] = {{{content}}};\n\n"
        begin = '    __asm__ volatile("ldtilecfg %0" : : "m"(TILES) : "memory");\n'
        begin = begin.replace("TILES", f"tile_shapes_{number}")
        end = '    __asm__ volatile("tilerelease" : : : "memory");\n'
    return (
        f"{shapes}static void begin_tiles_{number}(void)\n{{\n{begin}}}\n\n"
        f"static void end_tiles_{number}(void)\n{{\n{end}}}\n"
    )


def _name(kernel: KernelOperands) -> str:
    return "".join(c if c.isascii() and (c.isalnum() or c in "_.-") else "_" for c in kernel.name)


def _bytes(types: Sequence[TensorType]) -> str:
    return ", ".join(str(type.bytes) for type in types) or "0"
