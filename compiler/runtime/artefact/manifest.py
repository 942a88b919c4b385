"""Manifest: what an executable is, besides its code and constants, as JSON, and back."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import MISSING, asdict, fields, is_dataclass
from functools import cache
from typing import Any, get_args, get_origin, get_type_hints

from tunefarm.compiler.runtime.spec.executable_spec import (
    AgainStep,
    CallStep,
    CopyStep,
    ExecutableSpec,
    FunctionLink,
    FunctionStep,
    Location,
    LoopStep,
    ObjectPart,
    RunStep,
)
from tunefarm.compiler.runtime.spec.guards import SizeGuard
from tunefarm.compiler.runtime.spec.kernel_report import KernelReport
from tunefarm.compiler.target import Target, llvm_version
from tunefarm.compiler.types.dtypes import DType
from tunefarm.compiler.types.frozen import frozen
from tunefarm.compiler.types.metadata import metadata_from_json, metadata_to_json
from tunefarm.compiler.types.numerics import KEEP, Denormals, denormals_of
from tunefarm.compiler.types.packing import Packing
from tunefarm.compiler.types.signature import fixed_signature
from tunefarm.compiler.types.signature_json import signature_from_json, signature_to_json
from tunefarm.compiler.types.structure import NO_STRUCTURE, Structure, structure_from_json
from tunefarm.compiler.types.tensor_type import Array, TensorType
from tunefarm.compiler.types.winograd_filter import FILTER_DTYPE, FILTERS, transformed_shape
from tunefarm.compiler.version import VERSION

# Steps, with the places in memory that they name, as JSON values and back.
#
# A step is an object of its fields, without those that have their defaults; what it is made of are
# lists: ["arena", 64] of a place, [source, destination, bytes] of a copy.

_KINDS: Mapping[str, type[RunStep]] = {
    "function": FunctionStep,
    "call": CallStep,
    "most": LoopStep,
    "again": AgainStep,
    "copy": CopyStep,
}
"""The kinds of steps, by a key that no other one has."""
_KEYS: Mapping[str, str] = {"symbol": "call", "source": "copy", "destination": "to"}
"""The keys of fields that have other names."""


def step_to_json(step: RunStep) -> dict[str, Any]:
    """A step as JSON values."""
    names = {field.name: field.default for field in fields(step)}
    values = ((name, getattr(step, name), default) for name, default in names.items())
    return {
        _KEYS.get(name, name): _part_to_json(value)
        for name, value, default in values
        if default is MISSING or value != default
    }


def step_from_json(data: Mapping[str, Any]) -> RunStep:
    """The inverse of `step_to_json`."""
    kind: Any = next((kind for key, kind in _KINDS.items() if key in data), None)
    if kind is None:
        raise KeyError("a step of no kind")
    found = {name: read(data[key]) for key, name, read in _fields(kind) if key in data}
    step: RunStep = kind(**found)
    return step


def _part_to_json(value: Any) -> Any:
    if isinstance(value, tuple):
        return list(map(_part_to_json, value))
    if isinstance(value, TensorType):
        return _type_to_json(value)
    if isinstance(value, Location):
        return [str(value.place), value.number, *([value.offset] if value.offset else [])]
    if not is_dataclass(value):
        return value
    return [_part_to_json(getattr(value, field.name)) for field in fields(value)]


@cache
def _fields(kind: type[Any]) -> list[tuple[str, str, Callable[[Any], Any]]]:
    """The fields of a dataclass: their keys, names, and what reads them."""
    types = get_type_hints(kind)
    return [(_KEYS.get(f.name, f.name), f.name, _reader(types[f.name])) for f in fields(kind)]


def _reader(kind: Any) -> Callable[[Any], Any]:
    """What reads a value of a field's type."""
    origin, inner = get_origin(kind), get_args(kind)
    if origin is tuple and inner[-1] is Ellipsis:
        one = _reader(inner[0])
        return lambda data: tuple(map(one, data))
    if origin is tuple:
        each = [_reader(part) for part in inner]
        return lambda data: tuple(read(item) for read, item in zip(each, data, strict=True))
    if origin is not None:
        some = _reader(inner[0])  # or None
        return lambda data: None if data is None else some(data)
    if kind is TensorType:
        return _type_from_json
    read: Callable[[Any], Any] = kind
    return _listed(kind) if is_dataclass(kind) else read


def _listed(kind: Any) -> Callable[[Any], Any]:
    """What reads a dataclass from the list of its fields."""
    parts = [read for _, _, read in _fields(kind)]

    def listed(data: Sequence[Any]) -> Any:
        if len(data) > len(parts):
            raise ValueError(f"{data} is no {kind.__name__}")
        return kind(*(read(item) for read, item in zip(parts, data, strict=False)))

    return listed


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
        "steps": [step_to_json(step) for step in spec.steps],
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
        steps=tuple(step_from_json(step) for step in data["steps"]),
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
