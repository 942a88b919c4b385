"""The C functions of a model with run-time sizes: they check sizes and call the sized entry."""

from __future__ import annotations

import json
from collections.abc import Sequence

from tunefarm.compiler.runtime.c_library.c_functions import FunctionsCode
from tunefarm.compiler.runtime.c_library.c_header import FIRST_SIZE_ERROR
from tunefarm.compiler.runtime.c_library.c_interface import CInterface, CPort, error_function
from tunefarm.compiler.runtime.c_library.c_programs import ProgramCode
from tunefarm.compiler.runtime.c_library.c_sizes import CSizes, SizeCheck
from tunefarm.compiler.runtime.spec.executable_spec import (
    ALIGNMENT,
    SIZED_ENTRY_SYMBOL,
    SIZES_SYMBOL,
    ExecutableSpec,
    aligned,
)
from tunefarm.compiler.runtime.spec.size_table import copied_ports
from tunefarm.compiler.types.signature import SIZES, ValueSource
from tunefarm.compiler.types.tensor_type import TensorType

DECLARATIONS = f"""
extern void {SIZES_SYMBOL}(const int64_t *symbols, int64_t *numbers);
extern void {SIZED_ENTRY_SYMBOL}(const void *const *inputs, void *const *outputs,
                                 const void *const *constants, void *arena,
                                 const struct runtime *runtime);
"""

_CALL = f"{SIZED_ENTRY_SYMBOL}(inputs, results, constants, workspace, &runtime);"
_ANY = """\
static int any(const int64_t *flags, size_t count)
{
    for (size_t i = 0; i < count; i++)
        if (flags[i] != 0)
            return 1;
    return 0;
}

"""


def sized_functions(
    interface: CInterface, spec: ExecutableSpec, code: ProgramCode, foreign: FunctionsCode
) -> str:
    """The four functions of the interface of `spec`, which has a signature."""
    return _SizedFunctions(interface, spec).text(code, foreign)


class _SizedFunctions:
    """The text of the functions; workspace: the arena, then a place for each input and output."""

    def __init__(self, interface: CInterface, spec: ExecutableSpec) -> None:
        self._interface, self._spec = interface, spec
        self._sizes = CSizes.of(interface)
        self._end = aligned(spec.arena_bytes)
        self._inputs = [(name, self._place(name, type)) for name, type in spec.inputs]
        self._outputs = [(name, self._place(name, type)) for name, type in spec.outputs]

    def _place(self, name: str, type: TensorType) -> str:
        if name == SIZES:
            return "numbers"
        offset, self._end = self._end, self._end + aligned(type.bytes)
        return f"(void *)((unsigned char *)workspace + {offset})"

    def text(self, code: ProgramCode, foreign: FunctionsCode) -> str:
        name, macro, sizes = self._interface.name, self._interface.macro, self._sizes
        early = [*sizes.bounds(), *sizes.relations()]
        places = {n: f"((const int64_t *)results[{i}])" for i, (n, _) in enumerate(self._outputs)}
        late = list(sizes.results(places))
        start = ""
        if self._interface.starts_threads:
            start = "    pthread_once(&started, start_threads);\n"
        return f"""\
{_ANY if sizes.signature.checks else ""}size_t {name}_workspace_bytes(const struct {name}_io *io)
{{
    (void)io; /* it is planned for the maximum sizes */
    return {max(ALIGNMENT, self._end)};
}}

{self._error_function(code.lacking, foreign, [*early, *late])}
{self._sizes_functions()}
int {name}_run(struct {name}_io *io, void *workspace)
{{
    int64_t symbols[{len(sizes.signature.sources) + 1}];
    int64_t numbers[{len(sizes.table.dimensions) + 1}];

    if (io == NULL || workspace == NULL)
        return {macro}_ERROR_NULL;
    const int code = compute_sizes(io, symbols, numbers);
    if (code != {macro}_OK)
        return code;
{self._null_checks()}    if (!is_aligned(workspace))
        return {macro}_ERROR_WORKSPACE;
    if ({code.is_unable})
        return {macro}_ERROR_CPU;

    const void *inputs[] = {{{", ".join(self._input_table())}}};
    void *results[] = {{{", ".join(self._output_table())}}};
{self._static_inputs()}{start}    {_CALL}
{foreign.after}{self._refusals(late, FIRST_SIZE_ERROR + len(early))}{self._static_outputs()}\
    put_shapes(io, numbers);
    return {macro}_OK;
}}
"""

    def _sizes_functions(self) -> str:
        """Symbols, numbers and shapes of outputs, from shapes of inputs."""
        name, macro, sizes = self._interface.name, self._interface.macro, self._sizes
        members = {port.name: port.member for port in self._interface.inputs}
        values = [s.input for s in sizes.signature.sources if isinstance(s, ValueSource)]
        read = "".join(
            f"    if (io->{members[value]} == NULL)\n        return {macro}_ERROR_NULL;\n"
            for value in dict.fromkeys(values)
        )
        read += "".join(
            f"    symbols[{n}] = {sizes.symbol(n)};\n" for n in range(len(sizes.signature.sources))
        )
        bounds, relations = sizes.bounds(), sizes.relations()
        shapes = "".join(
            f"    io->{port.member}_shape[{axis}] = {sizes.operand(dimension)};\n"
            for port, sized in sizes.outputs
            if sized.symbols
            for axis, dimension in enumerate(sized.shape)
        )
        return f"""\
static int compute_sizes(const struct {name}_io *io, int64_t *symbols, int64_t *numbers)
{{
    (void)io;
{read}{self._refusals(bounds, FIRST_SIZE_ERROR)}    {SIZES_SYMBOL}(symbols, numbers);
{self._refusals(relations, FIRST_SIZE_ERROR + len(bounds))}    return {macro}_OK;
}}

static void put_shapes(struct {name}_io *io, const int64_t *numbers)
{{
    (void)io;
    (void)numbers;
{shapes}}}

int {name}_sizes(struct {name}_io *io)
{{
    int64_t symbols[{len(sizes.signature.sources) + 1}];
    int64_t numbers[{len(sizes.table.dimensions) + 1}];

    if (io == NULL)
        return {macro}_ERROR_NULL;
    const int code = compute_sizes(io, symbols, numbers);
    if (code == {macro}_OK)
        put_shapes(io, numbers);
    return code;
}}
"""

    def _refusals(self, checks: Sequence[SizeCheck], first: int) -> str:
        return "".join(
            f"    if ({check.condition})\n        return {first + number};\n"
            for number, check in enumerate(checks)
        )

    def _null_checks(self) -> str:
        """No pointer may be null but those of ports without elements."""
        checks = []
        for port, sized in self._sizes.ports:
            counts = [f"{self._sizes.operand(d)} != 0" for d in sized.shape if d != 0]
            some = " && ".join([f"io->{port.member} == NULL", *counts])
            checks.append(f"    if ({some})\n        return {self._interface.macro}_ERROR_NULL;\n")
        return "".join(checks)

    def _input_table(self) -> list[str]:
        members = {port.name: f"io->{port.member}" for port in self._interface.inputs}
        dense = [port.name for port in copied_ports(self._sizes.signature.inputs)]
        places = [
            place if name in dense or name not in members else members[name]
            for name, place in self._inputs
        ]
        return [*places, "symbols", "numbers", *(members[name] for name in dense)]

    def _output_table(self) -> list[str]:
        members = {port.name: f"io->{port.member}" for port in self._interface.outputs}
        dense = [port.name for port in copied_ports(self._sizes.signature.outputs)]
        places = [
            f"is_aligned({members[name]}) ? (void *){members[name]} : {place}"
            if name in members and name not in dense
            else place
            for name, place in self._outputs
        ]
        return [*places, *(f"(void *){members[name]}" for name in dense)]

    def _static(self, ports: Sequence[CPort]) -> list[CPort]:
        """Those of fixed shapes."""
        open_sizes = {port.member for port, sized in self._sizes.ports if sized.symbols}
        return [port for port in ports if port.member not in open_sizes]

    def _static_inputs(self) -> str:
        """Copies of arguments of fixed shapes that are not aligned."""
        numbers = {name: number for number, (name, _) in enumerate(self._inputs)}
        places = dict(self._inputs)
        return "".join(
            f"    if (!is_aligned(inputs[{numbers[port.name]}]))\n"
            f"        inputs[{numbers[port.name]}] =\n"
            f"            memcpy({places[port.name]}, io->{port.member}, {port.type.bytes});\n"
            for port in self._static(self._interface.inputs)
        )

    def _static_outputs(self) -> str:
        numbers = {name: number for number, (name, _) in enumerate(self._outputs)}
        return "".join(
            f"    if (results[{numbers[port.name]}] != (void *)io->{port.member})\n"
            f"        memcpy(io->{port.member}, results[{numbers[port.name]}], "
            f"{port.type.bytes});\n"
            for port in self._static(self._interface.outputs)
        )

    def _error_function(
        self, lacking: str, foreign: FunctionsCode, checks: Sequence[SizeCheck]
    ) -> str:
        cases = "".join(
            f"    case {FIRST_SIZE_ERROR + number}:\n        return {_c_string(check.text)};\n"
            for number, check in enumerate(checks)
        )
        return error_function(self._interface, lacking, f"{foreign.error_case}{cases}")


def _c_string(text: str) -> str:
    plain = "".join(char if char.isascii() and char.isprintable() else "?" for char in text)
    return json.dumps(plain).replace("??", "?\\?")
