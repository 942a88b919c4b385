"""What calls of a model with run-time sizes need to know of its ports: made once, of its signature.

Shapes are kept as templates: extents, or `~place` of those in the vector of numbers, see
`compiler.runtime.size_table`. Ports of one shape share one template.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, TypeAlias

import numpy as np

from compiler.runtime.port_layout import layout_of
from compiler.runtime.ports import Port, ports_of
from compiler.runtime.size_table import SizeTable, bytes_of_port, is_late
from compiler.runtime.sized_entry import SizedTables
from compiler.types.signature import AxisSource, ResultSource, Signature, SizedPort, ValueSource
from compiler.types.tensor_type import TensorType

Template: TypeAlias = tuple[int, ...]


@dataclass(frozen=True, slots=True)
class SizedArray:
    """One input or output; `port` has the type that it is padded to, and its place in the tables.

    `name` to `unaligned` are those of the port, which every call looks at. Ports of one kind that
    are the same but for their names and places have the same number `alike`. `shape` is the number
    of its template, `bytes` what its size is in the vector, or a number. `dense` is the place of
    its dense array in the tables, -1 if its sizes are fixed. `strides` are those of its true part
    within its place, None where an axis has padding inside. `late` means that its shape is known
    after the run; `factors` are its extents as the place has them, with `factor_strides`. `grows`
    marks outputs that an input of other sizes has the same place as: what is returned may be an
    argument of the next call.
    """

    port: Port
    declared: SizedPort
    name: str
    dtype: np.dtype[Any]
    position: int
    unaligned: int
    alike: int
    shape: int
    bytes: int
    dense: int
    strides: tuple[int, ...] | None
    late: bool
    grows: bool
    factors: Template
    factor_strides: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class SizedPorts:
    """All ports of a signature, the templates of their shapes, and where symbols are read.

    `axes` and `values` are (place of the symbol, input, axis or position); places are those in the
    vector of symbols.
    """

    signature: Signature
    table: SizeTable
    tables: SizedTables
    templates: tuple[Template, ...]
    inputs: tuple[SizedArray, ...]
    outputs: tuple[SizedArray, ...]
    axes: tuple[tuple[int, int, int], ...]
    values: tuple[tuple[int, int, int], ...]
    equalities: tuple[Template, ...]

    @property
    def computes(self) -> bool:
        """Whether a run computes sizes, or conditions on arguments."""
        sources = self.signature.sources
        late = any(isinstance(source, ResultSource) for source in sources)
        return late or bool(self.signature.checks)

    @staticmethod
    def of(
        signature: Signature,
        inputs: Sequence[tuple[str, TensorType]],
        outputs: Sequence[tuple[str, TensorType]],
    ) -> SizedPorts:
        """The ports of a signature that belongs to these inputs and outputs of the graph."""
        tables = SizedTables.of(signature, len(inputs), len(outputs))
        table = SizeTable.of(signature)
        maker = _Maker(signature, table)
        made_inputs = maker.arrays("input", inputs, signature.inputs, tables.dense_inputs)
        made_outputs = maker.arrays("output", outputs, signature.outputs, tables.dense_outputs)
        numbers = {port.name: i for i, port in enumerate(signature.inputs)}
        sources = list(enumerate(signature.sources))
        return SizedPorts(
            signature,
            table,
            tables,
            tuple(maker.templates),
            made_inputs,
            made_outputs,
            tuple((i, numbers[s.input], s.axis) for i, s in sources if isinstance(s, AxisSource)),
            tuple(
                (i, numbers[s.input], s.position) for i, s in sources if isinstance(s, ValueSource)
            ),
            tuple(table.template((item.left, item.right)) for item in signature.equalities),
        )


class _Maker:
    """Makes ports, and the templates that they share."""

    def __init__(self, signature: Signature, table: SizeTable) -> None:
        self._signature, self._table = signature, table
        self.templates: dict[Template, int] = {}
        self._alike: dict[SizedArray, int] = {}

    def arrays(
        self,
        kind: str,
        types: Iterable[tuple[str, TensorType]],
        declared: Iterable[SizedPort],
        dense: Mapping[str, int],
    ) -> tuple[SizedArray, ...]:
        ports = {port.name: port for port in ports_of(kind, types)}
        self._alike = {}
        return tuple(
            self._array(ports[port.name], port, dense.get(port.name, -1)) for port in declared
        )

    def _array(self, port: Port, declared: SizedPort, dense: int) -> SizedArray:
        factors = [factor for axis in declared.padded for factor in axis]
        strides = _strides([extent for _, extent in factors], port.dtype.itemsize)
        whole = all(_one_stretch(axis) for axis in declared.padded)
        array = SizedArray(
            port,
            declared,
            port.name,
            port.dtype,
            port.position,
            port.unaligned,
            0,
            self._number(self._table.template(declared.shape)),
            self._table.template((bytes_of_port(declared),))[0],
            dense,
            _strides(port.shape, port.dtype.itemsize) if whole else None,
            is_late(self._signature, declared),
            port.kind == "output" and any(_feeds(declared, i) for i in self._signature.inputs),
            self._table.template(true for true, _ in factors),
            strides,
        )
        nameless = replace(port, name="", position=0), replace(declared, name="")
        key = replace(array, port=nameless[0], declared=nameless[1], name="", position=0)
        key = replace(key, dense=min(dense, 0))
        return replace(array, alike=self._alike.setdefault(key, len(self._alike)))

    def _number(self, template: Template) -> int:
        return self.templates.setdefault(template, len(self.templates))


def distinct(ports: Sequence[SizedArray]) -> list[SizedArray]:
    """The first of each that are alike, by that number."""
    firsts = {port.alike: port for port in reversed(ports)}
    return [firsts[number] for number in range(len(firsts))]


def _one_stretch(axis: Sequence[tuple[object, int]]) -> bool:
    """Whether an axis has its padding behind all of its elements."""
    return all(true == extent for true, extent in axis[1:])


def _feeds(output: SizedPort, input: SizedPort) -> bool:
    """Whether what is returned for the output may lie where the input is read from.

    They have one place and not one shape, as a cache before and after a step. What has the same
    shape as well is returned dense, as it is more often an image than a state.
    """
    alike = output.dtype == input.dtype and layout_of(output).levels and layout_of(input).levels
    return bool(alike) and output.type == input.type and output.shape != input.shape


def _strides(shape: Sequence[int], itemsize: int) -> tuple[int, ...]:
    """The strides of a dense array in bytes."""
    strides = [itemsize]
    for extent in reversed(shape[1:]):
        strides.append(strides[-1] * extent)
    return tuple(reversed(strides))[: len(shape)]
