"""The C code round a model's entry function, and the assembly that holds its constants."""

from __future__ import annotations

from collections.abc import Sequence

from tunefarm.compiler.runtime.c_library.c_choice import choice_text
from tunefarm.compiler.runtime.c_library.c_functions import FunctionsCode, functions_code
from tunefarm.compiler.runtime.c_library.c_interface import CInterface, CPort, error_function
from tunefarm.compiler.runtime.c_library.c_kernels import kernels_text
from tunefarm.compiler.runtime.c_library.c_programs import (
    CONSTANTS_SYMBOL,
    ConstantLayout,
    ProgramCode,
    program_code,
)
from tunefarm.compiler.runtime.c_library.c_sized_functions import DECLARATIONS, sized_functions
from tunefarm.compiler.runtime.spec.executable_spec import ALIGNMENT, ExecutableSpec, aligned

_POOL = """\
#include <pthread.h>
#include <signal.h>

extern void pool_parallel(void (*fn)(void *), void *data, int32_t threads, int32_t flags);
extern void pool_worker(void);

static void *work(void *unused)
{
    pool_worker();
    return unused;
}

/* A thread that cannot be started is done without: loops wait for nobody. */
static void start_threads(void)
{
    sigset_t every, before;
    pthread_attr_t attributes;
    pthread_t thread;

    if (pthread_attr_init(&attributes) != 0)
        return;
    pthread_attr_setdetachstate(&attributes, PTHREAD_CREATE_DETACHED);
    sigfillset(&every); /* signals are for the program's own threads */
    pthread_sigmask(SIG_SETMASK, &every, &before);
    for (int i = 1; i < THREADS; i++)
        if (pthread_create(&thread, &attributes, work, NULL) != 0)
            break;
    pthread_sigmask(SIG_SETMASK, &before, NULL);
    pthread_attr_destroy(&attributes);
}

static const struct runtime runtime = {pool_parallel, THREADS, 0};
static pthread_once_t started = PTHREAD_ONCE_INIT;
"""

_SERIAL = """\
static const struct runtime runtime = {NULL, 1, 0};
"""

_ALIGNED = """\
static int is_aligned(const void *pointer)
{
    return (uintptr_t)pointer % ALIGNMENT == 0;
}
"""

_COPYING = (
    _ALIGNED
    + """
/* Bytes of a copy in the workspace. */
static size_t room(size_t bytes)
{
    return (bytes + ALIGNMENT - 1) / ALIGNMENT * ALIGNMENT;
}
"""
)


_OF_THE_WHOLE = """\
extern const struct runtime runtime;
"""


def implementation_text(
    interface: CInterface,
    programs: Sequence[ExecutableSpec],
    layout: ConstantLayout | None = None,
) -> str:
    """GNU C11 that defines the interface's functions; `interface` is that of each program.

    Of a part of a library `layout` is that of its constants, see `program_code`.
    """
    code = program_code(programs, layout)
    foreign = functions_code(interface, programs)
    sized = interface.signature is not None
    port_bytes = "" if sized else _port_bytes(interface)
    functions = (
        sized_functions(interface, programs[0], code, foreign)
        if sized
        else _functions(interface, programs, code, foreign)
    )
    kernels = kernels_text(interface, programs[0], code.is_unable, _start(interface))
    return f"""\
{_beginning(interface)}
{foreign.declarations}{code.declarations}
{DECLARATIONS if sized else ""}\
{port_bytes}
{_OF_THE_WHOLE if interface.is_part else _threads(interface)}
{code.cpu_check}
{_ALIGNED if sized else _COPYING}
{functions}{kernels}"""


def choosing_text(
    interface: CInterface, programs: Sequence[ExecutableSpec], headers: Sequence[str]
) -> str:
    """GNU C11 that defines the functions of a library of several programs for sizes."""
    runtime = _threads(interface).replace("static const struct runtime", "const struct runtime")
    code = choice_text(interface, programs, _start(interface), headers)
    return f"{_beginning(interface)}\n{runtime}\n{code}"


def _beginning(interface: CInterface) -> str:
    return f"""\
#pragma GCC visibility push(default)
#include "{interface.name}.h"
#pragma GCC visibility pop

#include <string.h>

enum {{ ALIGNMENT = {ALIGNMENT}, THREADS = {interface.threads} }};

struct runtime {{
    void (*parallel)(void (*fn)(void *), void *data, int32_t threads, int32_t flags);
    int32_t threads;
    int32_t reserved;
}};
"""


def _threads(interface: CInterface) -> str:
    return _POOL if interface.threads > 1 else _SERIAL


def _start(interface: CInterface) -> str:
    """What a run begins with where it starts threads."""
    started = "    pthread_once(&started, start_threads);\n"
    return started if interface.starts_threads else ""


def _port_bytes(interface: CInterface) -> str:
    return f"""\
static const size_t input_bytes[] = {{{_sizes(interface.inputs)}}};
static const size_t output_bytes[] = {{{_sizes(interface.outputs)}}};
"""


def _functions(
    interface: CInterface,
    programs: Sequence[ExecutableSpec],
    code: ProgramCode,
    foreign: FunctionsCode,
) -> str:
    """The three functions of the interface."""
    arena = max(aligned(program.arena_bytes) for program in programs)
    name, macro = interface.name, interface.macro
    start = _start(interface)
    ports = (*interface.inputs, *interface.outputs)
    copies = sum(aligned(port.type.bytes) for port in ports)
    return f"""\
size_t {name}_workspace_bytes(void)
{{
    return {max(ALIGNMENT, arena + copies)};
}}

{error_function(interface, code.lacking, foreign.error_case)}
int {name}_run(const struct {name}_io *io, void *workspace)
{{
    enum {{ INPUTS = {len(interface.inputs)}, OUTPUTS = {len(interface.outputs)} }};

    if (io == NULL || workspace == NULL)
        return {macro}_ERROR_NULL;

    const void *inputs[] = {{{_pointers(interface.inputs)}}};
    void *outputs[] = {{{_pointers(interface.outputs)}}};
    void *results[OUTPUTS + 1];
    unsigned char *copy = (unsigned char *)workspace + {arena};

    for (int i = 0; i < INPUTS; i++)
        if (inputs[i] == NULL && input_bytes[i] > 0)
            return {macro}_ERROR_NULL;
    for (int i = 0; i < OUTPUTS; i++)
        if (outputs[i] == NULL && output_bytes[i] > 0)
            return {macro}_ERROR_NULL;
    if (!is_aligned(workspace))
        return {macro}_ERROR_WORKSPACE;
    if ({code.is_unable})
        return {macro}_ERROR_CPU;

    for (int i = 0; i < INPUTS; i++) {{
        if (!is_aligned(inputs[i]))
            inputs[i] = memcpy(copy, inputs[i], input_bytes[i]);
        copy += room(input_bytes[i]);
    }}
    for (int i = 0; i < OUTPUTS; i++) {{
        results[i] = is_aligned(outputs[i]) ? outputs[i] : copy;
        copy += room(output_bytes[i]);
    }}
{start}    {code.call}
{foreign.after}    for (int i = 0; i < OUTPUTS; i++)
        if (results[i] != outputs[i])
            memcpy(outputs[i], results[i], output_bytes[i]);
    return {macro}_OK;
}}
"""


def constants_text(path: str) -> str:
    """Assembly of a read-only symbol with the contents of the file `path`."""
    return f"""\
    .section .rodata, "a", %progbits
    .globl {CONSTANTS_SYMBOL}
    .hidden {CONSTANTS_SYMBOL}
    .balign {ALIGNMENT}
{CONSTANTS_SYMBOL}:
    .incbin "{path}"
    .byte 0
    .section .note.GNU-stack, "", %progbits
"""


def _sizes(ports: Sequence[CPort]) -> str:
    return ", ".join(str(port.type.bytes) for port in ports) or "0"


def _pointers(ports: Sequence[CPort]) -> str:
    return ", ".join(f"io->{port.member}" for port in ports) or "NULL"
