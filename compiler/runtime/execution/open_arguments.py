"""OpenArguments: a call of a function on tensors with dynamic shapes, made step by step."""

from __future__ import annotations

import ctypes
from collections.abc import Mapping, Sequence
from math import prod

import numpy as np

from tunefarm.compiler.runtime.spec.dense_copies import dense_places
from tunefarm.compiler.runtime.spec.executable_spec import FunctionStep
from tunefarm.compiler.runtime.spec.ports import AnyArray
from tunefarm.compiler.types.open_axes import OpenAxes, places_of, true_factors
from tunefarm.compiler.types.tensor_type import TensorType


def sizes_at(step: FunctionStep, vector: int) -> dict[int, int]:
    """The elements of the vector of sizes that a call reads, by place."""
    used = frozenset[int]().union(*(places_of(axes) for axes in step.axes if axes))
    return {place: ctypes.c_int64.from_address(vector + 8 * place).value for place in used}


class OpenArguments:
    """The true shapes of a call's tensors where the `sizes` are these, and dense arrays for it.

    `addresses` are where the function finds its tensors (0 where absent).
    """

    def __init__(
        self, step: FunctionStep, addresses: Sequence[int], sizes: Mapping[int, int]
    ) -> None:
        """The tensors lie at `addresses`, padded."""
        self.sizes = sizes
        self.shapes: list[tuple[int, ...]] = []
        self.addresses = list(addresses)
        self._inputs: list[tuple[AnyArray, AnyArray]] = []  # places, and dense arrays
        self._results: list[tuple[AnyArray, AnyArray]] = []
        copies, _ = dense_places(step.types, step.axes)
        for number, (type, axes) in enumerate(zip(step.types, step.axes, strict=True)):
            if type is None or axes is None:
                self.shapes.append(() if type is None else type.shape)
                continue
            factors = true_factors(axes, sizes)
            self.shapes.append(tuple(map(prod, factors)))
            if copies[number] is None:
                continue
            place = _what_is_there(addresses[number], type, axes, factors)
            dense = np.empty(place.shape, place.dtype)
            is_result = number >= len(step.buffers) - step.outputs
            (self._results if is_result else self._inputs).append((place, dense))
            self.addresses[number] = dense.ctypes.data

    def load(self) -> None:
        """Copy inputs to where the function finds them."""
        for place, dense in self._inputs:
            dense[...] = place

    def store(self) -> None:
        """Copy results to where they belong."""
        for place, dense in self._results:
            place[...] = dense


def extents_at(step: FunctionStep, address: int) -> list[tuple[int, ...]]:
    """The shapes that the entry function has stored before a call."""
    shapes = []
    for type in step.types:
        rank = 0 if type is None else len(type.shape)
        shapes.append(tuple((ctypes.c_int64 * rank).from_address(address)))
        address += 8 * rank
    return shapes


def operands_text(step: FunctionStep, shapes: Sequence[tuple[int, ...]]) -> str:
    """The operands of a call for errors: f32[2, 3], i64[7]."""
    operands = list(zip(step.types, shapes, strict=True))[: len(step.types) - step.outputs]
    texts = ("absent" if t is None else str(TensorType(t.dtype, shape)) for t, shape in operands)
    return ", ".join(texts)


def _what_is_there(
    address: int, type: TensorType, axes: OpenAxes, factors: Sequence[Sequence[int]]
) -> AnyArray:
    """The true part of a tensor as it lies, an axis for each factor."""
    extents = [extent for axis in axes for _, extent in axis]
    memory = memoryview((ctypes.c_uint8 * type.bytes).from_address(address))
    array: AnyArray = np.frombuffer(memory, np.uint8).view(type.dtype.numpy).reshape(extents)
    return array[tuple(slice(true) for axis in factors for true in axis)]
