"""The C code round functions that a model calls by symbol, which come from other libraries."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass

from tunefarm.compiler.runtime.c_library.c_interface import CInterface
from tunefarm.compiler.runtime.spec.executable_spec import (
    REPORT_BYTES,
    ExecutableSpec,
    FunctionLink,
    FunctionStep,
    RunStep,
    extents_bytes,
)


@dataclass(frozen=True, slots=True)
class FunctionsCode:
    """Pieces of the implementation: nothing at all of a model that calls no function.

    `after` stands behind the call of the entry function.
    """

    declarations: str = ""
    error_case: str = ""
    after: str = ""


def functions_code(interface: CInterface, programs: Sequence[ExecutableSpec]) -> FunctionsCode:
    """The pieces for programs of a model, whose functions all have symbols."""
    spec = programs[0]
    if not spec.functions:
        return FunctionsCode()
    steps = spec.steps if len(programs) == 1 else ()  # of several each has its own
    symbols = "\n".join(_declaration(symbol) for symbol in interface.called)
    contexts = "".join(_context(*item) for item in enumerate(spec.functions))
    cases = (_case(*item, spec.functions) for item in enumerate(steps))
    names = "\n".join(filter(None, cases))
    macro = interface.macro
    places = ", ".join(str(program.arena_bytes - REPORT_BYTES) for program in programs)
    sizes, notify = _sizes_code(steps)
    report = f"reports[{'0' if len(programs) == 1 else 'program_number()'}]"
    return FunctionsCode(
        declarations=f"""\
#include <stdio.h>

{symbols}
{contexts}
/* Where in the workspace each program has its report. */
static const size_t reports[] = {{{places}}};
static _Thread_local char failure[{2 * REPORT_BYTES}]; /* of the thread's last run that failed */

static const char *failed_step(int32_t step)
{{
    switch (step) {{
{names}
    default:
        return "a function failed";
    }}
}}

{sizes}""",
        error_case=f"""\
    case {macro}_ERROR_FUNCTION:
        return failure[0] ? failure : "a function that the model calls failed";
""",
        after=f"""\
    /* The failed step + 1, the function's code, and its text behind. */
    const int32_t *report = (const int32_t *)((const char *)workspace + {report});
    if (report[0] != 0) {{
{notify}                 (const char *)(report + 2));
        return {macro}_ERROR_FUNCTION;
    }}
""",
    )


_PLAIN = """\
        snprintf(failure, sizeof failure, "%s: code %d %s", failed_step(report[0]), (int)report[1],
"""


def _sizes_code(steps: Sequence[RunStep]) -> tuple[str, str]:
    """What says which sizes a step was called with, where they are open, and its use."""
    cases = "\n".join(_sizes_case(*item) for item in enumerate(steps) if _is_open(item[1]))
    if not cases:
        return "", _PLAIN
    return (
        f"""\
/* The shapes of a failed step's inputs, of which `extents` come one after the other. */
static void say_sizes(int32_t step, const int64_t *extents, char *text, int room)
{{
    const int32_t *ranks;
    int inputs, used;

    text[0] = '\\0';
    switch (step) {{
{cases}
    default:
        return;
    }}
    used = snprintf(text, room, ", called with");
    for (int i = 0; i < inputs && used < room; i++) {{
        used += snprintf(text + used, room - used, "%s [", i > 0 ? "," : "");
        for (int32_t axis = 0; axis < ranks[i] && used < room; axis++)
            used += snprintf(text + used, room - used, "%s%lld", axis > 0 ? ", " : "",
                             (long long)*extents++);
        if (used < room)
            used += snprintf(text + used, room - used, "]");
    }}
}}

""",
        f"""\
        char sizes[{REPORT_BYTES // 2}];
        say_sizes(report[0], (const int64_t *)((const char *)report - {extents_bytes(steps)}),
                  sizes, sizeof sizes);
        snprintf(failure, sizeof failure, "%s%s: code %d %s", failed_step(report[0]), sizes,
                 (int)report[1],
""",
    )


def _is_open(step: RunStep) -> bool:
    return isinstance(step, FunctionStep) and bool(step.axes)


def _sizes_case(number: int, step: RunStep) -> str:
    assert isinstance(step, FunctionStep)
    inputs = step.types[: len(step.types) - step.outputs]
    ranks = ", ".join(str(0 if type is None else len(type.shape)) for type in inputs) or "0"
    return f"""\
    case {number + 1}: {{
        static const int32_t own[] = {{{ranks}}};
        ranks = own;
        inputs = {len(inputs)};
        break;
    }}"""


def function_rows(functions: Sequence[FunctionLink]) -> list[str]:
    """What follows the constants in their table: functions and contexts, interleaved."""
    rows = []
    for number, link in enumerate(functions):
        context = f"context_{number}" if link.context else "NULL"
        rows += [f"    (const void *){link.symbol},", f"    {context},"]
    return rows


def _declaration(symbol: str) -> str:
    return (
        f"extern int32_t {symbol}(int32_t inputs, int32_t outputs, void *const *data,\n"
        "    const int32_t *types, const int32_t *ranks, const int64_t *const *sizes,\n"
        "    const char *attributes, const void *context, char *error, int64_t error_bytes);"
    )


def _context(number: int, link: FunctionLink) -> str:
    if not link.context:
        return ""
    content = ", ".join(str(byte) for byte in bytes.fromhex(link.context))
    return f"static const unsigned char context_{number}[] = {{{content}}};\n"


def _case(number: int, step: object, functions: Sequence[FunctionLink]) -> str:
    if not isinstance(step, FunctionStep):
        return ""
    text = f"function {functions[step.function].name} failed in node '{step.node}'"
    plain = "".join(char if char.isascii() and char.isprintable() else "?" for char in text)
    return f"    case {number + 1}:\n        return {json.dumps(plain)};"
