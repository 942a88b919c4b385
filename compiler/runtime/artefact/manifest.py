"""Manifest: what an executable is, besides its code and constants, as JSON, and back."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from typing import Any

from tunefarm.compiler.runtime.spec.executable_spec import (
    AgainStep,
    CallStep,
    Condition,
    CopyStep,
    ExecutableSpec,
    FunctionLink,
    FunctionStep,
    Location,
    LoopStep,
    ObjectPart,
    Place,
    RowStep,
    RunStep,
)
from tunefarm.compiler.runtime.spec.guards import SizeGuard
from tunefarm.compiler.runtime.spec.kernel_report import KernelReport
from tunefarm.compiler.target import Target, llvm_version
from tunefarm.compiler.types.dtypes import DType
from tunefarm.compiler.types.frozen import frozen
from tunefarm.compiler.types.metadata import metadata_from_json, metadata_to_json
from tunefarm.compiler.types.numerics import KEEP, Denormals, denormals_of
from tunefarm.compiler.types.open_axes import OpenAxes
from tunefarm.compiler.types.packing import Packing
from tunefarm.compiler.types.signature import fixed_signature
from tunefarm.compiler.types.signature_json import signature_from_json, signature_to_json
from tunefarm.compiler.types.structure import NO_STRUCTURE, Structure, structure_from_json
from tunefarm.compiler.types.tensor_type import Array, TensorType
from tunefarm.compiler.types.winograd_filter import FILTER_DTYPE, FILTERS, transformed_shape
from tunefarm.compiler.version import VERSION

# Places in memory, what steps are guarded by, loops and dynamic shapes, as JSON values, and.
#
# back.


def location_to_json(location: Location) -> list[Any]:
    """A place as JSON values."""
    offset = [location.offset] if location.offset else []
    return [str(location.place), location.number, *offset]


def location_from_json(data: Sequence[Any]) -> Location:
    """The inverse of `location_to_json`."""
    place, number, *offset = data
    return Location(Place(place), int(number), *map(int, offset))


def optional_to_json(location: Location | None) -> list[Any] | None:
    """A place, or None."""
    return None if location is None else location_to_json(location)


def optional_from_json(data: Sequence[Any] | None) -> Location | None:
    """The inverse of `optional_to_json`."""
    return None if data is None else location_from_json(data)


def guards_to_json(guards: Sequence[Condition]) -> dict[str, Any]:
    """Nothing for a step that always runs."""
    if not guards:
        return {}
    return {"guards": [[location_to_json(guard.place), guard.taken] for guard in guards]}


def guards_from_json(data: Mapping[str, Any]) -> tuple[Condition, ...]:
    """The guards of a step that was `guards_to_json`."""
    return tuple(
        Condition(location_from_json(place), bool(taken)) for place, taken in data.get("guards", ())
    )


def open_sizes_to_json(step: FunctionStep) -> dict[str, Any]:
    """What a function's call knows of dynamic shape; nothing of one without."""
    if not step.axes:
        return {}
    return {
        "axes": step.axes,
        "sizes": optional_to_json(step.sizes),
        "workspace": step.workspace,
    }


def open_sizes_from_json(
    data: Mapping[str, Any],
) -> tuple[tuple[OpenAxes | None, ...], Location | None, int | None]:
    """The inverse of `open_sizes_to_json`."""
    axes = tuple(None if item is None else _axes(item) for item in data.get("axes", ()))
    workspace = data.get("workspace")
    return axes, optional_from_json(data.get("sizes")), workspace and int(workspace)


def _axes(data: Sequence[Any]) -> OpenAxes:
    return tuple(tuple((int(true), int(extent)) for true, extent in axis) for axis in data)


_Json = dict[str, Any]


def loop_to_json(step: LoopStep | AgainStep) -> _Json:
    """A step as JSON values."""
    if isinstance(step, LoopStep):
        return {
            "loop": step.loop,
            "limit": optional_to_json(step.limit),
            "first": optional_to_json(step.first),
            "most": step.most,
            "index": optional_to_json(step.index),
            "initial": [_copy_to_json(copy) for copy in step.initial],
            **guards_to_json(step.guards),
        }
    return {
        "loop": step.loop,
        "again": optional_to_json(step.again),
        "rows": [[*_copy_to_json(row), row.backward] for row in step.rows],
        "following": [_copy_to_json(copy) for copy in step.following],
        "count": optional_to_json(step.count),
        "going": optional_to_json(step.going),
    }


def loop_from_json(data: Mapping[str, Any]) -> LoopStep | AgainStep:
    """The inverse of `loop_to_json`."""
    if "most" in data:
        return LoopStep(
            int(data["loop"]),
            optional_from_json(data["limit"]),
            optional_from_json(data["first"]),
            int(data["most"]),
            optional_from_json(data["index"]),
            tuple(map(_copy_from_json, data["initial"])),
            guards_from_json(data),
        )
    return AgainStep(
        int(data["loop"]),
        optional_from_json(data["again"]),
        tuple(map(_row_from_json, data["rows"])),
        tuple(map(_copy_from_json, data["following"])),
        optional_from_json(data["count"]),
        optional_from_json(data["going"]),
    )


def _copy_to_json(copy: CopyStep | RowStep) -> list[Any]:
    return [location_to_json(copy.source), location_to_json(copy.destination), copy.bytes]


def _copy_from_json(data: Any) -> CopyStep:
    source, destination, bytes = data
    return CopyStep(location_from_json(source), location_from_json(destination), int(bytes))


def _row_from_json(data: Any) -> RowStep:
    source, destination, bytes, backward = data
    places = location_from_json(source), location_from_json(destination)
    return RowStep(*places, int(bytes), bool(backward))


Json = dict[str, Any]

_MOST_PADDED = 256
"""Times the bytes of a part that another one has which is made of it: dimensions are split by at
most the numbers of some vectors."""


@frozen
class Repacking:
    """How a constant is made of another part of the file, `source`: the same numbers, of so many
    bytes each, in another packing.

    With `winograd` m they are filters in f32, of which F(m, 3) has others.
    """

    source: int
    itemsize: int
    before: Packing
    after: Packing
    winograd: int = 0


@frozen
class Part:
    """A stretch of an artifact: `offset` is in bytes from the start of its data.

    With `repacking` the file does not hold it, and it has no offset: it is made of another part.
    Large constants have a CRC-32, which takes less than half of the SHA-256's time to check.
    """

    offset: int
    bytes: int
    sha256: str
    repacking: Repacking | None = None
    crc32: int | None = None


def manifest_to_json(spec: ExecutableSpec, parts: Sequence[int]) -> Json:
    """What an artifact says of one variant of its model, an executable.

    `parts` are the numbers of its parts in the file: entry, objects, constants, in that order.
    """
    guards = {"guards": [guard.to_json() for guard in spec.guards]} if spec.guards else {}
    sized = spec.signature
    signature = {} if sized.is_fixed else {"signature": signature_to_json(sized)}
    return {
        **guards,
        **signature,
        "name": spec.name,
        "compiler_version": VERSION,
        "llvm_version": llvm_version(),
        "target": spec.target.to_json(),
        "threads": spec.threads,
        "inputs": [_port_to_json(name, type) for name, type in spec.inputs],
        "outputs": [_port_to_json(name, type) for name, type in spec.outputs],
        "arena_bytes": spec.arena_bytes,
        "arena_lower_bound": spec.arena_lower_bound,
        "steps": [_step_to_json(step) for step in spec.steps],
        "kernels": [asdict(report) for report in spec.kernels],
        "object_symbols": [part.symbol for part in spec.objects],
        "constant_types": [
            [str(DType.from_numpy(array.dtype)), list(array.shape)] for array in spec.constants
        ],
        "parts": list(parts),
        "fallback": spec.fallback,
        "numerics": spec.numerics,
        **_denormals_to_json(spec.denormals),
        **_structure_to_json(spec.structure),
        **metadata_to_json(spec.metadata),
        **_functions_to_json(spec.functions),
        "operands": [list(map(_type_to_json, types)) for types in spec.operands],
        **({"in_place": list(map(list, spec.in_place))} if spec.in_place else {}),
        **({"machine": spec.machine} if spec.machine else {}),
    }


def spec_from_json(
    data: Mapping[str, Any], parts: Sequence[Array], digests: Sequence[str]
) -> ExecutableSpec:
    """The executable that a manifest describes; `parts` are the bytes of its parts in order.

    `digests` are those of its parts after the entry. Raises `KeyError`, `TypeError`, `ValueError`,
    `AttributeError` or `ShapeError` for other JSON, and for parts of other sizes or too few.
    """
    entry, *others = parts
    symbols, types = data["object_symbols"], [_type_from_json(t) for t in data["constant_types"]]
    objects, constants = others[: len(symbols)], others[len(symbols) :]
    inputs, outputs = (tuple(map(_port_from_json, data[kind])) for kind in ("inputs", "outputs"))
    return ExecutableSpec(
        name=data["name"],
        target=Target.from_json(data["target"]),
        threads=int(data["threads"]),
        inputs=inputs,
        outputs=outputs,
        arena_bytes=int(data["arena_bytes"]),
        arena_lower_bound=int(data["arena_lower_bound"]),
        steps=tuple(_step_from_json(step) for step in data["steps"]),
        constants=tuple(
            content.view(type.dtype.numpy).reshape(type.shape)
            for type, content in zip(types, constants, strict=True)
        ),
        kernels=tuple(KernelReport.from_json(report) for report in data["kernels"]),
        objects=tuple(
            ObjectPart(symbol, content.tobytes())
            for symbol, content in zip(symbols, objects, strict=True)
        ),
        digests=tuple(digests),
        entry=entry.tobytes(),
        fallback=bool(data["fallback"]),
        numerics=str(data.get("numerics", "default")),
        denormals=denormals_of(str(data.get("denormals", KEEP))),
        structure=structure_from_json(data.get("structure")),
        metadata=metadata_from_json(data),
        guards=tuple(SizeGuard.from_json(guard) for guard in data.get("guards", ())),
        signature=(
            signature_from_json(data["signature"])
            if "signature" in data
            else fixed_signature(inputs, outputs)
        ),
        functions=tuple(FunctionLink(**link) for link in data.get("functions", ())),
        operands=tuple(tuple(map(_type_from_json, types)) for types in data.get("operands", ())),
        in_place=tuple((str(name), str(of)) for name, of in data.get("in_place", ())),
        machine=str(data.get("machine", "")),
    )


def parts_to_json(parts: Sequence[Part]) -> list[list[Any]]:
    """The parts as JSON values."""
    return [
        [
            part.offset,
            part.bytes,
            part.sha256,
            *_repacking_to_json(part.repacking),
            *(() if part.crc32 is None else (part.crc32,)),
        ]
        for part in parts
    ]


def parts_from_json(data: Sequence[Any]) -> tuple[Part, ...]:
    """The inverse of `parts_to_json`; `TypeError` or `ValueError` on other JSON."""
    parts: list[Part] = []
    for offset, size, sha256, *rest in data:
        if (type(offset), type(size), type(sha256)) != (int, int, str):
            raise TypeError("a part is an offset, a number of bytes and a SHA-256")
        if rest and type(rest[0]) is int:
            parts.append(Part(offset, size, sha256, None, _natural(*rest)))
            continue
        repacking = _repacking_from_json(*rest) if rest else None
        part = Part(offset, size, sha256, repacking)
        if repacking is not None and (problem := _repacking_problem(part, repacking, parts)):
            raise ValueError(problem)
        parts.append(part)
    return tuple(parts)


def _repacking_to_json(repacking: Repacking | None) -> list[Any]:
    """Nothing for a part that the file holds."""
    if repacking is None:
        return []
    packings = (repacking.before, repacking.after)
    texts = [[list(p.shape), list(map(list, p.splits)), list(p.order)] for p in packings]
    winograd = [repacking.winograd] if repacking.winograd else []
    return [[repacking.source, repacking.itemsize, *texts, *winograd]]


def _repacking_from_json(data: Sequence[Any]) -> Repacking:
    source, itemsize, *texts = data
    winograd = map(_natural, texts[2:])
    before, after = (
        Packing(
            tuple(map(_natural, shape)),
            tuple((_natural(axis), _natural(factor)) for axis, factor in splits),
            tuple(map(_natural, order)),
        )
        for shape, splits, order in texts[:2]
    )
    return Repacking(_natural(source), _natural(itemsize), before, after, *winograd)


def _natural(value: object) -> int:
    if type(value) is not int or value < 0:
        raise TypeError("a repacking and a CRC-32 are made of natural numbers")
    return value


def _repacking_problem(part: Part, repacking: Repacking, before: Sequence[Part]) -> str:
    """Why a part cannot be made so of one of those before it, or nothing."""
    if part.offset:
        return "a part that the file does not hold has no place in it"
    if repacking.source >= len(before) or before[repacking.source].repacking is not None:
        return "a part is made of one that the file does not hold"
    sizes = before[repacking.source].bytes, part.bytes
    for size, packing in zip(sizes, (repacking.before, repacking.after), strict=True):
        extents = packed_extents(packing)
        if extents is None or math.prod(extents) * repacking.itemsize != size:
            return "a packing is none of a part of that size"
    if part.bytes > _MOST_PADDED * before[repacking.source].bytes:
        return "a packing is mostly padding"
    if repacking.winograd:
        return _filter_problem(repacking)
    if math.prod(repacking.before.shape) != math.prod(repacking.after.shape):
        return "two packings are of other numbers"
    return ""


def _filter_problem(repacking: Repacking) -> str:
    """Why filters cannot be transformed so, or nothing."""
    m, shape = repacking.winograd, repacking.before.shape
    if m not in FILTERS or shape[2:] != (3, 3) or repacking.itemsize != FILTER_DTYPE.itemsize:
        return "what is transformed are no filters"
    if repacking.after.shape != transformed_shape(shape, m):
        return "transformed filters have another shape"
    return ""


def packed_extents(packing: Packing) -> tuple[int, ...] | None:
    """The shape in memory, None where the splits are of other axes, or the order is none."""
    factors, rank = dict(packing.splits), len(packing.shape)
    if len(factors) != len(packing.splits) or not set(factors) <= set(range(rank)):
        return None
    if 0 in factors.values() or sorted(packing.order) != list(range(rank + len(factors))):
        return None
    return packing.packed_shape


def _type_to_json(type: TensorType) -> list[Any]:
    return [str(type.dtype), list(type.shape)]


def _type_from_json(data: Sequence[Any]) -> TensorType:
    dtype, shape = data
    return TensorType(DType(dtype), tuple(int(extent) for extent in shape))


def _port_to_json(name: str, type: TensorType) -> list[Any]:
    return [name, *_type_to_json(type)]


def _port_from_json(data: Sequence[Any]) -> tuple[str, TensorType]:
    name, *type = data
    return str(name), _type_from_json(type)


def _denormals_to_json(denormals: Denormals) -> Json:
    """Nothing where they are kept: such a file is what it was before they could be flushed."""
    return {} if denormals == KEEP else {"denormals": denormals}


def _structure_to_json(structure: Structure) -> Json:
    """Nothing for a model of plain tensors."""
    return {} if structure == NO_STRUCTURE else {"structure": asdict(structure)}


def _functions_to_json(functions: Sequence[FunctionLink]) -> Json:
    """Nothing of a model without any: its file is what it was before there were functions."""
    return {"functions": [asdict(link) for link in functions]} if functions else {}


def _step_to_json(step: RunStep) -> Json:
    if isinstance(step, FunctionStep):
        return {
            "function": step.function,
            "buffers": [optional_to_json(b) for b in step.buffers],
            "types": [type and _type_to_json(type) for type in step.types],
            "outputs": step.outputs,
            "arguments": step.arguments,
            "node": step.node,
            **guards_to_json(step.guards),
            **open_sizes_to_json(step),
        }
    if isinstance(step, CallStep):
        return {
            "call": step.symbol,
            "buffers": [location_to_json(buffer) for buffer in step.buffers],
            "workspace": step.workspace,
            **guards_to_json(step.guards),
        }
    if isinstance(step, LoopStep | AgainStep):
        return loop_to_json(step)
    return {
        "copy": location_to_json(step.source),
        "to": location_to_json(step.destination),
        "bytes": step.bytes,
    }


def _step_from_json(data: Mapping[str, Any]) -> RunStep:
    if "function" in data:
        return FunctionStep(
            int(data["function"]),
            tuple(map(optional_from_json, data["buffers"])),
            tuple(type if type is None else _type_from_json(type) for type in data["types"]),
            int(data["outputs"]),
            str(data["arguments"]),
            str(data["node"]),
            guards_from_json(data),
            *open_sizes_from_json(data),
        )
    if "loop" in data:
        return loop_from_json(data)
    if "call" in data:
        buffers = tuple(location_from_json(buffer) for buffer in data["buffers"])
        return CallStep(data["call"], buffers, data["workspace"], guards_from_json(data))
    return CopyStep(
        location_from_json(data["copy"]), location_from_json(data["to"]), int(data["bytes"])
    )
