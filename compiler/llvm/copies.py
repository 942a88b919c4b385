"""Loops that copy adjacent elements, which one call of memmove does.

Beyond what first-level caches hold, the C library copies with instructions of the CPU's own that do
not read what they overwrite: a third of the traffic.
"""

from __future__ import annotations

from dataclasses import dataclass

from tunefarm.compiler.expr.affine import Affine, Ranges, affine, decide
from tunefarm.compiler.expr.nodes import Expr, Load, Select
from tunefarm.compiler.llvm.addresses import Addresses
from tunefarm.compiler.llvm.writer import FunctionWriter
from tunefarm.compiler.loops.ir import For, LoopKind, Store

LEAST_BYTES = 32 * 1024  # below, a call costs more than it saves


@dataclass(frozen=True, slots=True)
class Copy:
    """Adjacent elements of one buffer that go to another, from the forms' values on."""

    source: str
    target: str
    read: Affine
    written: Affine
    bytes: int


def copy_of(loop: For, addresses: Addresses) -> Copy | None:
    """What the serial loop copies as a whole; None where it does anything else, or too little."""
    loops = [loop]
    while len(loops[-1].body) == 1 and isinstance(loops[-1].body[0], For):
        loops.append(loops[-1].body[0])
    (statement, *others) = loops[-1].body
    if others or not isinstance(statement, Store) or not all(i.is_whole for i in loops):
        return None
    memory = addresses.storages[statement.buffer].memory
    count = 1
    for inner in loops:
        count *= inner.stop - inner.start
    if count * memory.dtype.bytes < LEAST_BYTES:
        return None
    ranges = {**addresses.ranges, **{i.variable: (i.start, i.stop - 1) for i in loops}}
    load = _chosen(statement.value, ranges)
    if not isinstance(load, Load) or any(i.kind is LoopKind.PARALLEL for i in loops):
        return None
    written = _start(statement.buffer, statement.indices, loops, addresses, ranges)
    read = _start(load.buffer, load.indices, loops, addresses, ranges)
    if written is None or read is None:
        return None
    return Copy(load.buffer, statement.buffer, read, written, count * memory.dtype.bytes)


def emit_copy(writer: FunctionWriter, addresses: Addresses, copy: Copy) -> None:
    """The call; buffers may be one, as where a kernel works in place."""
    addresses.written(copy.target)
    to = addresses.pointer(copy.target, copy.written)
    source = addresses.pointer(copy.source, copy.read)
    operands = [f"ptr {to}", f"ptr {source}", f"i64 {copy.bytes}", "i1 false"]
    writer.call("llvm.memmove.p0.p0.i64", operands)


def _chosen(value: Expr, ranges: Ranges) -> Expr:
    """The side that selects by position take everywhere in the loops."""
    while isinstance(value, Select):
        verdict = decide(value.condition, ranges)
        if verdict is None:
            return value
        value = value.then if verdict else value.otherwise
    return value


def _start(
    buffer: str,
    indices: tuple[Expr, ...],
    loops: list[For],
    addresses: Addresses,
    ranges: Ranges,
) -> Affine | None:
    """Where the loops begin in a buffer whose elements they walk one after the other."""
    form, stride = Affine(0, ()), 1
    shape = addresses.storages[buffer].memory.shape
    for extent, item in zip(reversed(shape), reversed(indices), strict=True):
        form = form.plus(affine(item, ranges), stride)
        stride *= extent
    if form.divisions:
        return None
    step = 1
    for loop in reversed(loops):
        if loop.stop - loop.start == 1:
            continue
        if form.coefficient(loop.variable) != step:
            return None
        form = form.plus(Affine(-loop.start, ((loop.variable, 1),)), -step)
        step *= loop.stop - loop.start
    return form
