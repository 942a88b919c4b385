"""Pass: how far the results of kernels are needed, where sizes are known at run time only.

From the outputs' true sizes backwards: an element of a value is of use where a kernel that matters
reads it. What is left over gets no limit, and is computed up to its bound.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

from compiler.expr.affine import Affine, Ranges, affine, affine_range
from compiler.expr.nodes import Expr, Index, Load, add, index, integer, mul
from compiler.expr.walk import axes_of, transform
from compiler.kernels.kernel import (
    Buffer,
    Call,
    JoinCall,
    KernelCall,
    KernelProgram,
    Limit,
    ViewCall,
)
from compiler.kernels.split_rows import split_rows
from compiler.kernels.workload_key import workload_key
from compiler.loops.ir import Allocate, Body, Dot, For, If, Let, LoopNest, Stmt, Store, Update
from compiler.loops.live_writes import LiveWrites
from compiler.loops.lower_kernel import bounded_loops
from compiler.loops.scheduled_kernel import ScheduledKernel
from compiler.loops.size_conditions import Condition, terms_of
from compiler.types.signature import SIZES, Signature, SizedPort
from compiler.types.sizes import Dimension, Size, bounds_of
from compiler.types.tensor_type import TensorType


@dataclass(frozen=True, slots=True, order=True)
class ValueLimit:
    """As `Limit`, of a value: the size is element `number` of the value `sizes`."""

    stride: int
    extent: int
    sizes: str
    number: int

    @property
    def period(self) -> int:
        return self.stride * self.extent


Needs = dict[str, frozenset[ValueLimit]]


def limit_kernels(
    program: KernelProgram, outputs: Sequence[str], signature: Signature
) -> KernelProgram:
    """The program with limits on its kernels, which get the sizes as an operand.

    `outputs` are the names of the program's outputs in the signature.
    """
    needs = _needs(program, outputs, signature)
    known = {*program.inputs, *program.constants}
    calls: list[Call] = []
    types = dict(program.types)
    for call in program.calls:
        if isinstance(call, KernelCall):
            usable = [limit for limit in sorted(needs.get(call.output, ())) if limit.sizes in known]
            calls += _in_views(types, _limited(program, call, usable))
        else:
            calls.append(call)
        known.add(call.output)
    return replace(program, calls=tuple(calls), types=types)


def _limited(program: KernelProgram, call: KernelCall, limits: Sequence[ValueLimit]) -> KernelCall:
    """The call of the kernel with these limits."""
    if not limits:
        return call
    inputs, buffers = list(call.inputs), list(call.kernel.inputs)
    for name in dict.fromkeys(limit.sizes for limit in limits):
        if name not in inputs:
            type = program.types[name]
            inputs.append(name)
            buffers.append(Buffer(f"in{len(buffers)}", type.dtype, type.shape))
    named = {value: buffer.name for value, buffer in zip(inputs, buffers, strict=True)}
    kernel = replace(
        call.kernel,
        inputs=tuple(buffers),
        limits=tuple(
            Limit(limit.stride, limit.extent, named[limit.sizes], limit.number) for limit in limits
        ),
    )
    joined = {name for item in program.calls if isinstance(item, JoinCall) for name in item.inputs}
    if call.output not in joined:
        kernel = split_rows(kernel)
    return replace(call, kernel=kernel, key=workload_key(kernel), inputs=tuple(inputs))


def _in_views(types: dict[str, TensorType], call: KernelCall) -> list[Call]:
    """The call with views of its operands and of its result, where the kernel has others."""
    before: list[Call] = []
    inputs = []
    for name, buffer in zip(call.inputs, call.kernel.inputs, strict=True):
        if types[name] != buffer.type:
            view = _fresh(types, name, buffer.type)
            before.append(ViewCall(name, view))
            name = view
        inputs.append(name)
    made = TensorType(call.kernel.output.dtype, call.kernel.output.shape)
    if types[call.output] == made:
        return [*before, replace(call, inputs=tuple(inputs))]
    result = _fresh(types, call.output, made)
    made_call = replace(call, inputs=tuple(inputs), output=result)
    return [*before, made_call, ViewCall(result, call.output)]


def _fresh(types: dict[str, TensorType], hint: str, type: TensorType) -> str:
    """A new value of this type."""
    name, count = f"{hint}_rows", 0
    while name in types:
        count += 1
        name = f"{hint}_rows_{count}"
    types[name] = type
    return name


# --- backwards through the calls ----------------------------------------------------------------


def _needs(program: KernelProgram, outputs: Sequence[str], signature: Signature) -> Needs:
    """By value how far it is needed; what is not there is read by nobody."""
    reads: dict[str, list[_Read]] = {}
    needs: Needs = {}
    sizes = signature.sizes

    def add_read(name: str, read: _Read) -> None:
        reads.setdefault(name, []).append(read)

    ports = {port.name: port for port in signature.outputs}
    for value, name in zip(program.outputs, outputs, strict=True):
        limits = _port_limits(ports[name], signature) if name in ports else frozenset()
        add_read(value, _Read(limits))
    seen: dict[tuple[str, frozenset[ValueLimit], tuple[str, ...]], list[tuple[str, _Read]]] = {}
    for call in reversed(program.calls):
        own = needs[call.output] = _common(reads.get(call.output, []), sizes)
        match call:
            case ViewCall(input=source, offset=offset):
                size, whole = program.types[call.output].size, program.types[source].size
                begin = offset // program.types[source].dtype.bytes
                kept = frozenset(limit for limit in own if _fits(limit, begin, size, whole))
                add_read(source, _Read(kept))
            case JoinCall(inputs=sources):
                begin, whole = 0, program.types[call.output].size
                for source in sources:
                    size = program.types[source].size
                    kept = frozenset(limit for limit in own if _fits(limit, begin, whole, size))
                    add_read(source, _Read(kept))
                    begin += size
            case KernelCall():
                key = (call.key, own, call.inputs)
                if key not in seen:
                    seen[key] = _reads_of(call, own)
                for value, read in seen[key]:
                    add_read(value, read)
    return needs


@dataclass(frozen=True, slots=True)
class _Read:
    """A reader of a value, and how far it needs it; `place` is which elements, where that helps."""

    limits: frozenset[ValueLimit]
    place: Affine | None = None
    ranges: Ranges | None = None

    def keeps(self, limit: ValueLimit, least: int) -> bool:
        """It reads nothing beyond the limit, whose size is no less than `least`."""
        if limit in self.limits:
            return True
        if self.place is None or self.ranges is None:
            return False
        terms = tuple((atom, c) for atom, c in self.place.terms if c % limit.period)
        form = Affine(self.place.constant % limit.period, terms)
        low, high = affine_range(form, self.ranges)
        return low >= 0 and high < min(limit.period, limit.stride * least)


def _common(reads: Sequence[_Read], sizes: Sequence[Dimension]) -> frozenset[ValueLimit]:
    """The limits that all readers keep."""
    found: frozenset[ValueLimit] = frozenset().union(*(read.limits for read in reads))

    def least(limit: ValueLimit) -> int:
        return bounds_of(sizes[limit.number])[0] if limit.sizes == SIZES else 0

    return frozenset(x for x in found if all(read.keeps(x, least(x)) for read in reads))


def _fits(limit: ValueLimit, begin: int, *sizes: int) -> bool:
    """The limit says the same of memory that starts at another element."""
    return not any(number % limit.period for number in (begin, *sizes))


def _port_limits(port: SizedPort, signature: Signature) -> frozenset[ValueLimit]:
    found = set()
    stride = 1
    for factors in reversed(port.padded):
        for true, extent in reversed(factors):
            if isinstance(true, Size) and true in signature.sizes:
                number = signature.sizes.index(true)
                found.add(ValueLimit(stride, extent, SIZES, number))
            stride *= extent
    return frozenset(found)


# --- through a kernel ---------------------------------------------------------------------------


def _reads_of(call: KernelCall, own: frozenset[ValueLimit]) -> list[tuple[str, _Read]]:
    """How far a call needs its inputs, by value, where its result is needed so far."""
    sizes = {limit.sizes: f"{limit.sizes}?" for limit in own}
    named = [Limit(x.stride, x.extent, sizes[x.sizes], x.number) for x in sorted(own)]
    kernel = replace(split_rows(replace(call.kernel, limits=tuple(named))), limits=())
    nest = _split_loops(bounded_loops(ScheduledKernel.of(kernel)), named)
    nest = replace(nest, body=LiveWrites(nest, named).guarded_body(nest.body))
    live = LiveWrites(nest, named)
    values = dict(zip((item.name for item in kernel.inputs), call.inputs, strict=True))
    values |= {text: name for name, text in sizes.items()}
    found = []
    for buffer, value in zip(kernel.inputs, call.inputs, strict=True):
        for load, conditions, ranges in live.reads_of_input(buffer.name):
            place = _place(buffer, load, ranges)
            limits = frozenset(_limits(buffer, load, conditions, ranges, values))
            known = terms_of(place) is not None
            found.append((value, _Read(limits, place, ranges) if known else _Read(limits)))
    return found


def _place(buffer: Buffer, load: Load, ranges: Ranges) -> Affine:
    """The number of the element that is read, in row-major order."""
    place, step = Affine(0, ()), 1
    for extent, item in zip(reversed(buffer.shape), reversed(load.indices), strict=True):
        place = place.plus(affine(item, ranges), step)
        step *= extent
    return place


def _limits(
    buffer: Buffer,
    load: Load,
    conditions: Sequence[Condition],
    ranges: Ranges,
    values: Mapping[str, str],
) -> Iterator[ValueLimit]:
    """What the conditions of a load say of the elements that it reads."""
    place = _place(buffer, load, ranges)
    for condition in conditions:
        found = None
        if terms_of(place) is not None:
            found = _along(place, condition, math.prod(buffer.shape), ranges)
        found = found or _along_axis(buffer, load, condition, ranges)
        if found is not None and condition.size.buffer in values:
            stride, extent = found
            (number,) = condition.size.indices
            yield ValueLimit(
                stride, extent, values[condition.size.buffer], affine(number, {}).constant
            )


def _along(
    place: Affine, condition: Condition, size: int, ranges: Ranges
) -> tuple[int, int] | None:
    """Stride and extent of the limit that a condition is on the elements at `place`, if it is one.

    place = factor * (left side of the condition) + what is less than factor + multiples of a period
    """
    if not condition.terms:
        return None
    name, coefficient = condition.terms[0]
    factor, rest = divmod(place.coefficient(name), coefficient)
    if factor < 1 or rest:
        return None
    left = place.plus(condition.form, -factor)
    if any(left.coefficient(name) for name, _ in condition.terms):
        return None
    stride = factor * condition.scale
    high = [c for _, c in left.terms if c % stride == 0]
    low = Affine(left.constant, tuple((atom, c) for atom, c in left.terms if c % stride))
    least, most = affine_range(low, ranges)
    period = math.gcd(*high) if high else size
    if least < 0 or most >= factor or period % stride or size % period:
        return None
    least, most = affine_range(condition.form, ranges)
    if least < 0 or most * factor >= period:
        return None
    return stride, period // stride


def _along_axis(
    buffer: Buffer, load: Load, condition: Condition, ranges: Ranges
) -> tuple[int, int] | None:
    """As `_along`, where only one axis' index has the condition's variables.

    Those of the others are within their axes wherever the load matters, though ranges do not say
    so: windows with padding read only what is there.
    """
    names = {name for name, _ in condition.terms}
    found: tuple[Affine, int] | None = None
    inner = 1
    for extent, item in zip(reversed(buffer.shape), reversed(load.indices), strict=True):
        if not names.isdisjoint(axes_of(item)):
            if found is not None:
                return None
            found = Affine(0, ()).plus(affine(item, ranges), inner), extent * inner
        inner *= extent
    if found is None or terms_of(found[0]) is None:
        return None
    return _along(found[0], condition, found[1], ranges)


# --- axes that a limit cuts ---------------------------------------------------------------------


def _split_loops(nest: LoopNest, limits: Sequence[Limit]) -> LoopNest:
    """The nest with loops in two where a limit begins anew within their range."""
    periods = sorted({limit.stride * limit.extent for limit in limits})
    output = nest.output
    strides: dict[str, int] = {}
    for statement in _stores(nest.body, output.name):
        step = 1
        for extent, item in zip(reversed(output.shape), reversed(statement.indices), strict=True):
            if isinstance(item, Index):
                strides[item.name] = step
            step *= extent
    splits: dict[str, int] = {}
    for name, step in strides.items():
        extent = _extent(nest.body, name)
        for period in periods:
            inside = step < period < step * extent and period % step == 0
            if inside and extent % (period // step) == 0:
                splits.setdefault(name, period // step)
    return replace(nest, body=_split(nest.body, splits)) if splits else nest


def _stores(body: Body, output: str) -> Iterator[Store | Update | Dot]:
    for statement in body:
        if isinstance(statement, For | Let | If | Allocate):
            yield from _stores(statement.body, output)
        elif isinstance(statement, Store | Update | Dot) and statement.buffer == output:
            yield statement


def _extent(body: Body, variable: str) -> int:
    """How far the loops of this name run."""
    found = 0
    for statement in body:
        if isinstance(statement, For) and statement.variable == variable:
            found = max(found, statement.stop)
        if isinstance(statement, For | Let | If | Allocate):
            found = max(found, _extent(statement.body, variable))
    return found


def _split(body: Body, splits: Mapping[str, int]) -> Body:
    """Loops over v as loops over q and r, with q * size + r in the place of v."""

    def whole(expr: Expr) -> Expr:
        def visit(node: Expr) -> Expr | None:
            if isinstance(node, Index) and node.name in splits:
                outer = mul(index(f"{node.name}.q"), integer(splits[node.name]))
                return add(outer, index(f"{node.name}.r"))
            return None

        return transform(expr, visit)

    made: list[Stmt] = []
    for statement in body:
        match statement:
            case For(variable=variable, stop=stop, body=inner) if variable in splits:
                size = splits[variable]
                rest = replace(
                    statement, variable=f"{variable}.r", stop=size, body=_split(inner, splits)
                )
                made.append(
                    replace(statement, variable=f"{variable}.q", stop=stop // size, body=(rest,))
                )
            case For(body=inner) | Allocate(body=inner):
                made.append(replace(statement, body=_split(inner, splits)))
            case If(condition=condition, body=inner):
                made.append(
                    replace(statement, condition=whole(condition), body=_split(inner, splits))
                )
            case Let(value=value, body=inner):
                made.append(replace(statement, value=whole(value), body=_split(inner, splits)))
            case Store(indices=indices, value=value) | Update(indices=indices, value=value):
                items = tuple(map(whole, indices))
                made.append(replace(statement, indices=items, value=whole(value)))
            case _:
                made.append(statement)
    return tuple(made)
