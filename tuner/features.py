"""Features of candidates in closed form: choices, kernel facts and target facts as numbers.

Nothing is lowered: a candidate's features are looked up in tables of its choices' values, so that
thousands of proposals are scored at the cost of a few array operations. Columns have names:

- `sketch`: position of the candidate's sketch among the sorted names of the layout's sketches;
- `<choice>[i]`: the i-th number of a choice's value (NaN where the sketch has no such choice);
- `<choice>[*]`: the product of its numbers, where it has several (the area of a tile);
- `kernel.*`: see `KERNEL_FEATURES`; `target.*`: see `TARGET_FEATURES`.

Choices of the same name share a column over sketches and kernels, so that one model serves all
tasks of a job.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TypeAlias

import numpy as np
import numpy.typing as npt

from compiler.kernels.expr import Binary, Cast, Expr, Load, Select, Stage, Unary
from compiler.kernels.kernel import FusedKernel
from compiler.schedule.space import Candidate, Choice, ScheduleSpace
from compiler.target import Target

FeatureMatrix: TypeAlias = npt.NDArray[np.float32]

SPATIAL_AXES = 6
REDUCE_AXES = 4

KERNEL_FEATURES: tuple[str, ...] = (
    "kernel.flops",  # arithmetic operations on values of one call, all stages
    "kernel.bytes",  # bytes of all inputs and of the output, each counted once
    "kernel.intensity",  # flops per byte
    "kernel.reduction",  # product of the anchor's reduce extents (1 without a reduction)
    "kernel.output",  # elements of the output
    "kernel.element_bytes",  # bytes of one element of the anchor
    "kernel.stages",  # number of stages
    "kernel.prologue",  # stages before the anchor
    "kernel.inputs",  # number of input buffers
    *(f"kernel.extent[{i}]" for i in range(SPATIAL_AXES)),  # anchor's axes, innermost first, else 1
    *(f"kernel.reduce[{i}]" for i in range(REDUCE_AXES)),  # its reduce axes, innermost first
)
TARGET_FEATURES: tuple[str, ...] = (
    "target.lanes",
    "target.vector_registers",
    "target.l1_bytes",
    "target.l2_bytes",
    "target.l3_bytes",
    "target.cores",
)


@dataclass(frozen=True, slots=True)
class FeatureLayout:
    """The columns of a feature matrix: the union over the spaces that one model has to serve."""

    sketches: tuple[str, ...]
    choices: tuple[str, ...]  # "<choice>[i]" and "<choice>[*]"

    @staticmethod
    def of(spaces: Sequence[ScheduleSpace]) -> FeatureLayout:
        """The layout that holds every sketch and choice of `spaces`, in sorted order."""
        sketches: set[str] = set()
        columns: set[str] = set()
        for space in spaces:
            for sketch in space.sketches:
                sketches.add(sketch.name)
                for choice in sketch.choices:
                    columns.update(_column_names(choice))
        return FeatureLayout(tuple(sorted(sketches)), tuple(sorted(columns)))

    @property
    def names(self) -> tuple[str, ...]:
        """Names of the columns, in order."""
        return ("sketch", *self.choices, *KERNEL_FEATURES, *TARGET_FEATURES)


class FeatureExtractor:
    """Features of one task's candidates; its tables are made once."""

    def __init__(
        self, space: ScheduleSpace, kernel: FusedKernel, target: Target, layout: FeatureLayout
    ) -> None:
        self.layout = layout
        facts = [*kernel_facts(kernel), *target_facts(target)]
        self._facts = np.array(facts, dtype=np.float32)
        self._first_fact = 1 + len(layout.choices)
        column_of = {name: 1 + i for i, name in enumerate(layout.choices)}
        self._sketches: dict[str, _SketchTables] = {}
        for sketch in space.sketches:
            tables = []
            for choice in sketch.choices:
                columns = [column_of[name] for name in _column_names(choice)]
                tables.append((np.array(columns, np.intp), _numbers(choice)))
            number = float(layout.sketches.index(sketch.name))
            self._sketches[sketch.name] = _SketchTables(number, tuple(tables))

    def __call__(self, candidates: Sequence[Candidate]) -> FeatureMatrix:
        """Shape [len(candidates), len(layout.names)]."""
        matrix = np.full((len(candidates), len(self.layout.names)), np.nan, np.float32)
        matrix[:, self._first_fact :] = self._facts
        rows_of: dict[str, list[int]] = {}
        for row, candidate in enumerate(candidates):
            rows_of.setdefault(candidate.sketch, []).append(row)
        for name, rows in rows_of.items():
            sketch = self._sketches[name]
            index = np.array(rows, np.intp)
            matrix[index, 0] = sketch.number
            if not sketch.tables:
                continue
            positions = np.array([candidates[row].positions for row in rows], np.intp)
            for i, (columns, table) in enumerate(sketch.tables):
                matrix[index[:, None], columns] = table[positions[:, i]]
        return matrix


def _column_names(choice: Choice) -> list[str]:
    width = len(choice.numbers(choice.values[0]))
    names = [f"{choice.name}[{i}]" for i in range(width)]
    return [*names, f"{choice.name}[*]"] if width > 1 else names


def _numbers(choice: Choice) -> FeatureMatrix:
    """The numbers of every value of the domain, one row each, in the order of `_column_names`."""
    table = np.array([choice.numbers(value) for value in choice.values], np.float32)
    if table.shape[1] == 1:
        return table
    return np.concatenate([table, table.prod(axis=1, keepdims=True)], axis=1)


@dataclass(frozen=True, slots=True)
class _SketchTables:
    number: float
    tables: tuple[tuple[npt.NDArray[np.intp], FeatureMatrix], ...]  # per choice: columns, numbers


def features(
    space: ScheduleSpace, kernel: FusedKernel, target: Target, candidates: Sequence[Candidate]
) -> FeatureMatrix:
    """Features of `candidates` in the layout of their own space alone."""
    return FeatureExtractor(space, kernel, target, FeatureLayout.of([space]))(candidates)


def kernel_facts(kernel: FusedKernel) -> tuple[float, ...]:
    """The values of `KERNEL_FEATURES`."""
    anchor = kernel.stage(kernel.anchor)
    flops, moved = kernel_flops(kernel), kernel_bytes(kernel)
    reduction = 1
    for axis in anchor.reduce_axes:
        reduction *= axis.extent
    return (
        float(flops),
        float(moved),
        flops / max(1, moved),
        float(reduction),
        float(_elements(kernel.output)),
        float(anchor.dtype.bytes),
        float(len(kernel.stages)),
        float(kernel.stages.index(anchor)),
        float(len(kernel.inputs)),
        *_innermost([axis.extent for axis in anchor.axes], SPATIAL_AXES),
        *_innermost([axis.extent for axis in anchor.reduce_axes], REDUCE_AXES),
    )


def target_facts(target: Target) -> tuple[float, ...]:
    """The values of `TARGET_FEATURES`."""
    return (
        float(target.lanes),
        float(target.vector_registers),
        float(target.l1_bytes),
        float(target.l2_bytes),
        float(target.l3_bytes),
        float(target.cores),
    )


def kernel_flops(kernel: FusedKernel) -> int:
    """Arithmetic operations on values of one call; indices, loads and conversions are free."""
    total = 0
    for stage in kernel.stages:
        iterations = _elements(stage)
        for axis in stage.reduce_axes:
            iterations *= axis.extent
        total += iterations * (_operations(stage.body) + bool(stage.reduce_axes))
    return total


def kernel_bytes(kernel: FusedKernel) -> int:
    """Bytes of all inputs and of the output."""
    inputs = sum(buffer.type.bytes for buffer in kernel.inputs)
    return inputs + _elements(kernel.output) * kernel.output.dtype.bytes


def _elements(stage: Stage) -> int:
    count = 1
    for axis in stage.axes:
        count *= axis.extent
    return count


def _operations(expression: Expr) -> int:
    match expression:
        case Unary(operand=operand):
            return 1 + _operations(operand)
        case Binary(left=left, right=right):
            return 1 + _operations(left) + _operations(right)
        case Select(then=then, otherwise=otherwise):
            return max(_operations(then), _operations(otherwise))
        case Cast(operand=operand):
            return _operations(operand)
        case Load():
            return 0
        case _:
            return 0


def _innermost(extents: Sequence[int], count: int) -> list[float]:
    reversed_extents = [float(extent) for extent in reversed(extents)][:count]
    return reversed_extents + [1.0] * (count - len(reversed_extents))
