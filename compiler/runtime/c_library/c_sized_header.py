"""The header of a model with dynamic shapes: shapes stand in the struct next to the pointers."""

from __future__ import annotations

from collections.abc import Sequence

from tunefarm.compiler.runtime.c_library.c_header import introduction
from tunefarm.compiler.runtime.c_library.c_interface import CInterface
from tunefarm.compiler.runtime.c_library.c_kernels import kernels_header
from tunefarm.compiler.runtime.c_library.c_sizes import CSizes
from tunefarm.compiler.runtime.spec.executable_spec import ALIGNMENT
from tunefarm.compiler.target import Target

FIRST_SIZE_ERROR = 16

_TEMPLATE = """
#ifndef {macro}_H
#define {macro}_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {{
#endif

#define {macro}_ALIGNMENT {alignment} /* bytes; of the workspace */
#define {macro}_THREADS {threads} /* maximum of a run, the calling thread included */

/* The maximum number of elements and bytes of each input and output. */
{sizes}

/* Pointers to the inputs and outputs, with their shapes where these are dynamic: the caller sets
   those of the inputs, and the library writes those of the outputs. Tensors are dense at these
   shapes, in row-major order, at any address. An output must not overlap an input or another
   output. */
struct {name}_io {{
{members}
}};

enum {{
    {macro}_OK = 0,
    {macro}_ERROR_NULL = 1,      /* io, a pointer in it, or the workspace is null */
    {macro}_ERROR_WORKSPACE = 2, /* the workspace is not aligned to {macro}_ALIGNMENT */
    {macro}_ERROR_CPU = 3,       /* this CPU lacks instructions that the code needs */
    {macro}_ERROR_FUNCTION = 4,  /* a custom operator failed */
    {macro}_ERROR_SIZES = {first}    /* this and above: a shape does not fit, see {name}_error */
}};

/* Bytes of the workspace that a run needs at the input shapes in `io`; for NULL, at any shapes. */
size_t {name}_workspace_bytes(const struct {name}_io *io);

/* Checks the shapes of the inputs and writes those of the outputs: upper bounds where the model
   computes them. Reads only those inputs whose elements are sizes. */
int {name}_sizes(struct {name}_io *io);

/* Runs the model and writes the shapes of the outputs; {macro}_OK, or an error code and the outputs
   are not to be used. The workspace need not be initialised, nothing in it outlasts the call.
   Several threads may call this at once, each with a struct, a workspace and outputs of its own. */
int {name}_run(struct {name}_io *io, void *workspace);

/* The message of an error code, also of an unknown one. */
const char *{name}_error(int code);
{kernels}
#ifdef __cplusplus
}}
#endif

#endif
"""


def sized_header_text(interface: CInterface, targets: Sequence[Target], command: str) -> str:
    """The header, as `runtime.c_library.c_header.header_text` makes it where shapes are fixed."""
    sizes = CSizes.of(interface)
    ports = (*interface.inputs, *interface.outputs)
    members = [line for p, s in sizes.inputs for line in sizes.members(p, s, "input")]
    members += [line for p, s in sizes.outputs for line in sizes.members(p, s, "output")]
    return introduction(interface, targets, command) + _TEMPLATE.format(
        name=interface.name,
        macro=interface.macro,
        alignment=ALIGNMENT,
        threads=interface.threads,
        sizes="\n".join(
            f"#define {interface.size_macro(port, 'COUNT')} ((size_t){port.elements})\n"
            f"#define {interface.size_macro(port, 'BYTES')} ((size_t){port.type.bytes})"
            for port in ports
        ),
        members="\n".join(members),
        first=FIRST_SIZE_ERROR,
        kernels=kernels_header(interface),
    )
