"""The C code round the entry of a model, and the assembly that holds its constants.

The entry is that of `tunefarm.compiler.runtime.sizes.size_chain`, as in Python: C reads sizes from
the struct, the entry finds the program and says what follows of shapes, C fills the tables of
pointers. What is not aligned is copied into the workspace, behind the arena, and out of it.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from tunefarm.compiler.machine.amx_state import TILE_FEATURES
from tunefarm.compiler.runtime.c_library.c_functions import functions_code
from tunefarm.compiler.runtime.c_library.c_header import FIRST_SIZE_ERROR
from tunefarm.compiler.runtime.c_library.c_interface import CInterface, CPort, c_string
from tunefarm.compiler.runtime.c_library.c_programs import (
    CONSTANTS_SYMBOL,
    linked_programs,
    programs_text,
)
from tunefarm.compiler.runtime.machine.cpu_features import checked_features, cpu_choice_code
from tunefarm.compiler.runtime.sizes.model_ports import ModelPort, ModelPorts
from tunefarm.compiler.runtime.sizes.size_chain import CHOOSE_SYMBOL, RUN_SYMBOL, UPDATE_SYMBOL
from tunefarm.compiler.runtime.sizes.size_state import NO_PROGRAM, WHOLE
from tunefarm.compiler.runtime.spec.executable_spec import (
    ALIGNMENT,
    ExecutableSpec,
    aligned,
    needed_targets,
)
from tunefarm.compiler.runtime.spec.guards import sizes_text
from tunefarm.compiler.target import Target
from tunefarm.compiler.types.frozen import frozen
from tunefarm.compiler.types.signature import Equality, ResultSource

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

_ENTRY = f"""\
extern int32_t {CHOOSE_SYMBOL}(int64_t *state);
extern void {UPDATE_SYMBOL}(int64_t *state);
extern void {RUN_SYMBOL}(const void *const *inputs, void *const *outputs, const void *programs,
                         void *arena, const struct runtime *runtime);

static int is_aligned(const void *pointer)
{{
    return (uintptr_t)pointer % ALIGNMENT == 0;
}}

/* Bytes of a copy in the workspace. */
static size_t room(size_t bytes)
{{
    return (bytes + ALIGNMENT - 1) / ALIGNMENT * ALIGNMENT;
}}
"""

_ANY = """\
static int any(const int64_t *flags, size_t count)
{
    for (size_t i = 0; i < count; i++)
        if (flags[i] != 0)
            return 1;
    return 0;
}

"""


# Long: a text with places for names.
def implementation_text(interface: CInterface, programs: Sequence[ExecutableSpec]) -> str:
    """GNU C11 that defines the interface's functions; `interface` is that of the programs."""
    linked, foreign = linked_programs(programs), functions_code(interface, programs)
    needed = list(needed_targets(programs).values())
    features, lacking = list(map(checked_features, needed)), _lacking(needed)
    start = "    pthread_once(&started, start_threads);\n" if interface.threads > 1 else ""
    checks, name, macro = _Checks(interface, programs), interface.name, interface.macro
    ports, const = interface.ports, "" if interface.is_dynamic else "const "
    return f"""\
#pragma GCC visibility push(default)
#include "{name}.h"
#pragma GCC visibility pop

#include <string.h>

enum {{ ALIGNMENT = {ALIGNMENT}, THREADS = {interface.threads} }};

struct runtime {{
    void (*parallel)(void (*fn)(void *), void *data, int32_t threads, int32_t flags);
    int32_t threads;
    int32_t reserved;
}};

{foreign.declarations}{programs_text(linked)}
{_POOL if interface.threads > 1 else _SERIAL}
{cpu_choice_code(features)}
{_ENTRY}
{_tables(ports, programs)}
{_error_function(interface, lacking, foreign.error_case + checks.cases)}
/* Where a run has what it reads and writes in the workspace of the program: behind the arena. */
static size_t bytes_of(int program)
{{
    size_t bytes = arena_bytes[program];

    for (int i = 0; i < PLACES; i++)
        bytes += room(place_bytes[program][i]);
    return bytes > ALIGNMENT ? bytes : ALIGNMENT;
}}

/* Finds the program for the CPU and the sizes, and what follows of these. */
static int find(const struct {name}_io *io, int64_t *state)
{{
    const int machine = program_number();

    (void)io;
    if (machine < 0)
        return {macro}_ERROR_CPU;
{_found(interface)}    const int refused = {CHOOSE_SYMBOL}(state);
    if (refused != 0)
        return {FIRST_SIZE_ERROR - NO_PROGRAM} + refused;
{checks.shapes}    return {macro}_OK;
}}

{_workspace_function(interface)}
{checks.results}{_sizes_function(interface)}\
int {name}_run({const}struct {name}_io *io, void *workspace)
{{
    int64_t state[STATE] = {{0}};
    const void *inputs[INPUT_TABLE];
    void *outputs[OUTPUT_TABLE];

    if (io == NULL || workspace == NULL)
        return {macro}_ERROR_NULL;
    const int code = find(io, state);
    if (code != {macro}_OK)
        return code;

    const int program = (int)state[FACTS];
    const void *const given[] = {{{_pointers(interface.inputs)}}};
    void *const wanted[] = {{{_pointers(interface.outputs)}}};
    unsigned char *place = (unsigned char *)workspace + arena_bytes[program];
    const size_t *bytes = place_bytes[program];

    for (int i = 0; i < INPUTS; i++)
        if (given[i] == NULL && state[input_ports[i].bytes] > 0)
            return {macro}_ERROR_NULL;
    for (int i = 0; i < OUTPUTS; i++)
        if (wanted[i] == NULL && state[output_ports[i].bytes] > 0)
            return {macro}_ERROR_NULL;
    if (!is_aligned(workspace))
        return {macro}_ERROR_WORKSPACE;

    for (int i = 0; i < INPUTS; i++) {{
        const struct port *port = &input_ports[i];
        const int is_whole = state[port->way] == WHOLE;

        inputs[i] = is_whole && is_aligned(given[i]) ? given[i] : place;
        if (is_whole && inputs[i] == place)
            memcpy(place, given[i], (size_t)state[port->bytes]);
        if (port->dense >= 0)
            inputs[port->dense] = is_whole ? inputs[i] : given[i];
        place += room(*bytes++);
    }}
    for (int i = 0; i < OUTPUTS; i++) {{
        const struct port *port = &output_ports[i];
        const int is_whole = state[port->way] == WHOLE;

        outputs[i] = is_whole && is_aligned(wanted[i]) ? wanted[i] : place;
        if (port->dense >= 0)
            outputs[port->dense] = is_whole ? outputs[i] : wanted[i];
        place += room(*bytes++);
    }}
    for (int i = 0; i < COMPUTED; i++) {{
        outputs[OUTPUT_TABLE - 1 - COMPUTED + i] = place;
        place += room(*bytes++);
    }}
    inputs[INPUT_TABLE - 1] = state;
{start}    {RUN_SYMBOL}(inputs, outputs, programs, workspace, &runtime);
{foreign.after}{checks.call}    for (int i = 0; i < OUTPUTS; i++)
        if (state[output_ports[i].way] == WHOLE && outputs[i] != wanted[i])
            memcpy(wanted[i], outputs[i], (size_t)state[output_ports[i].bytes]);
{"    put_shapes(io, state);" + chr(10) if interface.is_dynamic else ""}    return {macro}_OK;
}}
"""


def _lacking(targets: Sequence[Target]) -> str:
    """What an error says of a CPU that has not the features of any of these."""
    text = "this CPU lacks some instructions that the code needs"
    features = [checked_features(target) for target in targets]
    if any(name.startswith(TILE_FEATURES) for needed in features for name in needed):
        text += ", or its kernel does not permit matrix tiles"
    if len(targets) == 1:
        return f"{text}: {' '.join(features[0])}"
    needs = zip(targets, features, strict=True)
    return f"{text}: {'; '.join(f'{target.cpu}: {chr(32).join(own)}' for target, own in needs)}"


def _tables(ports: ModelPorts, programs: Sequence[ExecutableSpec]) -> str:
    """What the code has to know of ports, programs, and places in the workspace.

    Tables of pointers have an element more than they need, so that none is empty.
    """
    computed = [
        name for name in ports.tables.outputs.places if name not in {p.name for p in ports.outputs}
    ]
    rooms = []
    for number, program in enumerate(ports.programs):
        own = dict(program.computed)
        sizes = [port.rooms[number].bytes for port in (*ports.inputs, *ports.outputs)]
        rooms.append([*sizes, *(own[name].bytes if name in own else 0 for name in computed)])
    arenas = ", ".join(str(aligned(program.arena_bytes)) for program in programs)
    places = "\n".join(f"    {{{', '.join(map(str, row)) or '0'}}}," for row in rooms)
    return f"""\
enum {{
    INPUTS = {len(ports.inputs)},
    OUTPUTS = {len(ports.outputs)},
    COMPUTED = {len(computed)},
    PLACES = INPUTS + OUTPUTS + COMPUTED,
    INPUT_TABLE = {ports.tables.inputs.count},
    OUTPUT_TABLE = {ports.tables.outputs.count + 1},
    FACTS = {ports.state.facts},
    STATE = {ports.state.length},
    WHOLE = {WHOLE}
}};

/* Of each program, and of each place in its workspace. */
static const size_t arena_bytes[] = {{{arenas}}};
static const size_t place_bytes[][PLACES + 1] = {{
{places}
}};

/* Where in the state is how an array lies in its place (WHOLE: it may be that), and its bytes; and
   where in the table of pointers it is, unless it is always its place. */
struct port {{
    int way, bytes, dense;
}};
static const struct port input_ports[] = {{{_rows(ports, ports.inputs)}}};
static const struct port output_ports[] = {{{_rows(ports, ports.outputs)}}};
"""


def _rows(ports: ModelPorts, own: Sequence[ModelPort]) -> str:
    facts, state = ports.state.facts, ports.state.ports
    rows = (
        f"{{{facts + state[port.alike].way}, {facts + state[port.alike].bytes}, {port.dense}}}"
        for port in own
    )
    return ", ".join(rows) or "{0, 0, 0}"


def _error_function(interface: CInterface, lacking: str, cases: str) -> str:
    """The function that says what an error code means; `cases` are those of the model."""
    macro = interface.macro
    return f"""\
const char *{interface.name}_error(int code)
{{
    switch (code) {{
    case {macro}_OK:
        return "no error";
    case {macro}_ERROR_NULL:
        return "io, a pointer in it, or the workspace is null";
    case {macro}_ERROR_WORKSPACE:
        return "the workspace is not aligned to {ALIGNMENT} bytes";
    case {macro}_ERROR_CPU:
        return "{lacking}";
{cases}    default:
        return "unknown error code";
    }}
}}
"""


def _found(interface: CInterface) -> str:
    """Code that writes what a call reads of sizes, and of the CPU, into the state."""
    ports, members = interface.ports, [port.member for port in interface.inputs]
    declared = [port.declared for port in interface.inputs]
    null = "".join(
        f"    if (io->{members[number]} == NULL)\n        return {interface.macro}_ERROR_NULL;\n"
        for number in dict.fromkeys(number for number, _ in ports.values)
    )
    found = [
        f"io->{members[number]}_shape[{axis}]"
        if declared[number].is_dynamic
        else str(declared[number].shape[axis])
        for number, axis in ports.axes
    ]
    found += [f"(int64_t)io->{members[number]}[{place}]" for number, place in ports.values]
    found += ["machine"] if ports.machines > 1 else []
    return null + "".join(f"    state[{n}] = {value};\n" for n, value in enumerate(found))


def _workspace_function(interface: CInterface) -> str:
    name = interface.name
    if not interface.is_dynamic:
        machine = "program_number() < 0 ? 0 : program_number()"
        return f"""\
size_t {name}_workspace_bytes(void)
{{
    return bytes_of({machine if interface.ports.machines > 1 else 0});
}}
"""
    return f"""\
size_t {name}_workspace_bytes(const struct {name}_io *io)
{{
    int64_t state[STATE] = {{0}};
    size_t most = 0;

    if (io != NULL && find(io, state) == {interface.macro}_OK)
        return bytes_of((int)state[FACTS]);
    for (int i = 0; i < (int)(sizeof programs / sizeof *programs); i++)
        most = bytes_of(i) > most ? bytes_of(i) : most;
    return most;
}}
"""


def _sizes_function(interface: CInterface) -> str:
    """What writes the shapes of outputs, and the function that does only that."""
    if not interface.is_dynamic:
        return ""
    name, macro, ports = interface.name, interface.macro, interface.ports
    shapes = ""
    for port, own in zip(interface.outputs, ports.outputs, strict=True):
        if not port.declared.is_dynamic:
            continue
        first = ports.state.facts + ports.state.ports[own.alike].shape.start
        shapes += "".join(
            f"    io->{port.member}_shape[{axis}] = state[{first + axis}];\n"
            for axis in range(port.declared.rank)
        )
        if port.declared.others:
            ranks = ", ".join(str(len(room.shape)) for room in own.rooms)
            shapes += f"    io->{port.member}_rank = (const int[]){{{ranks}}}[state[FACTS]];\n"
    return f"""\
static void put_shapes(struct {name}_io *io, const int64_t *state)
{{
    (void)io;
    (void)state;
{shapes}}}

int {name}_sizes(struct {name}_io *io)
{{
    int64_t state[STATE] = {{0}};

    if (io == NULL)
        return {macro}_ERROR_NULL;
    const int code = find(io, state);
    if (code == {macro}_OK)
        put_shapes(io, state);
    return code;
}}

"""


@frozen
class _Check:
    """A condition in C under which a run is refused, and what its error says."""

    condition: str
    text: str


class _Checks:
    """What a run is refused for besides what the entry refuses, whose codes begin behind it.

    `cases` are those of all errors about sizes; `shapes` and `results` is code before and behind a
    run, `call` the call of the latter.
    """

    def __init__(self, interface: CInterface, programs: Sequence[ExecutableSpec]) -> None:
        ports = interface.ports
        self._interface, self._ports = interface, ports
        built = "; ".join(dict.fromkeys(sizes_text(program.guards) for program in programs))
        texts = [f"the model has no program for these sizes: it was built for {built}"]
        for _, item in ports.checks:
            if isinstance(item, Equality):
                texts.append(f"{item.left} and {item.right} must be equal: {item.reason}")
            else:
                low, high = item.symbol.low, item.symbol.high
                texts.append(f"{item.symbol} is out of bounds in {item.place}: {low} to {high}")
        shapes = list(self._shapes())
        self.shapes = _refusals(shapes, FIRST_SIZE_ERROR + len(texts), 4)
        texts += [check.text for check in shapes]
        self.results = self.call = ""
        if ports.computes:
            self._put_results(texts)
        is_silent = not interface.is_dynamic
        self.cases = (
            ""
            if is_silent
            else "".join(
                f"    case {FIRST_SIZE_ERROR + number}:\n        return {c_string(text)};\n"
                for number, text in enumerate(texts)
            )
        )

    def _put_results(self, texts: list[str]) -> None:
        macro, cases = self._interface.macro, ""
        for number in range(len(self._ports.programs)):
            own = list(self._results(number))
            cases += f"    case {number}:\n"
            cases += _refusals(own, FIRST_SIZE_ERROR + len(texts), 8) + "        break;\n"
            texts += [check.text for check in own]
        self.results = f"""\
{_ANY}/* What the run has found of its arguments. */
static int check_results(int program, void *const *outputs)
{{
    switch (program) {{
{cases}    }}
    return {macro}_OK;
}}

"""
        self.call = f"""\
    const int found = check_results(program, outputs);
    if (found != {macro}_OK)
        return found;
    {UPDATE_SYMBOL}(state);
"""

    def _shapes(self) -> Iterator[_Check]:
        """Shapes of inputs that do not fit the sizes that were found."""
        ports = self._ports
        for port, own in zip(self._interface.inputs, ports.inputs, strict=True):
            if port.declared.is_dynamic:
                first = ports.state.facts + ports.state.ports[own.alike].shape.start
                wrong = " || ".join(
                    f"io->{port.member}_shape[{axis}] != state[{first + axis}]"
                    for axis in range(port.declared.rank)
                )
                text = f"the shape of input {port.name!r} is not the {port.declared} of the other"
                yield _Check(wrong, f"{text} sizes")

    def _results(self, number: int) -> Iterator[_Check]:
        """What a program has found of its arguments."""
        program, places = self._ports.programs[number], self._ports.tables.outputs.places
        counts = {name: type.size for name, type in program.computed}
        for check in program.signature.checks:
            flags = f"(const int64_t *)outputs[{places[check.output]}]"
            yield _Check(f"any({flags}, {counts[check.output]})", check.message)
        for source in program.signature.sources:
            if isinstance(source, ResultSource):
                value = f"((const int64_t *)outputs[{places[source.output]}])[{source.position}]"
                low, high = source.symbol.low, source.symbol.high
                text = f"the computed size {source.symbol} is out of bounds: {low} to {high}"
                yield _Check(f"{value} < {low} || {value} > {high}", text)


def _refusals(checks: Sequence[_Check], first: int, indent: int) -> str:
    space = " " * indent
    return "".join(
        f"{space}if ({check.condition})\n{space}    return {first + number};\n"
        for number, check in enumerate(checks)
    )


def _pointers(ports: Sequence[CPort]) -> str:
    return ", ".join(f"io->{port.member}" for port in ports) or "NULL"


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
