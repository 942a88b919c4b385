"""The header of a built model, for C and C++ programs. With dynamic shapes the shapes stand in the
struct next to the pointers.
"""

from __future__ import annotations

from collections.abc import Sequence
from textwrap import wrap
from typing import Final

from tunefarm.compiler.runtime.c_library.c_interface import CInterface, CPort, in_comment
from tunefarm.compiler.runtime.machine.cpu_features import checked_features
from tunefarm.compiler.runtime.spec.executable_spec import ALIGNMENT
from tunefarm.compiler.target import Target

FIRST_SIZE_ERROR = 16
"""The code of the first error about sizes: that there is no program for them."""

_TEMPLATE = """
#ifndef {macro}_H
#define {macro}_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {{
#endif

#define {macro}_ALIGNMENT {alignment} /* bytes; of the workspace, and best for inputs and outputs */
#define {macro}_THREADS {threads} /* maximum of a run, the calling thread included */

/* Elements and bytes of each input and output, the maximum where its shape is dynamic. */
{port_sizes}

/* Pointers to the inputs and outputs, with their shapes where these are dynamic: the caller sets
   those of the inputs, and the library writes those of the outputs. Tensors are dense at these
   shapes, in row-major order. An output must not overlap an input or another output. Any address is
   valid; a buffer that is not aligned to {macro}_ALIGNMENT is copied. */
struct {name}_io {{
{members}
}};

enum {{
    {macro}_OK = 0,
    {macro}_ERROR_NULL = 1,      /* io, a pointer in it, or the workspace is null */
    {macro}_ERROR_WORKSPACE = 2, /* the workspace is not aligned to {macro}_ALIGNMENT */
    {macro}_ERROR_CPU = 3,       /* this CPU lacks some instructions that the code needs */
    {macro}_ERROR_FUNCTION = 4{size_error}
}};

{workspace}

{sizes}/* Runs the model; {macro}_OK, or an error code and the outputs are not to be used.
   The workspace need not be initialised, nothing in it outlasts the call. Several threads may call
   this at once, each with a workspace and outputs of its own, and a struct if that has shapes. */
int {name}_run({const}struct {name}_io *io, void *workspace);

/* The message of an error code, also of an unknown one. For {macro}_ERROR_FUNCTION: the last
   failure in the calling thread. */
const char *{name}_error(int code);

#ifdef __cplusplus
}}
#endif

#endif
"""

_FIXED = {
    "const": "const ",
    "size_error": "   /* a custom operator failed */",
    "sizes": "",
    "workspace": """\
/* Bytes of the workspace that a run needs. */
size_t {name}_workspace_bytes(void);""",
}
_DYNAMIC = {
    "const": "",
    "size_error": """,  /* a custom operator failed */
    {macro}_ERROR_SIZES = {first}    /* this and above: shapes do not fit, see {name}_error */""",
    "sizes": """\
/* Checks the shapes of the inputs and writes those of the outputs: upper bounds where the model
   computes them. Reads only those inputs whose elements are sizes. */
int {name}_sizes(struct {name}_io *io);

""",
    "workspace": """\
/* Bytes of the workspace that a run needs at the input shapes in `io`; for NULL, at any shapes. */
size_t {name}_workspace_bytes(const struct {name}_io *io);""",
}
"""What depends on whether sizes do: a struct with shapes is written to."""


YOUR_FUNCTIONS: Final = "your_functions.c"
"""Stands in commands for what defines the functions that a model calls."""


def compile_command(name: str, compiler: str = "cc", functions: str = "") -> str:
    """The command that compiles the example of the model `name`, in the folder of the library.

    `functions` is what the linker takes for the functions that the model calls.
    """
    behind = f" {functions}" if functions else ""
    linked = f"-L. -l{name}{behind} -Wl,-rpath,'$ORIGIN'"
    return f"{compiler} -std=c11 -O2 {name}_example.c {linked} -o {name}_example"


def object_command(
    object_file: str, threads: int, compiler: str = "cc", functions: str = ""
) -> str:
    """The command that compiles a program with the object file of a model.

    `functions` as for `compile_command`.
    """
    linked = " ".join(filter(None, (object_file, functions, "-pthread" if threads > 1 else "")))
    return f"{compiler} -std=c11 -O2 your_program.c {linked} -lm -o your_program"


def header_text(interface: CInterface, targets: Sequence[Target], command: str) -> str:
    """The header; `command` is shown as the way to compile a program that uses it.

    `targets` are those of the library's programs, in the order in which they are tried.
    """
    name, macro = interface.name, interface.macro
    port_sizes = "\n".join(
        f"#define {interface.size_macro(port, 'COUNT')} ((size_t){port.elements})\n"
        f"#define {interface.size_macro(port, 'BYTES')} ((size_t){port.type.bytes})"
        for port in (*interface.inputs, *interface.outputs)
    )
    members = [line for port in interface.inputs for line in _members(interface, port, "input")]
    members += [line for port in interface.outputs for line in _members(interface, port, "output")]
    texts = _DYNAMIC if interface.is_dynamic else _FIXED
    return introduction(interface, targets, command) + _TEMPLATE.format(
        name=name,
        macro=macro,
        alignment=ALIGNMENT,
        threads=interface.threads,
        port_sizes=port_sizes,
        members="\n".join(members),
        **{
            what: text.format(name=name, macro=macro, first=FIRST_SIZE_ERROR)
            for what, text in texts.items()
        },
    )


def introduction(interface: CInterface, targets: Sequence[Target], command: str) -> str:
    """The comment that the header begins with; the arguments are those of `header_text`."""
    lines = [
        f"{in_comment(interface.title)}, compiled to machine code by tunefarm. It requires",
        *_needs(interface.called),
        "",
        *_made_for(targets),
        *_threads(interface.threads),
        *_words(interface),
        "",
        "To compile a program with it, in this folder:",
        f"    {command}",
    ]
    return "/* " + "\n".join(f"   {line}".rstrip() for line in lines).lstrip() + " */"


def _words(interface: CInterface) -> list[str]:
    """What stands for strings, which C programs do not hand over."""
    if not interface.texts:
        return []
    names = ", ".join(map(in_comment, interface.texts))
    lines = wrap(f"Each string is an integer id, equal for equal strings, in {names}.", 92)
    if interface.words:
        lines.append("Ids of the strings in the model; any other id is another string:")
    return ["", *lines, *(f"    {n} {in_comment(w)}" for n, w in enumerate(interface.words))]


def _made_for(targets: Sequence[Target]) -> list[str]:
    first = targets[0]
    if len(targets) == 1:
        made = f"Compiled for the CPU {first.cpu} ({first.triple})."
        return [made, *_checks(checked_features(first))]
    lines = [
        f"Compiled for the CPUs {', '.join(target.cpu for target in targets)} ({first.triple}).",
        "The first run selects the first of these whose features the current CPU has:",
    ]
    for target in targets:
        features = " ".join(checked_features(target)) or "baseline features only"
        wrapped = wrap(f"{target.cpu}: {features}", 88, subsequent_indent="    ")
        lines += [f"    {line}" for line in wrapped]
    return lines


def _needs(called: tuple[str, ...]) -> list[str]:
    if not called:
        return ["only the C library: no other file and no Python."]
    return [
        "the C library, and the program must link the custom operators:",
        *(f"    {line}" for line in wrap(" ".join(called), 88)),
        "Each is an int32_t NAME(int32_t inputs, int32_t outputs, void *const *data, const int32_t",
        "*types, const int32_t *ranks, const int64_t *const *sizes, const char *attributes, const",
        "void *context, char *error, int64_t error_bytes) that returns 0 unless it fails.",
    ]


def _checks(features: tuple[str, ...]) -> list[str]:
    if not features:
        return ["The library does not check the features of the current CPU."]
    lines = wrap(" ".join(features), 88)
    return ["The first run checks that the current CPU has:", *(f"    {x}" for x in lines)]


def _threads(threads: int) -> list[str]:
    if threads == 1:
        return ["A run uses the calling thread only."]
    helpers = "a thread" if threads == 2 else f"{threads - 1} threads"
    return [
        f"The first run starts {helpers} for the parallel loops, which sleep between runs and end",
        "with the process: keep the library loaded. Concurrent runs share them, and no run waits",
        "for them: with too few cores, or in a child process after fork(), a run uses the calling",
        "thread only.",
    ]


def _members(interface: CInterface, port: CPort, kind: str) -> list[str]:
    """The struct's members of a port: its pointer, its shape if that is dynamic, and its rank."""
    declared = port.declared
    const = "const " if kind == "input" else ""
    each = ", each 0 or 1" if port.c_type == "bool" else ""
    most = "at most " if declared.is_dynamic else ""
    text = interface.signature.port_text(declared)
    comment = f"{kind} {in_comment(port.name)}: {text}, {most}{port.type.bytes} bytes{each}"
    lines = [f"    /* {comment} */", f"    {const}{port.c_type} *{port.member};"]
    if declared.is_dynamic:
        lines.append(f"    int64_t {port.member}_shape[{max(1, declared.rank)}];")
    if declared.others:
        lines.append(f"    int64_t {port.member}_rank; /* the number of its dimensions in use */")
    return lines
