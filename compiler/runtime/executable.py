"""Executable: a compiled model in memory, and the call that runs it."""

from __future__ import annotations

import ctypes
import difflib
from collections.abc import Iterable, Mapping
from os import PathLike
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt

from compiler.dtypes import DType
from compiler.errors import ArtefactError, InputError
from compiler.graph.ir import Array, TensorType
from compiler.runtime import artefact
from compiler.runtime.buffers import address_of, aligned_empty, allocate
from compiler.runtime.check_target import check_target
from compiler.runtime.executable_spec import ALIGNMENT, ENTRY_SYMBOL, ExecutableSpec, KernelReport
from compiler.runtime.loaded_code import LoadedCode
from compiler.runtime.threads import make_runtime

AnyArray: TypeAlias = npt.NDArray[Any]
_EntryFunction = ctypes.CFUNCTYPE(None, *[ctypes.c_void_p] * 5)
_UNALIGNED = ALIGNMENT - 1


class _Frame:
    """The memory of one call in flight: the arena, pointer tables, aligned copies of inputs."""

    __slots__ = ("arena", "arguments", "inputs", "outputs", "staging")

    def __init__(self, spec: ExecutableSpec, constants: int, runtime: int) -> None:
        self.arena, arena = allocate((spec.arena_bytes,), np.dtype(np.uint8), spec.arena_bytes)
        self.inputs = (ctypes.c_void_p * max(1, len(spec.inputs)))()
        self.outputs = (ctypes.c_void_p * max(1, len(spec.outputs)))()
        self.staging: dict[int, tuple[Array, int]] = {}
        self.arguments = (
            ctypes.addressof(self.inputs),
            ctypes.addressof(self.outputs),
            constants,
            arena,
            runtime,
        )

    def stage(self, position: int, array: Array) -> int:
        """Copy an input that the kernels cannot read in place; the address of the copy."""
        if position not in self.staging:
            self.staging[position] = allocate(array.shape, array.dtype, array.nbytes)
        copy, address = self.staging[position]
        np.copyto(copy, array)
        return address


class Executable:
    """A model ready to run: one entry function that calls all kernels over one planned arena.

    `inputs` and `outputs` map names to types, `kernels` reports how each distinct kernel was built,
    `threads` is the number of threads in use, `threading` what provides them ("" when serial).
    `run` may be called from several threads at once; each call has an arena of its own.
    """

    def __init__(self, spec: ExecutableSpec, threads: int | None = None) -> None:
        """Load `spec`'s code; `threads` defaults to the count it was built for.

        Raises `ArtefactError` if this machine cannot run the code, `ValueError` for threads < 1.
        """
        check_target(spec.target)
        self.spec = spec
        self._runtime, self.threading = make_runtime(spec.threads if threads is None else threads)
        self._code = LoadedCode((spec.entry, *(part.code for part in spec.objects)), [ENTRY_SYMBOL])
        self._entry = _EntryFunction(self._code.address(ENTRY_SYMBOL))
        addresses = [address_of(constant) for constant in spec.constants]
        if any(address & _UNALIGNED for address in addresses):
            raise ArtefactError("a constant of the model is not aligned")
        self._constants = (ctypes.c_void_p * max(1, len(addresses)))(*addresses)
        self._inputs = tuple(
            (i, name, type.dtype.numpy, type.shape) for i, (name, type) in enumerate(spec.inputs)
        )
        self._outputs = tuple(
            (i, name, type.dtype.numpy, type.shape, type.bytes)
            for i, (name, type) in enumerate(spec.outputs)
        )
        self._frames: list[_Frame] = []

    @property
    def inputs(self) -> dict[str, TensorType]:
        return dict(self.spec.inputs)

    @property
    def outputs(self) -> dict[str, TensorType]:
        return dict(self.spec.outputs)

    @property
    def kernels(self) -> tuple[KernelReport, ...]:
        return self.spec.kernels

    @property
    def threads(self) -> int:
        return int(self._runtime.threads)

    def __repr__(self) -> str:
        ports = ", ".join(f"{name}: {type}" for name, type in self.spec.inputs)
        results = ", ".join(f"{name}: {type}" for name, type in self.spec.outputs)
        return f"<Executable {self.spec.name}({ports}) -> {results}, {self.threads} thread(s)>"

    def run(self, inputs: Mapping[str, AnyArray]) -> dict[str, AnyArray]:
        """Run the model; returns new arrays by output name.

        Inputs must have exactly the declared names, element types and shapes (`InputError`
        otherwise). One that is C-contiguous and 64-byte aligned (see `empty_inputs`) is read in
        place, any other is copied first. Releases the interpreter lock while the kernels run.
        """
        if len(inputs) != len(self._inputs):
            self._refuse_names(inputs)
        try:
            frame = self._frames.pop()
        except IndexError:
            frame = _Frame(self.spec, ctypes.addressof(self._constants), self._runtime_address())
        arrays = []  # keeps converted inputs alive during the call
        pointers = frame.inputs
        for position, name, dtype, shape in self._inputs:
            array = inputs.get(name)
            if type(array) is not np.ndarray or array.dtype != dtype or array.shape != shape:
                array = self._checked(name, inputs)
            arrays.append(array)
            address = address_of(array)
            if address & _UNALIGNED or not array.flags.c_contiguous:
                address = frame.stage(position, array)
            pointers[position] = address
        results: dict[str, AnyArray] = {}
        pointers = frame.outputs
        for position, name, dtype, shape, count in self._outputs:
            results[name], pointers[position] = allocate(shape, dtype, count)
        self._entry(*frame.arguments)
        self._frames.append(frame)
        return results

    def empty_inputs(self) -> dict[str, AnyArray]:
        """Uninitialised arrays for the inputs, aligned so that `run` reads them in place."""
        return {
            name: aligned_empty(type.shape, type.dtype.numpy, type.bytes)
            for name, type in self.spec.inputs
        }

    def save(self, path: str | PathLike[str]) -> None:
        """Write the model to the file `path`, see `compiler.runtime.artefact.save`."""
        artefact.save(self.spec, path)

    def _runtime_address(self) -> int:
        return ctypes.addressof(self._runtime)

    def _checked(self, name: str, inputs: Mapping[str, AnyArray]) -> AnyArray:
        """The input as an array of the declared type, or `InputError`."""
        if name not in inputs:
            self._refuse_names(inputs)
        array = np.asarray(inputs[name])
        expected = self.inputs[name]
        if array.dtype != expected.dtype.numpy:
            given = _dtype_name(array.dtype)
            raise InputError(
                f"input {name!r} has elements of type {given}, the model takes {expected.dtype}",
                hint=f"convert it with .astype(numpy.{expected.dtype.numpy})",
            )
        if array.shape != expected.shape:
            raise InputError(
                f"input {name!r} has the shape {list(array.shape)}, "
                f"the model was built for {list(expected.shape)}"
            )
        return array

    def _refuse_names(self, inputs: Mapping[str, AnyArray]) -> None:
        """Raise the `InputError` that says which names are missing or unknown."""
        expected = self.inputs
        for name in inputs:
            if name in expected:
                continue
            near = difflib.get_close_matches(str(name), expected, n=1, cutoff=0.5)
            hint = f"did you mean {near[0]!r}?" if near else ""
            raise InputError(
                f"the model has no input {name!r}; its inputs are {_listed(expected)}", hint=hint
            )
        missing = [name for name in expected if name not in inputs]
        raise InputError(
            f"input {_listed(missing)} is missing; the model's inputs are {_listed(expected)}"
        )


def _listed(names: Iterable[str]) -> str:
    return ", ".join(repr(name) for name in names) or "none"


def _dtype_name(dtype: np.dtype[np.generic]) -> str:
    try:
        return str(DType.from_numpy(dtype))
    except ValueError:
        return str(dtype)


def load(path: str | PathLike[str], threads: int | None = None) -> Executable:
    """Load an artefact; `threads` defaults to the count it was built for.

    Raises `ArtefactError` when it is damaged, of another format, or not for this machine.
    """
    return Executable(artefact.read(path), threads)
