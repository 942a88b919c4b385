"""Executable: a compiled model in memory, and the call that runs it."""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from os import PathLike
from typing import TYPE_CHECKING

import numpy as np

from compiler.errors import ArtefactError, InputError
from compiler.machine_memory import memory_bytes
from compiler.runtime import artefact
from compiler.runtime.bound_run import BoundRun
from compiler.runtime.buffers import address_of, aligned_empty
from compiler.runtime.check_target import check_target
from compiler.runtime.executable_spec import (
    ALIGNMENT,
    ENTRY_SYMBOL,
    REPORT_BYTES,
    ExecutableSpec,
    FunctionStep,
)
from compiler.runtime.frame import Frame, pointer_table
from compiler.runtime.function_table import FunctionTable
from compiler.runtime.kernel_report import KernelReport
from compiler.runtime.loaded_code import LoadedCode
from compiler.runtime.ports import AnyArray, ports_of
from compiler.runtime.run_sizes import SizesFunction
from compiler.runtime.sized_entry import SIZED_ENTRY_SYMBOL, SIZES_SYMBOL
from compiler.runtime.sized_frame import SizedFrame
from compiler.runtime.sized_ports import SizedPorts
from compiler.runtime.threads import make_runtime
from compiler.types.chosen_sizes import choose_sizes, types_at
from compiler.types.signature import SIZES, Signature
from compiler.types.structure import gathered, spread
from compiler.types.tensor_type import Array, TensorType

if TYPE_CHECKING:
    from compiler.runtime.profile import Profile

_EntryFunction = ctypes.CFUNCTYPE(None, *[ctypes.c_void_p] * 5)


class Executable:
    """A model ready to run: one entry function that calls all kernels over one planned arena.

    `inputs` and `outputs` map names to types, `kernels` reports how each distinct kernel was built,
    `threads` is the number of threads in use, `threading` what provides them ("" when serial).
    `run` may be called from several threads at once: each call has a frame of its own, with an
    arena, and `idle_frames` says how many are kept for later, at most as many as were in use at
    the same time.

    Where sizes are known at run time only `signature` says names, element types, symbols and
    bounds, and `inputs` and `outputs` are the types at the greatest sizes; else it is None.
    """

    def __init__(self, spec: ExecutableSpec, threads: int | None = None) -> None:
        """Load `spec`'s code; `threads` defaults to the count it was built for.

        Raises `ArtefactError` if this machine cannot run the code or has too little memory, or a
        function that it calls is missing, `ValueError` for threads < 1.
        """
        check_target(spec.target)
        _check_memory(spec)
        self.spec = spec
        self._runtime, self.threading = make_runtime(spec.threads if threads is None else threads)
        sized = spec.signature is not None
        self._code = LoadedCode(
            (spec.entry, *(part.code for part in spec.objects)),
            (
                ENTRY_SYMBOL,
                *((SIZED_ENTRY_SYMBOL, SIZES_SYMBOL) if sized else ()),
                *(part.symbol for part in spec.objects),
            ),
        )
        entry = SIZED_ENTRY_SYMBOL if sized else ENTRY_SYMBOL
        self._entry = _EntryFunction(self._code.address(entry))
        addresses = [address_of(constant) for constant in spec.constants]
        if any(address % ALIGNMENT for address in addresses):
            raise ArtefactError("a constant of the model is not aligned")
        self._functions = None
        if spec.functions:
            self._functions = FunctionTable(spec.name, spec.functions, spec.steps)
        pointers = () if self._functions is None else self._functions.pointers
        self._constants = pointer_table([*addresses, *pointers])
        self._inputs = ports_of("input", spec.inputs)
        self._outputs = ports_of("output", spec.outputs)
        signature, (inputs, outputs) = spec.signature, (spec.inputs, spec.outputs)
        self._sized = None if signature is None else SizedPorts.of(signature, inputs, outputs)
        self._frames: list[Frame] = []  # those that no call uses at the moment

    @property
    def signature(self) -> Signature | None:
        return self.spec.signature

    @property
    def inputs(self) -> dict[str, TensorType]:
        if self.signature is not None:
            return {port.name: port.type for port in self.signature.inputs}
        return dict(self.spec.inputs)

    @property
    def outputs(self) -> dict[str, TensorType]:
        if self.signature is not None:
            return {port.name: port.type for port in self.signature.outputs}
        return dict(self.spec.outputs)

    def inputs_at(self, sizes: Mapping[str, int] | None = None) -> dict[str, TensorType]:
        """The types of the inputs where symbols have these sizes, the others one in the middle.

        Raises `InputError` for sizes out of bounds, and for symbols that there are not.
        """
        if self.signature is None:
            return self.inputs
        return types_at(self.signature.inputs, choose_sizes(self.signature, sizes or {}))

    def outputs_at(self, sizes: Mapping[str, int] | None = None) -> dict[str, TensorType]:
        """The types of the outputs at the sizes of `inputs_at`, but for those that a run computes.

        Raises `InputError` as that does.
        """
        if self.signature is None or self._sized is None:
            return self.outputs
        known = [port.declared for port in self._sized.outputs if not port.late]
        return types_at(known, choose_sizes(self.signature, sizes or {}))

    @property
    def kernels(self) -> tuple[KernelReport, ...]:
        return self.spec.kernels

    @property
    def threads(self) -> int:
        return int(self._runtime.threads)

    @property
    def idle_frames(self) -> int:
        return len(self._frames)

    def __repr__(self) -> str:
        sized, spec = self.signature, self.spec
        inputs = spec.inputs if sized is None else [(p.name, p) for p in sized.inputs]
        outputs = spec.outputs if sized is None else [(p.name, p) for p in sized.outputs]
        ports = ", ".join(f"{name}: {type}" for name, type in inputs)
        results = ", ".join(f"{name}: {type}" for name, type in outputs)
        return f"<Executable {self.spec.name}({ports}) -> {results}, {self.threads} thread(s)>"

    def run(
        self, inputs: Mapping[str, object], out: Mapping[str, object] | None = None
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
        `x[0]` and so on. Raises `InputError` before anything has run, and `FunctionError` when a
        function that the model calls fails: outputs are then of no use. Releases the interpreter
        lock while the kernels run.
        """
        try:
            frame = self._frames.pop()
        except IndexError:
            frame = self.new_frame()
        try:
            return self.run_in(frame, inputs, out)
        finally:
            self._frames.append(frame)

    def run_in(
        self,
        frame: Frame,
        inputs: Mapping[str, object],
        out: Mapping[str, object] | None = None,
    ) -> dict[str, AnyArray]:
        """As `run`, in the memory of a frame that `new_frame` made; one call at a time."""
        structure = self.spec.structure
        if structure.inputs:
            inputs = spread(structure.inputs, inputs)
        arrays = frame.bind_inputs(inputs)  # keeps converted inputs alive during the call
        results = frame.bind_outputs(out, arrays)
        self.enter(frame, arrays, results)
        return gathered(structure.outputs, results) if structure.outputs else results

    def enter(self, frame: Frame, arrays: Sequence[AnyArray], results: dict[str, AnyArray]) -> None:
        """Run what is bound in a frame; `results` get those whose sizes are known only then."""
        self._entry(*frame.arguments)
        if self._functions is not None:
            report = frame.arena_address(self.spec.arena_bytes - REPORT_BYTES)
            self._functions.raise_failure(report)
        if self._sized is not None:
            frame.collect(results, arrays)

    def bind(
        self, inputs: Mapping[str, object], out: Mapping[str, object] | None = None
    ) -> BoundRun:
        """A run of these arrays, which are checked now and no more: the call that costs least.

        Each of its runs reads the inputs as they are then, in place, and writes the same outputs:
        those given in `out`, or new ones. Sizes are those of these arrays; where elements of them
        say sizes, these must stay as they are. Raises `InputError` as `run` does, for an input that
        no code can read as it lies, and for a model that computes sizes of its outputs.
        """
        if self._sized is not None and any(port.late for port in self._sized.outputs):
            raise InputError(
                f"{self.spec.name} computes sizes of its outputs, so that arrays cannot be bound",
                hint="call run, which returns outputs of the sizes that were computed",
            )
        frame = self.new_frame()
        arrays = frame.bind_inputs(inputs)
        bound = [port for port in self._inputs if port.name != SIZES]
        for port, array in zip(bound, arrays, strict=True):
            if not frame.reads(port, array):
                raise InputError(
                    f"input {port.name!r} cannot be read in place: it is not C-contiguous or not "
                    "aligned to its elements' size",
                    hint="bind a contiguous array and copy into it before each run",
                )
        results = frame.bind_outputs(out, arrays)
        call = partial(self._entry, *frame.arguments)
        if self._functions is not None or (self._sized is not None and self._sized.computes):
            call = partial(self.enter, frame, arrays, results)
        return BoundRun(call, results, (self, frame, arrays))

    def profile(self, inputs: Mapping[str, object], repeat: int = 20) -> Profile:
        """Time every kernel on its own, see `compiler.runtime.profile.profile`."""
        from compiler.runtime.profile import profile

        return profile(self, inputs, repeat)

    def new_frame(self, arena: Array | None = None) -> Frame:
        """Memory for one more call at a time.

        `arena` is used for what lies between the kernels if it is given: bytes from a cache line
        on, `spec.arena_bytes` at least, that executables may share whose calls take turns. Raises
        `ValueError` for any other, `ArtefactError` when there is no memory.
        """
        runtime = ctypes.addressof(self._runtime)
        size = self.spec.arena_bytes
        if arena is None:
            try:
                arena = aligned_empty((size,), np.dtype(np.uint8))
            except MemoryError as error:
                raise ArtefactError(
                    f"there is no memory for the {size} bytes that a run of {self.spec.name} needs"
                ) from error
        elif arena.dtype != np.uint8 or arena.nbytes < size or address_of(arena) % ALIGNMENT:
            raise ValueError(f"the arena must have {size} bytes, at a multiple of {ALIGNMENT}")
        if self._sized is not None:
            compute = SizesFunction(self._code.address(SIZES_SYMBOL))
            return SizedFrame(self.spec, self._sized, compute, arena, self._constants, runtime)
        return Frame(self._inputs, self._outputs, arena, self._constants, runtime)

    def function_call(self, step: FunctionStep, addresses: Sequence[int]) -> Callable[[], None]:
        """A step that calls a function, by itself, on buffers at these addresses (0: absent)."""
        assert self._functions is not None
        return self._functions.call(step, addresses)

    def kernel_address(self, symbol: str) -> int:
        """Where a kernel's function is; valid while the executable lives."""
        return self._code.address(symbol)

    def empty_inputs(self, sizes: Mapping[str, int] | None = None) -> dict[str, AnyArray]:
        """Uninitialised arrays for the inputs, aligned to cache lines, as `inputs_at` has them."""
        ports = self.inputs_at(sizes)
        return {name: aligned_empty(t.shape, t.dtype.numpy) for name, t in ports.items()}

    def save(self, path: str | PathLike[str]) -> None:
        """Write the variant that is loaded to `path`, see `compiler.runtime.artefact.save`."""
        artefact.save(self.spec, path)


def load(
    path: str | PathLike[str], threads: int | None = None, *, fallback: bool = False
) -> Executable:
    """Load an artefact; `threads` defaults to the count it was built for.

    Of a model that was built for several CPUs the best that this one can stand for is loaded, with
    `fallback` what runs on all; of one that was built for several sizes the programs for all of
    them, see `compiler.runtime.sized_programs`. Raises `ArtefactError` when the file is damaged, of
    another format, or not for this machine.
    """
    specs = artefact.read_programs(path, fallback=fallback)
    if len(specs) == 1:
        return Executable(specs[0], threads)
    from compiler.runtime.sized_programs import SizedPrograms  # it is made of this

    return SizedPrograms(specs, threads)


def _check_memory(spec: ExecutableSpec) -> None:
    """Refuse a model of which this machine cannot hold one run."""
    ports = sum(type.bytes for _, type in (*spec.inputs, *spec.outputs))
    needed, there = spec.arena_bytes + ports, memory_bytes()
    if needed > there:
        raise ArtefactError(
            f"a run of {spec.name} needs {needed} bytes, and this machine has {there}",
            hint="it was built for a machine with more memory",
        )
