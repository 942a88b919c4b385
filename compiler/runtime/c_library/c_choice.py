"""A C library of several programs for sizes: the code that chooses one, round the code of each.

Every program is a part, with the functions and the struct that it would have as a library of its
own; nobody outside sees them. The functions of the library read the sizes in its struct, take the
first program for the CPU and these sizes, hand its part what it is to read and write, and tell the
shapes of its outputs.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import replace
from functools import partial

from tunefarm.compiler.runtime.c_library.c_header import FIRST_SIZE_ERROR
from tunefarm.compiler.runtime.c_library.c_interface import (
    CInterface,
    CPort,
    c_interface,
    error_function,
)
from tunefarm.compiler.runtime.c_library.c_programs import lacking_text
from tunefarm.compiler.runtime.machine.cpu_features import checked_features, cpu_choice_code
from tunefarm.compiler.runtime.spec.executable_spec import ExecutableSpec
from tunefarm.compiler.runtime.spec.guards import SizeGuard, sizes_text
from tunefarm.compiler.runtime.spec.joined_signature import joined_signature
from tunefarm.compiler.runtime.spec.kernel_operands import kernel_operands
from tunefarm.compiler.target import Target
from tunefarm.compiler.types.signature import SizedPort
from tunefarm.compiler.types.sizes import static_shape

ERRORS_OF_A_PART = 1 << 16
"""Codes of part n begin at n + 1 times as many; what it says of NULL and the like is as it is."""
_WRONG_SHAPE = 15


def is_chosen_by_size(programs: Sequence[ExecutableSpec]) -> bool:
    """Whether a library of these programs looks at sizes to choose one, or has parts that do."""
    if any(program.guards for program in programs):
        return len(programs) > 1 or not programs[0].signature.is_fixed
    return len(programs) > 1 and any(not program.signature.is_fixed for program in programs)


def joined_interface(
    programs: Sequence[ExecutableSpec], name: str | None, kernels: bool = False
) -> CInterface:
    """How the programs look from C together: a shape next to each port that is not always the same.
    With `kernels` those of each program are exported, by names of its own."""
    signature = joined_signature(programs)
    parts = [c_interface(program, name) for program in programs]
    first = parts[0]

    def widest(ports: Sequence[CPort], declared: Sequence[SizedPort]) -> tuple[CPort, ...]:
        return tuple(
            replace(port, type=sized.type) for port, sized in zip(ports, declared, strict=True)
        )

    joined = replace(
        first,
        inputs=widest(first.inputs, signature.inputs),
        outputs=widest(first.outputs, signature.outputs),
        threads=max(part.threads for part in parts),
        signature=signature,
        computed=(),
    )
    if not kernels:
        return joined
    machines = _machines(programs)
    exported = []
    for number, program in enumerate(programs):
        sizes = sizes_text(program.guards) or "all sizes"
        machine = machines.index((program.target, program.fallback))
        own = replace(
            part_interface(joined, program, number),
            kernels=tuple(kernel_operands(program).values()),
            unable=f"{joined.name}_begin_kernel() != {machine}",
        )
        exported.append((f"{program.target.cpu}, {sizes}" if len(machines) > 1 else sizes, own))
    return replace(joined, parts=tuple(exported))


def _machines(programs: Sequence[ExecutableSpec]) -> list[tuple[Target, bool]]:
    """The CPUs that programs are for, and whether each is the fallback, in their order."""
    return list(dict.fromkeys((program.target, program.fallback) for program in programs))


def part_interface(interface: CInterface, program: ExecutableSpec, number: int) -> CInterface:
    """That of one of the programs within the library."""
    if interface.parts:
        return interface.parts[number][1]
    own = c_interface(program, interface.title)
    name = f"{interface.name}_program{number}"
    return replace(own, name=name, threads=interface.threads, is_part=True)


def choice_text(
    interface: CInterface, programs: Sequence[ExecutableSpec], start: str, headers: Sequence[str]
) -> str:
    """C code of the library's functions; `start` starts threads, `headers` are those of parts."""
    parts = [_Part(interface, program, number) for number, program in enumerate(programs)]
    machines = _machines(programs)
    features = [checked_features(target) for target, _ in machines]
    numbers = [machines.index((p.target, p.fallback)) for p in programs]
    needs = "; ".join(
        f"{target.cpu}: {' '.join(needed)}"
        for (target, _), needed in zip(machines, features, strict=True)
    )
    name, macro = interface.name, interface.macro
    chain = "".join(map(_choice, parts, numbers))
    sizes = "; ".join(dict.fromkeys(sizes_text(program.guards) for program in programs))
    built = f"the model has no program for these sizes: it was built for {sizes}"
    included = "".join(f'#include "{header}"\n' for header in headers)
    calls = "".join(f"    case {part.number}:\n        return {part.call};\n" for part in parts)
    places = "".join(f"    case {part.number}:\n        return {part.bytes};\n" for part in parts)
    largest = "".join(
        f"    if ({part.bytes} > largest)\n        largest = {part.bytes};\n" for part in parts
    )
    texts = "".join(
        f"    if (code / {ERRORS_OF_A_PART} == {part.number + 1})\n"
        f"        return {part.name}_error(code % {ERRORS_OF_A_PART});\n"
        for part in parts
    )
    cases = f"    case {FIRST_SIZE_ERROR}:\n        return {json.dumps(built)};\n"
    cases += f"    case {_WRONG_SHAPE}:\n        return {json.dumps(_SHAPES)};\n"
    if interface.called:
        cases += f"    case {macro}_ERROR_FUNCTION:\n        return of_function(failed);\n"
    return f"""\
{included}
{cpu_choice_code(features)}
static _Thread_local int failed; /* the program that a thread ran last */

{"".join(part.function() for part in parts)}
/* The number of the first program for the CPU and the sizes; -1 without one for the CPU, -2 for
   the sizes. */
static int chosen(const struct {name}_io *io)
{{
    const int machine = program_number();

    (void)io;
    if (machine < 0)
        return -1;
{chain}    return -2;
}}

{_for_kernels(interface)}static int call(struct {name}_io *io, void *workspace)
{{
    failed = chosen(io);
    switch (failed) {{
{calls}    case -1:
        return {macro}_ERROR_CPU;
    default:
        return {FIRST_SIZE_ERROR};
    }}
}}

size_t {name}_workspace_bytes(const struct {name}_io *io)
{{
    size_t largest = 0;

    switch (io == NULL ? -2 : chosen(io)) {{
{places}    }}
{largest}    return largest;
}}

int {name}_sizes(struct {name}_io *io)
{{
    return io == NULL ? {macro}_ERROR_NULL : call(io, NULL);
}}

int {name}_run(struct {name}_io *io, void *workspace)
{{
    if (io == NULL || workspace == NULL)
        return {macro}_ERROR_NULL;
{start}    return call(io, workspace);
}}

{_function_text(parts) if interface.called else ""}\
static const char *own_error(int code);

const char *{name}_error(int code)
{{
{texts}    return own_error(code);
}}

{_own_error(interface, f"{lacking_text(features)}: {needs}", cases)}"""


def _for_kernels(interface: CInterface) -> str:
    """What kernels that parts export ask of the library: the CPU's number, and its threads."""
    if not interface.parts:
        return ""
    started = "    pthread_once(&started, start_threads);\n" if interface.starts_threads else ""
    return f"""\
int {interface.name}_begin_kernel(void);

int {interface.name}_begin_kernel(void)
{{
{started}    return program_number();
}}

"""


_SHAPES = "shapes of the inputs do not fit each other"


def _own_error(interface: CInterface, lacking: str, cases: str) -> str:
    text = error_function(interface, lacking, cases)
    return text.replace(f"const char *{interface.name}_error(", "static const char *own_error(", 1)


def _function_text(parts: Sequence[_Part]) -> str:
    cases = "".join(
        f"    case {part.number}:\n        return {part.name}_error({part.macro}_ERROR_FUNCTION);\n"
        for part in parts
    )
    return f"""\
static const char *of_function(int program)
{{
    switch (program) {{
{cases}    default:
        return "a function that the model calls failed";
    }}
}}

"""


def _choice(part: _Part, machine: int) -> str:
    conditions = [f"machine == {machine}", *map(part.condition, part.program.guards)]
    return f"    if ({' && '.join(conditions)})\n        return {part.number};\n"


class _Part:
    """A program as the library's functions call it."""

    def __init__(self, interface: CInterface, program: ExecutableSpec, number: int) -> None:
        self._interface, self.program, self.number = interface, program, number
        assert interface.signature is not None
        own = part_interface(interface, program, number)
        self.name, self.macro, self._own = own.name, own.macro, own
        self.call = f"run_{number}(io, workspace)"
        sized = not program.signature.is_fixed
        self.bytes = f"{own.name}_workspace_bytes({'NULL' if sized else ''})"
        joined = (*interface.signature.inputs, *interface.signature.outputs)
        self._open = [port.name for port in joined if port.is_dynamic]
        self._ranked = [port.name for port in joined if port.others]
        self._inputs, self._outputs = program.signature.inputs, program.signature.outputs
        self._members = {port.name: port.member for port in (*interface.inputs, *interface.outputs)}

    def condition(self, guard: SizeGuard) -> str:
        """Whether a guard admits what is in the struct."""
        place = f"io->{self._members[guard.input]}_shape[{guard.axis}]"
        if guard.low == guard.high:
            return f"{place} == {guard.low}"
        return f"{place} >= {guard.low} && {place} <= {guard.high}"

    def function(self) -> str:
        """The function that runs the part, or with no workspace only finds shapes of outputs."""
        is_sized = not self.program.signature.is_fixed
        checked = "".join(map(self._refusal, self._fixed(self._inputs)))
        given = "".join(map(partial(self._copied, to="own.", of="io->"), self._sized(self._inputs)))
        description = "".join(
            map(partial(self._copied, to="io->", of="own."), self._sized(self._outputs))
        )
        description += "".join(map(self._constant, self._fixed(self._outputs)))
        description += "".join(map(self._rank, self._outputs))
        pointers = "".join(
            f"    own.{member} = io->{member};\n" for member in self._members.values()
        )
        sizes = f"{self.name}_sizes(&own)" if is_sized else "0"
        macro = self._interface.macro
        return f"""\
static int run_{self.number}(struct {self._interface.name}_io *io, void *workspace)
{{
    struct {self.name}_io own;

{checked}{pointers}{given}\
    const int code = workspace == NULL ? {sizes} : {self.name}_run(&own, workspace);
    if (code != {macro}_OK)
        return code < {_WRONG_SHAPE} ? code : code + {ERRORS_OF_A_PART * (self.number + 1)};
{description}    return code;
}}

"""

    def _sized(self, ports: Sequence[SizedPort]) -> list[SizedPort]:
        """Those with a shape in the part's struct."""
        return [port for port in ports if port.symbols]

    def _fixed(self, ports: Sequence[SizedPort]) -> list[SizedPort]:
        """Those with a shape in the library's struct only."""
        return [port for port in ports if port.name in self._open and not port.symbols]

    def _copied(self, port: SizedPort, to: str, of: str) -> str:
        member = f"{self._members[port.name]}_shape"
        if port.name not in self._open:  # what is open in a part is so in all, but for guards
            shape = self._shape_of(port)
            return "".join(
                f"    own.{member}[{axis}] = {size};\n" for axis, size in enumerate(shape)
            )
        return f"    memcpy({to}{member}, {of}{member}, sizeof own.{member});\n"

    def _shape_of(self, port: SizedPort) -> tuple[int, ...]:
        assert self._interface.signature is not None
        joined = (*self._interface.signature.inputs, *self._interface.signature.outputs)
        (shape,) = (static_shape(other.shape) for other in joined if other.name == port.name)
        assert shape is not None  # it is not open
        return shape

    def _constant(self, port: SizedPort) -> str:
        member = self._members[port.name]
        return "".join(
            f"    io->{member}_shape[{axis}] = {size};\n"
            for axis, size in enumerate(static_shape(port.shape) or ())
        )

    def _rank(self, port: SizedPort) -> str:
        if port.name not in self._ranked:
            return ""
        return f"    io->{self._members[port.name]}_rank = {len(port.shape)};\n"

    def _refusal(self, port: SizedPort) -> str:
        member = self._members[port.name]
        wrong = " || ".join(
            f"io->{member}_shape[{axis}] != {size}"
            for axis, size in enumerate(static_shape(port.shape) or ())
        )
        return f"    if ({wrong})\n        return {_WRONG_SHAPE};\n"
