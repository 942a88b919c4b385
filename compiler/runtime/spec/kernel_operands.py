"""What calls of each kernel hand over: what is bound to it, and what is left for its caller."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from tunefarm.compiler.runtime.spec.executable_spec import CallStep, ExecutableSpec, Place
from tunefarm.compiler.types.tensor_type import TensorType

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
