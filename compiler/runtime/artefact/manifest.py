"""Manifest: what an executable is, besides its code and constants, as JSON, and back."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from tunefarm.compiler.runtime.spec.executable_spec import (
    AgainStep,
    CallStep,
    CopyStep,
    ExecutableSpec,
    FunctionLink,
    FunctionStep,
    LoopStep,
    ObjectPart,
    RunStep,
)
from tunefarm.compiler.runtime.spec.guards import SizeGuard
from tunefarm.compiler.runtime.spec.kernel_report import KernelReport
from tunefarm.compiler.runtime.spec.step_json import (
    guards_from_json,
    guards_to_json,
    location_from_json,
    location_to_json,
    loop_from_json,
    loop_to_json,
    open_sizes_from_json,
    open_sizes_to_json,
    optional_from_json,
    optional_to_json,
)
from tunefarm.compiler.target import Target, llvm_version
from tunefarm.compiler.types.dtypes import DType
from tunefarm.compiler.types.metadata import metadata_from_json, metadata_to_json
from tunefarm.compiler.types.numerics import KEEP, Denormals, denormals_of
from tunefarm.compiler.types.signature import fixed_signature
from tunefarm.compiler.types.signature_json import signature_from_json, signature_to_json
from tunefarm.compiler.types.structure import NO_STRUCTURE, Structure, structure_from_json
from tunefarm.compiler.types.tensor_type import Array, TensorType
from tunefarm.compiler.version import VERSION

Json = dict[str, Any]


@dataclass(frozen=True, slots=True)
class Part:
    """A stretch of an artifact: `offset` is in bytes from the start of its data."""

    offset: int
    bytes: int
    sha256: str


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
    )


def parts_to_json(parts: Sequence[Part]) -> list[list[Any]]:
    """The parts as JSON values."""
    return [[part.offset, part.bytes, part.sha256] for part in parts]


def parts_from_json(data: Sequence[Any]) -> tuple[Part, ...]:
    """The inverse of `parts_to_json`; `TypeError` or `ValueError` on other JSON."""
    parts = []
    for offset, size, sha256 in data:
        if (type(offset), type(size), type(sha256)) != (int, int, str):
            raise TypeError("a part is an offset, a number of bytes and a SHA-256")
        parts.append(Part(offset, size, sha256))
    return tuple(parts)


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
