"""Manifest: an executable's description as JSON, and back."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import compiler
from compiler.runtime.executable_spec import (
    CallStep,
    CopyStep,
    ExecutableSpec,
    Location,
    Place,
    RunStep,
)
from compiler.runtime.kernel_report import KernelReport
from compiler.target import Target, llvm_version
from compiler.types.dtypes import DType
from compiler.types.tensor_type import TensorType

Json = dict[str, Any]


@dataclass(frozen=True, slots=True)
class Part:
    """A stretch of an artefact: `offset` is in bytes from the start of its data."""

    offset: int
    bytes: int
    sha256: str


@dataclass(frozen=True, slots=True)
class Manifest:
    """What an artefact says of one variant of its model.

    `parts` are the numbers of its parts in the file: entry, objects, constants, in that order.
    `object_symbols` and `constant_types` say what the parts after the entry are.
    """

    name: str
    compiler_version: str
    llvm_version: str
    target: Target
    threads: int
    inputs: tuple[tuple[str, TensorType], ...]
    outputs: tuple[tuple[str, TensorType], ...]
    arena_bytes: int
    arena_lower_bound: int
    steps: tuple[RunStep, ...]
    kernels: tuple[KernelReport, ...]
    object_symbols: tuple[str, ...]
    constant_types: tuple[TensorType, ...]
    parts: tuple[int, ...]
    fallback: bool


def manifest_of(spec: ExecutableSpec, parts: Sequence[int]) -> Manifest:
    """The manifest of an executable whose parts have these numbers."""
    return Manifest(
        name=spec.name,
        compiler_version=compiler.VERSION,
        llvm_version=llvm_version(),
        target=spec.target,
        threads=spec.threads,
        inputs=spec.inputs,
        outputs=spec.outputs,
        arena_bytes=spec.arena_bytes,
        arena_lower_bound=spec.arena_lower_bound,
        steps=spec.steps,
        kernels=spec.kernels,
        object_symbols=tuple(part.symbol for part in spec.objects),
        constant_types=tuple(
            TensorType(DType.from_numpy(array.dtype), array.shape) for array in spec.constants
        ),
        parts=tuple(parts),
        fallback=spec.fallback,
    )


def manifest_to_json(manifest: Manifest) -> Json:
    """The manifest as JSON values."""
    return {
        "name": manifest.name,
        "compiler_version": manifest.compiler_version,
        "llvm_version": manifest.llvm_version,
        "target": manifest.target.to_json(),
        "threads": manifest.threads,
        "inputs": [_port_to_json(name, type) for name, type in manifest.inputs],
        "outputs": [_port_to_json(name, type) for name, type in manifest.outputs],
        "arena_bytes": manifest.arena_bytes,
        "arena_lower_bound": manifest.arena_lower_bound,
        "steps": [_step_to_json(step) for step in manifest.steps],
        "kernels": [asdict(report) for report in manifest.kernels],
        "object_symbols": list(manifest.object_symbols),
        "constant_types": [_type_to_json(type) for type in manifest.constant_types],
        "parts": list(manifest.parts),
        "fallback": manifest.fallback,
    }


def manifest_from_json(data: Mapping[str, Any]) -> Manifest:
    """The inverse of `manifest_to_json`; `KeyError`, `TypeError` or `ValueError` on other JSON."""
    return Manifest(
        name=data["name"],
        compiler_version=data["compiler_version"],
        llvm_version=data["llvm_version"],
        target=Target.from_json(data["target"]),
        threads=int(data["threads"]),
        inputs=tuple(_port_from_json(port) for port in data["inputs"]),
        outputs=tuple(_port_from_json(port) for port in data["outputs"]),
        arena_bytes=int(data["arena_bytes"]),
        arena_lower_bound=int(data["arena_lower_bound"]),
        steps=tuple(_step_from_json(step) for step in data["steps"]),
        kernels=tuple(KernelReport.from_json(report) for report in data["kernels"]),
        object_symbols=tuple(data["object_symbols"]),
        constant_types=tuple(_type_from_json(type) for type in data["constant_types"]),
        parts=tuple(int(number) for number in data["parts"]),
        fallback=bool(data["fallback"]),
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


def _location_to_json(location: Location) -> list[Any]:
    return [str(location.place), location.number]


def _location_from_json(data: Sequence[Any]) -> Location:
    place, number = data
    return Location(Place(place), int(number))


def _step_to_json(step: RunStep) -> Json:
    if isinstance(step, CallStep):
        return {
            "call": step.symbol,
            "buffers": [_location_to_json(buffer) for buffer in step.buffers],
            "workspace": step.workspace,
        }
    return {
        "copy": _location_to_json(step.source),
        "to": _location_to_json(step.destination),
        "bytes": step.bytes,
    }


def _step_from_json(data: Mapping[str, Any]) -> RunStep:
    if "call" in data:
        buffers = tuple(_location_from_json(buffer) for buffer in data["buffers"])
        return CallStep(data["call"], buffers, data["workspace"])
    return CopyStep(
        _location_from_json(data["copy"]), _location_from_json(data["to"]), int(data["bytes"])
    )
