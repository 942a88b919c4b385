"""Executable: a compiled model in memory, and the call that runs it."""

from __future__ import annotations

import ctypes
import os
import threading
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import replace
from functools import cached_property, partial
from os import PathLike
from typing import TYPE_CHECKING, NoReturn, TypeVar

import numpy as np

from tunefarm.compiler.errors import ArtefactError, InputError, with_count
from tunefarm.compiler.runtime.artefact import artefact, write_artefact
from tunefarm.compiler.runtime.artefact.seal import code_digest
from tunefarm.compiler.runtime.execution.frame import BoundRun, Frame
from tunefarm.compiler.runtime.execution.loaded_program import (
    LoadedModel,
    LoadedProgram,
    SharedKernels,
)
from tunefarm.compiler.runtime.machine.threads import make_runtime
from tunefarm.compiler.runtime.sizes.model_ports import ModelPort
from tunefarm.compiler.runtime.sizes.run_sizes import RunSizes, refuse_program
from tunefarm.compiler.runtime.spec.buffers import address_of, aligned_empty
from tunefarm.compiler.runtime.spec.executable_spec import (
    ALIGNMENT,
    REPORT_BYTES,
    ExecutableSpec,
    aligned,
)
from tunefarm.compiler.runtime.spec.guards import Shape, sizes_text
from tunefarm.compiler.runtime.spec.joined_signature import program_ranges
from tunefarm.compiler.runtime.spec.kernel_report import KernelReport
from tunefarm.compiler.runtime.spec.ports import AnyArray, check_mapping
from tunefarm.compiler.types.chosen_sizes import Sizes, choose_sizes, types_at
from tunefarm.compiler.types.signature import AxisSource, Signature
from tunefarm.compiler.types.structure import (
    StringTable,
    WordTable,
    gathered,
    spread,
    without_fixed,
)
from tunefarm.compiler.types.tensor_type import Array, TensorType

if TYPE_CHECKING:
    from tunefarm.compiler.runtime.artefact.constants_check import ConstantsCheck
    from tunefarm.compiler.runtime.execution.profile import Clocked, Profile
    from tunefarm.compiler.runtime.machine.loaded_code import LoadedCode
    from tunefarm.compiler.strings.operators import PrefixRun

R = TypeVar("R")


class CallQueue:
    """Runs calls of `Executable.run_async` in the order in which they come, at most as many at a
    time as there are cores for.

    More at once would share the cores: all would end later, and none sooner.
    """

    def __init__(self, threads: int) -> None:
        """Each call keeps `threads` cores busy."""
        self.workers = max(1, usable_cores() // threads)
        self._process = os.getpid()
        self._executor = self._started()

    def submit(self, call: Callable[[], R]) -> Future[R]:
        """What a call will return, or raise."""
        if self._process != os.getpid():  # after a fork the threads are the parent's
            self._process, self._executor = os.getpid(), self._started()
        return self._executor.submit(call)

    def _started(self) -> ThreadPoolExecutor:
        return ThreadPoolExecutor(self.workers, "tunefarm-calls")


def usable_cores() -> int:
    """Those that this process may use."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


_EntryFunction = ctypes.CFUNCTYPE(None, *[ctypes.c_void_p] * 5)


class Executable:
    """A model ready to run: one entry function that calls all kernels over one planned arena.

    `inputs` and `outputs` map names to types, `kernels` reports how each distinct kernel was built,
    `threads` is the number of threads in use, `threading` what provides them ("" when serial).
    `run` may be called from several threads at once: each call has a frame of its own, with an
    arena, and `idle_frames` says how many are kept for later, at most as many as were in use at
    the same time.

    `signature` says names, element types, and where sizes are dynamic symbols and bounds: `inputs`
    and `outputs` are the types at the maximum sizes then.

    A model may have several programs, each for other sizes: the entry runs the first that is for
    those of the arguments. Signature, inputs and outputs are those of all programs together, `spec`
    is that of the first one.
    """

    def __init__(
        self,
        spec: ExecutableSpec,
        threads: int | None = None,
        others: Sequence[ExecutableSpec] = (),
        *,
        loaded: Sequence[LoadedProgram] = (),
    ) -> None:
        """Load the code of `spec` and of `others`, programs for other sizes; `threads` defaults to
        the count it was built for.

        Of programs that are `loaded` already `spec` is the first one's. Raises `ArtefactError` if
        this machine cannot run the code or has too little memory, or a function that it calls is
        missing, `ValueError` for threads < 1.
        """
        self.spec = spec
        if not loaded:
            shared: SharedKernels = {}
            loaded = [LoadedProgram(each, shared) for each in (spec, *others)]
        self._model = LoadedModel(loaded)
        self._programs, self._ports = self._model.programs, self._model.ports
        self._runtime, self.threading = make_runtime(
            spec.threads if threads is None else threads, self._programs[0].pool
        )
        self._entry = _EntryFunction(self._model.entry)
        self._computes = self._ports.computes
        self._calls_functions = any(program.functions for program in self._programs)
        self._words = WordTable(spec.structure.words)
        self._prefix = _prefix(spec)
        self._defaults = {port.name: port.array for port in spec.structure.defaults}
        self._frames: list[Frame] = []  # those that no call uses at the moment
        self._check: ConstantsCheck | None = None
        self._calls: CallQueue | None = None
        self._starting = threading.Lock()

    @property
    def signature(self) -> Signature:
        """Names, types, symbols and bounds; without symbols where all sizes are fixed."""
        return self._ports.signature

    @property
    def inputs(self) -> dict[str, TensorType]:
        """The types of the inputs by name; where sizes are dynamic, at their upper bounds."""
        return {port.name: port.greatest for port in self.signature.inputs}

    @property
    def outputs(self) -> dict[str, TensorType]:
        """The types of the outputs by name; where sizes are dynamic, at their upper bounds."""
        return {port.name: port.greatest for port in self.signature.outputs}

    @cached_property
    def programs(self) -> tuple[Executable, ...]:
        """All programs by themselves, in the order in which they are tried."""
        if len(self._programs) == 1:
            return (self,)
        self.check_constants()
        return tuple(Executable(p.spec, self.threads, loaded=[p]) for p in self._programs)

    @property
    def sizes(self) -> tuple[str, ...]:
        """What sizes each program is for, as text."""
        return tuple(sizes_text(program.spec.guards) for program in self._programs)

    def program_for_shapes(self, shapes: Mapping[str, Shape]) -> Executable:
        """The first program whose guards admit arguments of these shapes. Raises `InputError` if
        there is none."""
        sizes = RunSizes(self._ports, self._model.code)
        every = {name: type.shape for name, type in self.inputs.items()} | dict(shapes)
        sizes.choose(self._ports.found_at(every, {}))
        if sizes.program < 0:
            refuse_program(self._ports, shapes)
        return self.programs[sizes.program]

    @property
    def arena_bytes(self) -> int:
        """Of the memory between kernels that a frame has."""
        return max(program.spec.arena_bytes for program in self._programs)

    def inputs_at(self, sizes: Mapping[str, int] | None = None) -> dict[str, TensorType]:
        """The types of the inputs where symbols have these sizes, the others one in the middle.

        Raises `InputError` for sizes out of bounds, and for symbols that there are not.
        """
        return types_at(self.signature.inputs, self.chosen_sizes(sizes or {}))

    def outputs_at(self, sizes: Mapping[str, int] | None = None) -> dict[str, TensorType]:
        """The types of the outputs at the sizes of `inputs_at`, but for those that a run computes.

        Raises `InputError` as that does.
        """
        chosen = self.chosen_sizes(sizes or {})
        signature = self._programs[self._number_at(chosen) or 0].spec.signature
        inputs, own = types_at(self.signature.inputs, chosen), dict(chosen)
        for source in signature.sources:
            if isinstance(source, AxisSource):
                own[source.symbol.name] = inputs[source.input].shape[source.axis]
        late = {port.name for port in self._ports.outputs if port.late}
        return types_at([port for port in signature.outputs if port.name not in late], own)

    def chosen_sizes(self, sizes: Mapping[str, int]) -> Sizes:
        """A size for every symbol that arguments have: the given ones, else one in the middle.

        Raises `InputError` for sizes that no program is for.
        """
        if len(self._programs) == 1:
            return choose_sizes(self.signature, sizes)
        refused: InputError | None = None
        for signature in (self.signature, *self._own_signatures):
            try:
                chosen = choose_sizes(signature, sizes)
            except InputError as error:
                refused = refused or error
                continue
            if self._number_at(chosen) is not None:
                return chosen
        assert refused is not None
        raise refused

    @cached_property
    def _own_signatures(self) -> tuple[Signature, ...]:
        """The signature with the sizes of one program only, for each."""
        own = program_ranges([program.spec for program in self._programs], self.signature)
        return tuple(
            replace(self.signature, ranges=tuple((name, (ends,)) for name, ends in each.items()))
            for each in own
        )

    def _number_at(self, chosen: Sizes) -> int | None:
        """The number of the program for these sizes, of all symbols; None where there is none."""
        sizes = RunSizes(self._ports, self._model.code)
        types = types_at(self.signature.inputs, chosen)
        shapes = {name: type.shape for name, type in types.items()}
        refused = sizes.choose(self._ports.found_at(shapes, chosen))
        return None if refused else sizes.program

    @property
    def kernels(self) -> tuple[KernelReport, ...]:
        """What each distinct kernel runs and where its schedule is from, in the order of their
        calls."""
        return tuple(dict.fromkeys(k for program in self._programs for k in program.spec.kernels))

    @property
    def code_digest(self) -> str:
        """Equal for executables that run the same code over the same constants by the same plan."""
        return code_digest(program.spec for program in self._programs)

    @property
    def constant_bytes(self) -> int:
        """Of the constants of all programs."""
        constants = (c for program in self._programs for c in program.spec.constants)
        return sum({id(constant): constant.nbytes for constant in constants}.values())

    @property
    def threads(self) -> int:
        """Threads of the kernels' loops."""
        return int(self._runtime.threads)

    @property
    def idle_frames(self) -> int:
        """Arenas that are kept for later calls."""
        return len(self._frames)

    def __repr__(self) -> str:
        text, signature = self.signature.port_text, self.signature
        ports, results = (
            ", ".join(f"{port.name}: {text(port)}" for port in own)
            for own in (signature.inputs, signature.outputs)
        )
        threads = with_count(self.threads, "thread")
        return f"<Executable {self.spec.name}({ports}) -> {results}, {threads}>"

    def __reduce__(self) -> NoReturn:
        raise TypeError(
            "an executable is code in this process, and can be neither pickled nor copied: save() "
            "it here and tunefarm.load() it there, or share it among threads"
        )

    @cached_property
    def in_place(self) -> dict[str, str]:
        """The outputs that a run can write over an input, as caches grow, each with that input."""
        first, *rest = (program.spec.in_place for program in self._programs)
        names = {name for name, _ in (*self.spec.inputs, *self.spec.outputs)}
        return {
            output: input
            for output, input in first
            if {output, input} <= names and all((output, input) in pairs for pairs in rest)
        }

    def empty_caches(self, sizes: Mapping[str, int] | None = None) -> dict[str, AnyArray]:
        """Uninitialised arrays for the inputs that runs can write over, as `inputs_at` has them.

        Each lies in memory as large as the bounds, as a run with `in_place` needs it, and all of
        them in one piece: a system gives that large pages, which are read faster.
        """
        chosen = self.chosen_sizes(sizes or {})
        types, program = self.inputs_at(chosen), self._number_at(chosen) or 0
        ports = self._written_over
        memory = aligned_empty((sum(aligned(port.bytes) for port in ports),), np.dtype(np.uint8))
        caches: dict[str, AnyArray] = {}
        start = 0
        for port in ports:
            shape, dtype = types[port.name].shape, types[port.name].dtype.numpy
            room, strides = memory[start : start + port.bytes], port.rooms[program].strides
            caches[port.name] = np.ndarray(shape, dtype, room, 0, strides)
            start += aligned(port.bytes)
        return caches

    @property
    def _written_over(self) -> list[ModelPort]:
        """The inputs that runs can write over."""
        names = set(self.in_place.values())
        return [port for port in self._ports.inputs if port.name in names]

    def lie_in_place(self, arrays: Mapping[str, AnyArray], sizes: Mapping[str, int]) -> bool:
        """Whether arrays lie as those of `empty_caches` do at these sizes, all of them."""
        program = self._number_at(self.chosen_sizes(sizes)) or 0
        strides = {port.name: port.rooms[program].strides for port in self._written_over}
        return strides == {name: array.strides for name, array in arrays.items()}

    def run(
        self,
        inputs: Mapping[str, object],
        out: Mapping[str, object] | None = None,
        *,
        in_place: bool = False,
    ) -> dict[str, AnyArray]:
        """Run the model; returns the outputs by name.

        Inputs are NumPy arrays or whatever has `__dlpack__` (in memory that the CPU reads), with
        exactly the declared names, element types and shapes. One that is C-contiguous is read in
        place, any other is copied first. Nobody may write to them meanwhile.

        Of a model with run-time sizes shapes are those of its signature, and outputs are as large
        as follows from them. What is smaller than the bounds is copied into a place as large as
        they are, unless it is a part of an array that lies as that does and goes on behind it:
        outputs that grow from call to call, as caches do, are such parts.

        Outputs are new arrays, or those given in `out`: C-contiguous, writeable, of the declared
        type and shape, sharing no memory with each other or an input. Sequences are lists of
        arrays, optionals an array, a list or None; in `out` their tensors go by names of their own,
        `x[0]` and so on. With `in_place` those of `in_place` are written over their inputs, which
        must lie as `empty_caches` and such runs return them. Raises `InputError` before anything
        has run, and `FunctionError` when a function that the model calls fails: outputs are then of
        no use. Releases the interpreter lock while the kernels run.
        """
        try:
            frame = self._frames.pop()
        except IndexError:
            frame = self.new_frame()
        try:
            return self.run_in(frame, inputs, out, in_place=in_place)
        finally:
            self._frames.append(frame)

    def run_async(
        self, inputs: Mapping[str, object], out: Mapping[str, object] | None = None
    ) -> Future[dict[str, AnyArray]]:
        """As `run`, but at once: the outputs come as the future's result, and errors as its.

        Calls wait for their turn: as many run at the same time as this process has cores for, each
        on `threads` of them. `asyncio.wrap_future` makes it awaitable. Nobody may write to the
        inputs, nor read `out`, before it is done.
        """
        with self._starting:
            if self._calls is None:
                self._calls = CallQueue(self.threads)
        return self._calls.submit(partial(self.run, inputs, out))

    def run_in(
        self,
        frame: Frame,
        inputs: Mapping[str, object],
        out: Mapping[str, object] | None = None,
        *,
        in_place: bool = False,
    ) -> dict[str, AnyArray]:
        """As `run`, in the memory of a frame that `new_frame` made; one call at a time."""
        structure, words = self.spec.structure, StringTable(self._words)
        inputs = self.tensors(inputs, words)
        try:
            arrays = frame.bind_inputs(inputs)  # keeps converted inputs alive during the call
        except InputError as error:
            raise error if self._prefix is None else self._prefix.explained(error) from None
        over = self.in_place if in_place else {}
        results = frame.bind_outputs(out, arrays, over)
        if over:
            results |= frame.bind_in_place(over, arrays)
        self.enter(frame, arrays, results)
        if structure.texts:
            results = words.shown(structure.texts, results)
        return gathered(structure.outputs, results) if structure.outputs else results

    @property
    def has_plain_ports(self) -> bool:
        """Whether inputs and outputs are arrays of numbers: no strings, lists and optionals."""
        own = self.spec.structure
        return not (own.texts or own.inputs or own.outputs or self._prefix)

    def tensors(
        self, inputs: Mapping[str, object], words: StringTable | None = None
    ) -> Mapping[str, object]:
        """Inputs with strings read, lists and optionals taken apart, strings as numbers of `words`,
        and with defaults."""
        structure = self.spec.structure
        if structure.fixed:
            inputs = without_fixed(structure.fixed, inputs)
        if self._defaults and isinstance(inputs, Mapping):
            inputs = {**self._defaults, **inputs}
        inputs = self.without_strings(inputs)
        if structure.inputs:
            inputs = spread(structure.inputs, inputs)
        return words.read(structure.texts, inputs) if words and structure.texts else inputs

    def without_strings(self, inputs: Mapping[str, object]) -> Mapping[str, object]:
        """Inputs with the tensors that operators of strings at the model's beginning make of them.

        Raises `InputError` for strings that are missing, or of another shape than is declared.
        """
        if self._prefix is None:
            return inputs
        check_mapping("inputs", inputs)
        return self._prefix(inputs)

    def finish_with(self, check: ConstantsCheck | None) -> None:
        """Have a check of the constants under way, which the first run waits for."""
        self._check = check

    def check_constants(self) -> None:
        """Raise `ArtefactError` if the file that this was loaded from has damaged constants.

        Waits until the check of them has ended, which goes on from loading until then.
        """
        if self._check is not None:
            self._check.wait()
            self._check = None

    def enter(self, frame: Frame, arrays: Sequence[AnyArray], results: dict[str, AnyArray]) -> None:
        """Run what is bound in a frame; `results` get those whose sizes are known only then."""
        self._entry(*frame.arguments)
        if self._check is not None:
            self.check_constants()
        if self._calls_functions:
            program = self._programs[frame.program]
            if program.functions is not None:
                program.functions.raise_failure(_report(frame, program))
        if self._computes:
            frame.collect(results, arrays)

    def bind(
        self, inputs: Mapping[str, object], out: Mapping[str, object] | None = None
    ) -> BoundRun:
        """A run of these arrays, which are checked now and no more: the cheapest call.

        Each of its runs reads the inputs as they are then, in place, and writes the same outputs:
        those given in `out`, or new ones. Sizes are those of these arrays; where elements of them
        say sizes, these must stay as they are. Raises `InputError` as `run` does, for an input that
        no code can read as it lies, and for a model that computes sizes of its outputs.
        """
        self.check_constants()
        if any(port.late for port in self._ports.outputs):
            raise InputError(
                f"{self.spec.name} computes sizes of its outputs, so that arrays cannot be bound",
                hint="call run, which returns outputs of the sizes that were computed",
            )
        frame = self.new_frame()
        given = without_fixed(self.spec.structure.fixed, inputs)
        arrays = frame.bind_inputs({**self._defaults, **given})
        for port, array in zip(self._ports.inputs, arrays, strict=True):
            if not frame.reads(port, array):
                raise InputError(
                    f"input {port.name!r} cannot be read in place: it is not C-contiguous or not "
                    "aligned to its elements' size",
                    hint="bind a contiguous array and copy into it before each run",
                )
        results = frame.bind_outputs(out, arrays)
        call = partial(self._entry, *frame.arguments)
        if self._calls_functions or self._computes:
            call = partial(self.enter, frame, arrays, results)
        return BoundRun(call, results, (self, frame, arrays))

    def growing(self) -> GrowingRun:
        """Runs that go on with each other's caches: the cheapest call of a decoder's step."""
        return GrowingRun(self)

    def profile(self, inputs: Mapping[str, object], repeat: int = 20) -> Profile:
        """Time every kernel in runs of the model, see
        `tunefarm.compiler.runtime.execution.profile.profile`."""
        from tunefarm.compiler.runtime.execution.profile import profile

        self.check_constants()
        frame = self.new_frame()
        arrays = frame.bind_inputs(self.tensors(inputs, StringTable(self._words)))
        ports = zip(self._ports.inputs, arrays, strict=True)
        shapes = {port.name: array.shape for port, array in ports}
        return profile(self, self._programs[frame.program], inputs, shapes, repeat)

    def clocked(self, entry: bytes | None = None) -> Clocked:
        """The first program with a clock between its steps, see
        `tunefarm.compiler.runtime.execution.profile.Clocked`."""
        from tunefarm.compiler.runtime.execution.profile import Clocked

        return Clocked(self, self._programs[0], entry)

    def entered_by(self, program: LoadedProgram, code: LoadedCode, symbol: str) -> Executable:
        """The same model, one program of which is run by another entry: a symbol of this code."""
        other = program.entered_by(code, symbol)
        loaded = [other if each is program else each for each in self._programs]
        return Executable(self.spec, self.threads, loaded=loaded)

    def new_frame(self, arena: Array | None = None) -> Frame:
        """Memory for one more call at a time.

        `arena` is used for what lies between the kernels if it is given: bytes from a cache line
        on, `arena_bytes` at least, that executables may share whose calls never overlap. Raises
        `ValueError` for any other, `ArtefactError` when there is no memory.
        """
        runtime = ctypes.addressof(self._runtime)
        size = self.arena_bytes
        if arena is None:
            try:
                arena = aligned_empty((size,), np.dtype(np.uint8))
            except MemoryError as error:
                raise ArtefactError(
                    f"there is no memory for the {size} bytes that a run of {self.spec.name} needs"
                ) from error
        elif arena.dtype != np.uint8 or arena.nbytes < size or address_of(arena) % ALIGNMENT:
            raise ValueError(f"the arena must have {size} bytes, at a multiple of {ALIGNMENT}")
        return Frame(self._model, arena, runtime)

    def call_under_way(self, frame: Frame, inputs: Mapping[str, object]) -> str:
        """Of a run of these inputs in a frame's arena that has crashed the call of a function that
        it was in, for errors; "" where it was in none."""
        frame.bind_inputs(self.tensors(inputs, StringTable(self._words)))
        program = self._programs[frame.program]
        if program.functions is None:
            return ""
        return program.functions.under_way(_report(frame, program))

    def kernel_address(self, symbol: str) -> int:
        """Where a kernel's function is; valid while the executable lives."""
        self.check_constants()
        return self._programs[0].kernel_address(symbol)

    def empty_inputs(self, sizes: Mapping[str, int] | None = None) -> dict[str, AnyArray]:
        """Uninitialised arrays for the inputs, aligned to cache lines, as `inputs_at` has them."""
        ports = self.inputs_at(sizes)
        return {name: aligned_empty(t.shape, t.dtype.numpy) for name, t in ports.items()}

    def placed_anew(self, place: Callable[[Array], Array]) -> Executable:
        """The same model at other addresses: its code is linked again, and its constants are the
        copies that `place` makes of them, aligned to `ALIGNMENT`."""
        self.check_constants()
        moved: dict[int, Array] = {}  # programs of one model share constants
        specs = []
        for program in self._programs:
            constants = program.spec.constants
            moved |= {id(c): place(c) for c in constants if id(c) not in moved}
            specs.append(replace(program.spec, constants=tuple(moved[id(c)] for c in constants)))
        return Executable(specs[0], self.threads, specs[1:])

    def save(self, path: str | PathLike[str]) -> None:
        """Write the programs that are loaded to `path`, as `write_artefact.save` does."""
        self.check_constants()
        write_artefact.save(self.spec, path, [program.spec for program in self._programs[1:]])


class GrowingRun:
    """Runs each of which goes on with the caches of the one before, where they lie.

    Only other inputs and outputs are looked at, and no arrays made of the caches until somebody
    asks for them. One call at a time.
    """

    __slots__ = ("_arrays", "_caches", "_executable", "_frame", "_is_ahead")

    def __init__(self, executable: Executable) -> None:
        self._executable, self._frame = executable, executable.new_frame()
        self._is_ahead = False  # the last run went beyond what the arrays of caches show
        self.caches = {}

    @property
    def caches(self) -> dict[str, AnyArray]:
        """The caches that the next run goes on with, by the names of inputs; set them to begin, as
        `Executable.run` takes them with `in_place`."""
        if self._is_ahead:
            self._caches = self._by_inputs(self._frame.results_in_place(self._arrays))
            self._is_ahead = False
        return self._caches

    @caches.setter
    def caches(self, caches: Mapping[str, AnyArray]) -> None:
        self._caches, self._is_ahead = {**caches}, False
        self._arrays: list[AnyArray] = []  # all inputs of the last run; none before the first one

    def _by_inputs(self, results: dict[str, AnyArray]) -> dict[str, AnyArray]:
        """Takes the caches out of the results of a run."""
        return {name: results.pop(output) for output, name in self._executable.in_place.items()}

    def run(self, inputs: Mapping[str, object]) -> dict[str, AnyArray]:
        """The outputs but for the caches, of the inputs but for these; raises as `Executable.run`
        does."""
        executable, frame = self._executable, self._frame
        if self._arrays:
            results = frame.bind_next(executable.tensors(inputs), self._arrays)
            if results is not None:
                self._is_ahead = True
                executable.enter(frame, self._arrays, results)
                return results
        self.caches = self.caches
        results = executable.run_in(frame, {**inputs, **self._caches}, in_place=True)
        self.caches = self._by_inputs(results)
        if executable.in_place and executable.has_plain_ports:
            self._arrays = [self._caches.get(name, _NONE) for name in executable.inputs]
        return results


_NONE = np.zeros(0)


def load(
    path: str | PathLike[str], threads: int | None = None, *, fallback: bool = False
) -> Executable:
    """Load an artifact; `threads` defaults to the count it was built for.

    Of a model that was built for several CPUs the best that this one can stand for is loaded, with
    `fallback` what runs on all; of one that was built for several sizes the programs for all of
    them. Raises `ArtefactError` when the file is damaged, of
    another format, or not for this machine; damage in large weights is an error of the first run,
    which returns no results before they have been checked.
    """
    specs, check = artefact.open_programs(path, fallback=fallback)
    executable = Executable(specs[0], threads, specs[1:])
    executable.finish_with(check)
    return executable


def _prefix(spec: ExecutableSpec) -> PrefixRun | None:
    """What runs before the entry, of nearly all models nothing."""
    if not spec.structure.prefix.steps:
        return None
    from tunefarm.compiler.strings.operators import PrefixRun  # few models need it

    return PrefixRun(spec.structure.prefix)


def _report(frame: Frame, program: LoadedProgram) -> int:
    """Where a program says what failed."""
    return frame.arena_address(program.spec.arena_bytes - REPORT_BYTES)
