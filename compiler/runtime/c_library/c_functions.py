"""The C code round functions that a model calls by symbol, which come from other libraries."""

from __future__ import annotations

from collections.abc import Sequence

from tunefarm.compiler.runtime.c_library.c_interface import CInterface, c_string
from tunefarm.compiler.runtime.spec.executable_spec import (
    REPORT_BYTES,
    ExecutableSpec,
    FunctionLink,
    FunctionStep,
    extents_bytes,
)
from tunefarm.compiler.types.frozen import frozen


@frozen
class FunctionsCode:
    """Pieces of the implementation: nothing at all of a model that calls no function.

    `after` stands behind the call of the entry function.
    """

    declarations: str = ""
    error_case: str = ""
    after: str = ""


# Long: a text with places for names.
def functions_code(interface: CInterface, programs: Sequence[ExecutableSpec]) -> FunctionsCode:
    """The pieces for programs of a model, whose functions all have symbols."""
    spec = programs[0]
    if not spec.functions:
        return FunctionsCode()
    symbols = "\n".join(_declaration(symbol) for symbol in interface.called)
    contexts = "".join(_context(*item) for item in enumerate(spec.functions))
    places = ", ".join(str(program.arena_bytes - REPORT_BYTES) for program in programs)
    extents = ", ".join(str(extents_bytes(program.steps)) for program in programs)
    steps = "".join(
        f"    {{{number}, {place + 1}, {_text(step, spec.functions)}, {_inputs(step)}, "
        f"{{{_ranks(step)}}}}},\n"
        for number, program in enumerate(programs)
        for place, step in enumerate(program.steps)
        if isinstance(step, FunctionStep)
    )
    called = [s for p in programs for s in p.steps if isinstance(s, FunctionStep)]
    most = max((len(step.types) - step.outputs for step in called), default=0)
    return FunctionsCode(
        declarations=f"""\
#include <stdio.h>

{symbols}
{contexts}
/* Where in the workspace each program has its report, and the bytes of extents before it. */
static const size_t reports[] = {{{places}}}, extents_bytes[] = {{{extents}}};
static _Thread_local char failure[{2 * REPORT_BYTES}]; /* of the thread's last run that failed */

/* Calls of functions: with dynamic shapes the ranks of the inputs, else none. */
static const struct {{
    int32_t program, step;
    const char *text;
    int32_t inputs, ranks[{max(1, most)}];
}} calls[] = {{
{steps}}};

static void say(char *text, int room, const int64_t *extents, int32_t inputs, const int32_t *ranks)
{{
    int used = inputs > 0 ? snprintf(text, room, ", called with") : 0;

    for (int i = 0; i < inputs && used < room; i++) {{
        used += snprintf(text + used, room - used, "%s [", i > 0 ? "," : "");
        for (int32_t axis = 0; axis < ranks[i] && used < room; axis++)
            used += snprintf(text + used, room - used, "%s%lld", axis > 0 ? ", " : "",
                             (long long)*extents++);
        if (used < room)
            used += snprintf(text + used, room - used, "]");
    }}
}}

/* Whether a function has failed; keeps which one, its code, and its text behind these. */
static int has_failed(int program, const void *workspace)
{{
    const char *place = (const char *)workspace + reports[program];
    const int32_t *report = (const int32_t *)place;
    const int64_t *extents = (const int64_t *)(place - extents_bytes[program]);
    char sizes[{REPORT_BYTES // 2}] = "";

    if (report[0] == 0)
        return 0;
    for (size_t i = 0; i < sizeof calls / sizeof *calls; i++) {{
        if (calls[i].program != program || calls[i].step != report[0])
            continue;
        say(sizes, sizeof sizes, extents, calls[i].inputs, calls[i].ranks);
        snprintf(failure, sizeof failure, "%s%s: code %d %s", calls[i].text, sizes, (int)report[1],
                 (const char *)(report + 2));
    }}
    return 1;
}}
""",
        error_case=f"""\
    case {interface.macro}_ERROR_FUNCTION:
        return failure[0] ? failure : "a function that the model calls failed";
""",
        after=f"""\
    if (has_failed(program, workspace))
        return {interface.macro}_ERROR_FUNCTION;
""",
    )


def _inputs(step: FunctionStep) -> int:
    """The number of inputs whose shapes are said: those of calls on dynamic shapes."""
    return len(step.types) - step.outputs if step.axes else 0


def _ranks(step: FunctionStep) -> str:
    ranks = (0 if type is None else len(type.shape) for type in step.types[: _inputs(step)])
    return ", ".join(map(str, ranks)) or "0"


def _text(step: FunctionStep, functions: Sequence[FunctionLink]) -> str:
    """Which call failed, as C."""
    return c_string(f"function {functions[step.function].name} failed in node '{step.node}'")


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
