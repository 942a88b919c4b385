"""The C code round functions that a model calls by symbol, which come from other libraries."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass

from compiler.runtime.c_interface import CInterface
from compiler.runtime.executable_spec import (
    REPORT_BYTES,
    ExecutableSpec,
    FunctionLink,
    FunctionStep,
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

""",
        error_case=f"""\
    case {macro}_ERROR_FUNCTION:
        return failure[0] ? failure : "a function that the model calls failed";
""",
        after=f"""\
    /* The failed step + 1, the function's code, and its text behind. */
    const int32_t *report = (const int32_t *)((const char *)workspace + {report});
    if (report[0] != 0) {{
        snprintf(failure, sizeof failure, "%s: code %d %s", failed_step(report[0]), (int)report[1],
                 (const char *)(report + 2));
        return {macro}_ERROR_FUNCTION;
    }}
""",
    )


def function_rows(functions: Sequence[FunctionLink]) -> list[str]:
    """What follows the constants in their table: functions and contexts in turns."""
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
