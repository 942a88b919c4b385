"""KernelFunctions: each compiled kernel of a model by name, to be called with arrays.

A kernel may have other operands than the nodes that it was made of: layouts in blocks, what nodes
before it left undone, and constants in the form that it wants. The latter are bound to it.
"""

from __future__ import annotations

import ctypes
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from types import MappingProxyType, TracebackType
from typing import Final

from tunefarm.compiler.errors import ArtefactError, InputError
from tunefarm.compiler.machine.amx_set_up import TilePalette, set_up_ir
from tunefarm.compiler.machine.float_state import float_state_ir
from tunefarm.compiler.runtime.execution.loaded_program import LoadedProgram
from tunefarm.compiler.runtime.machine.loaded_code import LoadedCode
from tunefarm.compiler.runtime.spec.buffers import (
    address_of,
    aligned_empty,
    allocate_output,
    pointer_table,
)
from tunefarm.compiler.runtime.spec.executable_spec import CallStep, ExecutableSpec, Place
from tunefarm.compiler.runtime.spec.ports import (
    AnyArray,
    Port,
    checked,
    checked_output,
    ports_of,
    refuse_shared,
    span_of,
)
from tunefarm.compiler.target import Target
from tunefarm.compiler.types.dtypes import DType
from tunefarm.compiler.types.numerics import FLUSH, Denormals
from tunefarm.compiler.types.tensor_type import Array, TensorType

# What calls of each kernel hand over: what is bound to it, and what is left for its caller.

_KEY_CHARACTERS: Final = 8


@dataclass(frozen=True, slots=True)
class KernelOperands:
    """A kernel of a program by name: its `calls`, which operands are `bound`, and types.

    What is a constant in all calls is bound: each call has its own. `inputs` are the types of the
    other operands.
    """

    name: str
    symbol: str
    calls: tuple[CallStep, ...]
    bound: tuple[bool, ...]
    inputs: tuple[TensorType, ...]
    output: TensorType
    workspace_bytes: int


def kernel_operands(spec: ExecutableSpec) -> dict[str, KernelOperands]:
    """The kernels of a program by name and the beginning of their key, in order of first use.

    There must be as many `operands` in it as kernels.
    """
    calls: dict[str, list[CallStep]] = {}
    for step in spec.steps:
        if isinstance(step, CallStep):
            calls.setdefault(step.symbol, []).append(step)
    found: dict[str, KernelOperands] = {}
    for report, part, types in zip(spec.kernels, spec.objects, spec.operands, strict=True):
        name = f"{report.name}_{report.key[:_KEY_CHARACTERS]}"
        if name in found:
            continue
        *operands, output = types
        bound = _bound(calls[part.symbol])
        inputs = (type for type, is_bound in zip(operands, bound, strict=True) if not is_bound)
        found[name] = KernelOperands(
            name,
            part.symbol,
            tuple(calls[part.symbol]),
            bound,
            tuple(inputs),
            output,
            report.workspace_bytes,
        )
    return found


def _bound(calls: Sequence[CallStep]) -> tuple[bool, ...]:
    """Which operands are constants in all calls."""
    operands = zip(*(step.buffers[:-1] for step in calls), strict=True)
    return tuple(all(place.place is Place.CONSTANT for place in places) for places in operands)


_Function = ctypes.CFUNCTYPE(None, ctypes.c_void_p, ctypes.c_void_p, ctypes.c_void_p)


@dataclass(frozen=True, slots=True)
class KernelCode:
    """What calls of a kernel need: its function, the pool of threads, and what must be kept."""

    program: LoadedProgram
    runtime: int
    owner: object


class KernelFunction:
    """A kernel as a function of arrays; every call has buffers of its own.

    `inputs` are the types of the arrays that it takes, `output` is that of the one that it gives;
    `calls` says how often the model calls it: each of its calls has constants of its own. Vectors
    of sizes (`Signature.sizes`) are inputs like others, of kernels that end at them.
    """

    def __init__(self, code: KernelCode, kernel: KernelOperands) -> None:
        self.name = kernel.name
        self.inputs, self.output = kernel.inputs, kernel.output
        self._code, self._kernel = code, kernel
        self._ports = ports_of("input", ((str(n), type) for n, type in enumerate(self.inputs)))
        (self._result,) = ports_of("output", [("0", self.output)])

    @property
    def symbol(self) -> str:
        """Its function in the object code."""
        return self._kernel.symbol

    @property
    def calls(self) -> int:
        """How often the model calls it: its calls are numbered from 0."""
        return len(self._kernel.calls)

    @property
    def constants(self) -> tuple[TensorType, ...]:
        """The types of the constants that are bound to it, as they are packed."""
        constants = self._code.program.spec.constants
        places = zip(self._kernel.calls[0].buffers, self._kernel.bound, strict=False)
        arrays = [constants[place.number] for place, is_bound in places if is_bound]
        return tuple(TensorType(DType.from_numpy(array.dtype), array.shape) for array in arrays)

    def __call__(self, *arrays: object, out: object = None, call: int = 0) -> AnyArray:
        """The result for these inputs, in their order: a new array, or `out`.

        `call` says the constants of which of the model's calls are read. Raises `InputError` for
        arrays of another number, type or shape, for an `out` that cannot be written or shares
        memory with an input, and for a call that there is not.
        """
        if not 0 <= call < self.calls:
            raise InputError(f"{self.name} has {self.calls} calls, and none of the number {call}")
        if len(arrays) != len(self._ports):
            raise InputError(
                f"{self.name} takes {len(self._ports)} arrays, not {len(arrays)}", hint=str(self)
            )
        given = [self._read(port, array) for port, array in zip(self._ports, arrays, strict=True)]
        spans = [span_of(array, address_of(array)) for array in given]
        result, address = self._written(out, spans)
        addresses = iter([address_of(array) for array in given])
        constants = self._code.program.spec.constants
        buffers = self._kernel.calls[call].buffers
        operands = [
            address_of(constants[place.number]) + place.offset if is_bound else next(addresses)
            for place, is_bound in zip(buffers, self._kernel.bound, strict=False)
        ]
        table = pointer_table([*operands, address])
        workspace = aligned_empty((max(1, self._kernel.workspace_bytes),), DType.U8.numpy)
        function = _Function(self._code.program.kernel_address(self._kernel.symbol))
        spec = self._code.program.spec
        with KernelSession(spec.target, spec.denormals):
            function(ctypes.addressof(table), address_of(workspace), self._code.runtime)
        return result

    def __str__(self) -> str:
        inputs = ", ".join(map(str, self.inputs))
        return f"{self.name}({inputs}) -> {self.output}"

    def __repr__(self) -> str:
        return f"<kernel {self}>"

    def _read(self, port: Port, given: object) -> Array:
        try:
            array = checked(port, given)
        except InputError as error:
            raise InputError(f"{self.name}: {error.message}", hint=str(self)) from None
        if array.flags.c_contiguous and array.flags.aligned:
            return array
        copy = aligned_empty(array.shape, array.dtype)
        copy[...] = array
        return copy

    def _written(self, out: object, spans: Sequence[tuple[int, int]]) -> tuple[AnyArray, int]:
        port = self._result
        if out is None:
            return allocate_output(port.shape, port.dtype, port.bytes)
        try:
            result = checked_output(port, out)
            refuse_shared(port, span_of(result, address_of(result)), spans)
        except InputError as error:
            raise InputError(f"{self.name}: {error.message}", hint=str(self)) from None
        return result, address_of(result)


def kernel_functions(
    programs: Sequence[LoadedProgram], runtime: int, owner: object
) -> Mapping[str, KernelFunction]:
    """The kernels of all programs by name and the beginning of their key, in order of first use.

    `runtime` is where the pool of threads is described, `owner` what it lives in. Raises
    `ArtefactError` for programs of files from before the types of operands were kept.
    """
    found: dict[str, KernelFunction] = {}
    for program in programs:
        spec = program.spec
        if len(spec.operands) != len(spec.kernels):
            raise ArtefactError(
                f"{spec.name} was saved by a version that kept no types of kernels' operands",
                hint="build the model again",
            )
        code = KernelCode(program, runtime, owner)
        for name, kernel in kernel_operands(spec).items():
            found.setdefault(name, KernelFunction(code, kernel))
    return MappingProxyType(found)


_FLOATS = """
define i64 @flush_floats() { %state = call i64 @session.flush() ret i64 %state }
define void @set_floats(i64 %state) { call void @session.set(i64 %state) ret void }
"""
_TILES = """
define void @begin_tiles() { call void @session.begin() ret void }
define void @end_tiles() { call void @session.end() ret void }
"""


class KernelSession:
    """A context in which kernels that this thread calls find what an entry sets up.

    That is the target's matrix tiles, if it has any, and floats whose denormal numbers are flushed
    where a model's are. A model's run meanwhile releases the tiles.
    """

    def __init__(self, target: Target, denormals: Denormals) -> None:
        self._flushes = denormals == FLUSH
        self._tiles = target.matrix_tiles is not None
        self._code = None
        if self._flushes or self._tiles:
            self._code = _session(target.triple, target.matrix_tiles)
        self._floats = 0

    def __enter__(self) -> KernelSession:
        if self._code is not None and self._tiles:
            ctypes.CFUNCTYPE(None)(self._code.address("begin_tiles"))()
        if self._code is not None and self._flushes:
            flush = ctypes.CFUNCTYPE(ctypes.c_int64)(self._code.address("flush_floats"))
            self._floats = flush()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if self._code is not None and self._flushes:
            set_floats = ctypes.CFUNCTYPE(None, ctypes.c_int64)(self._code.address("set_floats"))
            set_floats(self._floats)
        if self._code is not None and self._tiles:
            ctypes.CFUNCTYPE(None)(self._code.address("end_tiles"))()


@cache
def _session(triple: str, tiles: TilePalette | None) -> LoadedCode:
    ir, symbols = float_state_ir(triple, "session") + _FLOATS, ["flush_floats", "set_floats"]
    if tiles is not None:
        ir += set_up_ir(tiles, "session") + _TILES
        symbols += ["begin_tiles", "end_tiles"]
    return LoadedCode((), symbols, ir)
