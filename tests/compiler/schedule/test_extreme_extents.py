"""Every operator with axes of any extent has a schedule that fits it."""

from __future__ import annotations

import random
from collections.abc import Iterator
from dataclasses import replace
from types import MappingProxyType

import pytest

from tests.compiler.operators.cases import Case
from tests.compiler.operators.movement_cases import movement_cases
from tests.compiler.operators.pointwise_cases import pointwise_cases
from tests.compiler.operators.quantised_cases import quantised_cases
from tests.compiler.operators.recurrence_cases import recurrence_cases
from tests.compiler.operators.reduction_cases import reduction_cases
from tests.compiler.operators.sampling_cases import sampling_cases
from tests.compiler.operators.window_cases import window_cases
from tunefarm.compiler.errors import TunefarmError
from tunefarm.compiler.kernels.kernel import FusedKernel
from tunefarm.compiler.llvm.emit_kernel import emit_kernel
from tunefarm.compiler.operators.evaluate_node import node_kernel
from tunefarm.compiler.operators.registry import UNEXPRESSED, all_operators, infer_type
from tunefarm.compiler.schedule.apply_schedule import lower
from tunefarm.compiler.schedule.spaces import default_schedule, schedule_space
from tunefarm.compiler.target import host_target
from tunefarm.compiler.types.dtypes import DType
from tunefarm.compiler.types.node import Node
from tunefarm.compiler.types.tensor_type import Attribute, TensorType

EXTENTS = (1, 2**14, 2**14 + 1, 2**17 + 1, 2**20)
DRAWN = tuple(int(2 ** random.Random(number).uniform(1, 20)) for number in range(4))
"""Of every order of magnitude, and the same in every run."""
OPERATORS = {item.name: item for item in all_operators() if item.pattern not in UNEXPRESSED}
MOST_ELEMENTS = 2**31  # of a tensor: no extent may overflow what indexes it
Types = tuple[TensorType | None, ...]


def _cases() -> dict[str, list[Case]]:
    found: dict[str, list[Case]] = {name: [] for name in OPERATORS}
    every = (
        *pointwise_cases(),
        *movement_cases(),
        *reduction_cases(),
        *window_cases(),
        *quantised_cases(),
        *recurrence_cases(),
        *sampling_cases(),
    )
    for case in every:
        if case.node.operator in found:
            found[case.node.operator].append(case)
    return found


CASES = _cases()


def _with_extent(attribute: Attribute, old: int, new: int) -> Attribute:
    if not isinstance(attribute, tuple):
        return attribute
    integers = tuple(item for item in attribute if isinstance(item, int))
    if len(integers) != len(attribute):
        return attribute
    return tuple(new if item == old else item for item in integers)


def _stretched(case: Case, extent: int) -> Iterator[tuple[Node, Types]]:
    """The case with one of its extents another one, wherever it occurs in shapes."""
    types = tuple(
        None if array is None else TensorType(DType.from_numpy(array.dtype), array.shape)
        for array in case.inputs
    )
    for old in sorted({item for type in types if type for item in type.shape}):
        changed = tuple(
            type
            and replace(type, shape=tuple(extent if item == old else item for item in type.shape))
            for type in types
        )
        attributes = case.node.attributes
        stretched = {name: _with_extent(item, old, extent) for name, item in attributes.items()}
        for tried in (attributes, MappingProxyType(stretched)):
            node = replace(case.node, attributes=tried)
            if _is_legal(node, changed):
                yield node, changed
                break


def _is_legal(node: Node, types: Types) -> bool:
    try:
        result = infer_type(node, types)
    except TunefarmError:
        return False
    return all(0 < type.size <= MOST_ELEMENTS for type in (*types, result) if type)


def _kernels(operator: str, extent: int, most: int) -> Iterator[FusedKernel]:
    """Of at most `most` cases whose shapes differ; fewer where others cannot have that extent."""
    seen: set[tuple[tuple[int, ...], ...]] = set()
    count = 0
    for case in CASES[operator]:
        for node, types in _stretched(case, extent):
            shapes = tuple(type.shape for type in types if type)
            if shapes not in seen:
                seen.add(shapes)
                yield node_kernel(node, types)
                count += 1
        if count >= most:
            return


@pytest.mark.parametrize("operator", OPERATORS)
def test_default_schedule_fits_any_extent(operator: str) -> None:
    target = host_target()
    for extent in (1, 2**14 + 1, 2**20, DRAWN[0]):  # candidates: all
        kernels = list(_kernels(operator, extent, 4))
        assert kernels or extent == 1, f"no case of {operator} takes the extent {extent}"
        for kernel in kernels:
            emit_kernel(lower(kernel, default_schedule(kernel, target)), target, "kernel")


@pytest.mark.nightly
@pytest.mark.parametrize("threads", [1, 2])
@pytest.mark.parametrize("operator", OPERATORS)
def test_candidates_fit_any_extent(operator: str, threads: int) -> None:
    target = host_target()
    for extent in (*EXTENTS, *DRAWN):
        for kernel in _kernels(operator, extent, 8):
            space = schedule_space(kernel, target, threads)
            for number in range(0, space.size, max(1, space.size // 12)):
                schedule = space.schedule(space.candidate(number))
                emit_kernel(lower(kernel, schedule), target, "kernel")
