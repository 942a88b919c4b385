"""Pass: kernels that differ only in how far they fill their padding become one kernel.

    a = conv(x, w)        needed to its sizes                     a = conv_fill(x, w)
    b = conv_fill(y, v)   needed, and 0, one row further    ->    b = conv_fill(y, v)

Equal layers then share one kernel, which is compiled and tuned once, even where only some of their
readers have windows that reach into the padding. Filling one row more costs next to nothing.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace

from tunefarm.compiler.expr.nodes import Const, Expr, Load, Select, index
from tunefarm.compiler.kernels.kept_inputs import inputs_kept
from tunefarm.compiler.kernels.kernel import (
    Call,
    FusedKernel,
    KernelCall,
    KernelProgram,
    ValidExtent,
)
from tunefarm.compiler.kernels.stage import Stage
from tunefarm.compiler.kernels.workload_key import workload_key
from tunefarm.compiler.loops.size_conditions import size_condition
from tunefarm.compiler.types.signature import SIZES

_ANY = "%result"
"""The name of the last stage, whether it fills or not."""


@dataclass(frozen=True, slots=True)
class _Filled:
    """A kernel's key; what it fills its result with, and the limits from which on; its limits."""

    key: str
    value: Const | None
    fills: frozenset[ValidExtent]
    limits: tuple[ValidExtent, ...]

    @property
    def rank(self) -> tuple[int, int, str]:
        """What is less for a kernel that another one replaces."""
        return len(self.fills), sum(limit.offset for limit in self.limits), self.key

    def serves(self, other: _Filled) -> bool:
        """Whether all that is needed of the other kernel's result is the same of this one's."""
        ends = {replace(limit, offset=0) for limit in other.limits if limit.offset <= 0}
        return (
            (other.value is None or self.value == other.value)
            and other.fills <= self.fills
            and self.fills - other.fills <= ends
            and all(a.offset >= b.offset for a, b in zip(self.limits, other.limits, strict=True))
        )


def share_filled(program: KernelProgram) -> KernelProgram:
    """The program whose kernels, which have their limits, are those that fill the most."""
    if SIZES not in program.types:
        return program
    kernels = {call.key: call.kernel for call in program.calls if isinstance(call, KernelCall)}
    alike: dict[tuple[object, ...], list[str]] = {}
    for key, kernel in kernels.items():
        if kernel.limits and not inputs_kept(kernel):  # a cache is not written for padding
            alike.setdefault((kernel.inputs, kernel.output.shape), []).append(key)
    chosen: dict[str, str] = {}
    for keys in alike.values():
        if len(keys) > 1:
            chosen |= _chosen({key: kernels[key] for key in keys})
    return replace(program, calls=tuple(_of(call, chosen, kernels) for call in program.calls))


def _chosen(kernels: Mapping[str, FusedKernel]) -> dict[str, str]:
    """By key that of the kernel that takes its place, if one does."""
    by_core: dict[str, list[_Filled]] = {}
    for key, kernel in kernels.items():
        core, filled = _taken_apart(key, kernel)
        by_core.setdefault(core, []).append(filled)
    found = {}
    for group in by_core.values():
        for item in group:
            most = max((other for other in group if other.serves(item)), key=lambda x: x.rank)
            if most.rank > item.rank:
                found[item.key] = most.key
    return found


def _taken_apart(key: str, kernel: FusedKernel) -> tuple[str, _Filled]:
    """The key of the kernel without its fills and the offsets of its limits; and those."""
    last = kernel.output
    body, value, fills = last.body, None, set[ValidExtent]()
    while isinstance(body, Select) and isinstance(body.otherwise, Const):
        fill = _fill(body.condition, kernel)
        if fill is None or value not in (None, body.otherwise):
            break
        fills.add(fill)
        value = body.otherwise
        body = body.then
    *before, made = *kernel.stages[:-1], replace(last, body=body)
    if before and body == _element(before[-1], last):  # a pool is filled by a stage of its own
        made = before.pop()
    core = replace(
        kernel,
        stages=(*before, replace(made, name=_ANY)),
        anchor=_ANY if kernel.anchor in (made.name, last.name) else kernel.anchor,
        limits=tuple(replace(limit, offset=0) for limit in kernel.limits),
    )
    return workload_key(core), _Filled(key, value, frozenset(fills), kernel.limits)


def _element(stage: Stage, last: Stage) -> Expr | None:
    """The element of a stage's result that has the place of one of the last stage's."""
    places = tuple(index(axis.name) for axis in last.axes)
    return Load(stage.dtype, stage.name, places) if stage.shape == last.shape else None


def _fill(condition: Expr, kernel: FusedKernel) -> ValidExtent | None:
    """The limit that a condition on a size is, of an element along an axis of the result."""
    found, axes = size_condition(condition, {}), kernel.output.axes
    for place, axis in enumerate(axes):
        if found and (found.terms, found.constant, found.scale) == (((axis.name, 1),), 0, 1):
            (number,) = found.size.indices
            assert isinstance(number, Const)
            stride = math.prod(other.extent for other in axes[place + 1 :])
            return ValidExtent(stride, axis.extent, found.size.buffer, int(number.value))
    return None


def _of(call: Call, chosen: Mapping[str, str], kernels: Mapping[str, FusedKernel]) -> Call:
    if not isinstance(call, KernelCall) or call.key not in chosen:
        return call
    key = chosen[call.key]
    return replace(call, kernel=kernels[key], key=key)
