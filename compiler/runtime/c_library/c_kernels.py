"""The kernels of a model as C functions of their own, which a library exports on request."""

from __future__ import annotations

from collections.abc import Sequence

from tunefarm.compiler.machine.float_state import float_state_c
from tunefarm.compiler.runtime.c_library.c_interface import CInterface, in_comment
from tunefarm.compiler.runtime.spec.executable_spec import ExecutableSpec
from tunefarm.compiler.runtime.spec.kernel_operands import KernelOperands
from tunefarm.compiler.target import Target
from tunefarm.compiler.types.numerics import FLUSH, Denormals
from tunefarm.compiler.types.tensor_type import TensorType


def kernels_header(interface: CInterface) -> str:
    """What the header declares besides the model's functions; nothing where none are exported.

    Of a library of several programs it is what those of each are by names of its own.
    """
    if interface.parts:
        return "".join(
            f"\n/* The kernels of the program for {in_comment(sizes)}. */\n"
            f"{_of_program(part, interface.macro)}"
            for sizes, part in interface.parts
        )
    return _of_program(interface, interface.macro)


def _of_program(interface: CInterface, whole: str) -> str:
    """The kernels of one program; macros of the library begin with `whole`."""
    if not interface.kernels:
        return ""
    once = _ONCE if interface.is_part else "{}"
    return once.format(_kernels(interface, whole), macro=interface.macro)


_ONCE = """
#ifndef {macro}_KERNELS
{0}
#endif
"""
"""The library's header and that of the part both have it."""


def _kernels(interface: CInterface, whole: str) -> str:
    name, macro = interface.name, interface.macro
    each = "\n".join(_declaration(interface, kernel) for kernel in interface.kernels)
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

#define {macro}_KERNELS {len(interface.kernels)}

/* The kernel with this number, in order of first use; NULL from {macro}_KERNELS on. */
const struct {name}_kernel *{name}_kernel_at(size_t number);

{each}"""


def kernels_text(interface: CInterface, program: ExecutableSpec, is_unable: str, start: str) -> str:
    """GNU C11 that defines what `kernels_header` declares, behind the model's own functions.

    They are those of `program`. `is_unable` is the condition of a CPU that cannot run the code,
    `start` starts threads.
    """
    if not interface.kernels:
        return ""
    name, macro = interface.name, interface.macro
    begin = ""
    if interface.is_part:
        is_unable = interface.unable
        begin = f"extern int {is_unable.split('(')[0]}(void);\n"
    symbols = "\n".join(
        f"extern void {symbol}(const void *const *, void *, const struct runtime *);"
        for symbol in dict.fromkeys(kernel.symbol for kernel in interface.kernels)
    )
    sizes = "\n".join(
        f"static const size_t kernel_bytes_{number}[] = {{{_bytes(kernel.inputs)}}};"
        for number, kernel in enumerate(interface.kernels)
    )
    rows = "\n".join(
        f'    {{"{_name(kernel)}", {len(kernel.inputs)}, kernel_bytes_{number}, '
        f"{kernel.output.bytes}, {kernel.workspace_bytes}, {interface.kernel_symbol(kernel)}}},"
        for number, kernel in enumerate(interface.kernels)
    )
    functions = "\n".join(
        _functions(interface, number, kernel, start, program.denormals)
        for number, kernel in enumerate(interface.kernels)
    )
    return f"""
{begin}{symbols}

{_tiles(program.target)}
{_floats(program)}{sizes}

static const struct {name}_kernel kernels[] = {{
{rows}
}};

const struct {name}_kernel *{name}_kernel_at(size_t number)
{{
    return number < {macro}_KERNELS ? &kernels[number] : NULL;
}}

static int check_kernel(const struct {name}_kernel *kernel, const void *const *inputs,
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
    if ({is_unable})
        return {macro}_ERROR_CPU;
    return {macro}_OK;
}}

{functions}"""


def _declaration(interface: CInterface, kernel: KernelOperands) -> str:
    count = len(kernel.calls)
    called = "once" if count == 1 else f"{count} times"
    lines = [f"{in_comment(kernel.name)}, which a run calls {called}."]
    lines += [f"inputs[{n}]: {_described(type)}" for n, type in enumerate(kernel.inputs)]
    comment = "\n   ".join([*lines, f"output: {_described(kernel.output)}"])
    symbol = interface.kernel_symbol(kernel)
    return (
        f"/* {comment} */\n"
        f"int {symbol}(const void *const *inputs, void *output, void *workspace);\n"
        f"size_t {symbol}_workspace_bytes(void);\n"
    )


def _described(type: TensorType) -> str:
    return f"{type}, {type.bytes} bytes"


def _functions(
    interface: CInterface, number: int, kernel: KernelOperands, start: str, denormals: Denormals
) -> str:
    symbol, macro = interface.kernel_symbol(kernel), interface.macro
    flush = restore = ""
    if denormals == FLUSH:
        flush = "    const unsigned long long floats = flush_floats();\n"
        restore = "    set_floats(floats);\n"
    given = iter(range(len(kernel.inputs)))
    buffers = [
        f"(const unsigned char *)constants[{place.number}] + {place.offset}"
        if is_bound
        else f"inputs[{next(given)}]"
        for place, is_bound in zip(kernel.calls[0].buffers, kernel.bound, strict=False)
    ]
    return f"""\
size_t {symbol}_workspace_bytes(void)
{{
    return {kernel.workspace_bytes};
}}

int {symbol}(const void *const *inputs, void *output, void *workspace)
{{
    const int code = check_kernel(&kernels[{number}], inputs, output, workspace);
    if (code != {macro}_OK)
        return code;

    const void *buffers[] = {{{", ".join([*buffers, "output"])}}};
{start}    begin_tiles();
{flush}    {kernel.symbol}(buffers, workspace, &runtime);
{restore}    end_tiles();
    return {macro}_OK;
}}
"""


def _tiles(target: Target) -> str:
    """Functions that set up the matrix tiles of the target for kernels, and release them."""
    begin = end = ""
    shapes = ""
    if target.matrix_tiles is not None:
        content = ", ".join(map(str, target.matrix_tiles.configuration()))
        shapes = f"static const unsigned char tile_shapes[] = {{{content}}};\n\n"
        begin = '    __asm__ volatile("ldtilecfg %0" : : "m"(tile_shapes) : "memory");\n'
        end = '    __asm__ volatile("tilerelease" : : : "memory");\n'
    return (
        f"{shapes}static void begin_tiles(void)\n{{\n{begin}}}\n\n"
        f"static void end_tiles(void)\n{{\n{end}}}\n"
    )


def _floats(program: ExecutableSpec) -> str:
    """Functions that have denormal numbers flushed, where they are."""
    if program.denormals != FLUSH:
        return ""
    return f"{float_state_c(program.target.triple)}\n"


def _name(kernel: KernelOperands) -> str:
    return "".join(c if c.isascii() and (c.isalnum() or c in "_.-") else "_" for c in kernel.name)


def _bytes(types: Sequence[TensorType]) -> str:
    return ", ".join(str(type.bytes) for type in types) or "0"
