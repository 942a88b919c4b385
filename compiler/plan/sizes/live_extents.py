"""Pass: how far each kernel's result is needed along its dynamic axes (bounds inference).

From the outputs backwards through the program: a reader that is needed for `oh < rows` and loads
`x[2 * oh + kh]` needs `x` below `2 * rows + 1`. Each kernel gets the largest of these as limits
(`ValidExtent`), in terms of the vector of sizes that a run passes, and computes nothing behind
them. An axis whose need no size expresses gets no limit and is computed up to its bound. As in
Halide's bounds inference (Ragan-Kelley et al., PLDI 2013, section 4.2), over sizes instead of
boxes.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, replace
from math import gcd

from tunefarm.compiler.expr.affine import Affine, Ranges, affine, affine_range
from tunefarm.compiler.expr.nodes import Binary, Const, Expr, Load
from tunefarm.compiler.expr.walk import axes_of
from tunefarm.compiler.graph.equal_sizes import first_numbers
from tunefarm.compiler.graph.ir import Graph
from tunefarm.compiler.kernels.kernel import (
    Buffer,
    Call,
    FunctionCall,
    JoinCall,
    KernelCall,
    KernelProgram,
    LoopBegin,
    LoopEnd,
    ValidExtent,
    ViewCall,
    reads_of,
    written_by,
)
from tunefarm.compiler.kernels.split_rows import merged_rows, split_folds, split_rows
from tunefarm.compiler.loops.demand_analysis import DemandAnalysis
from tunefarm.compiler.loops.lower_kernel import bounded_loops
from tunefarm.compiler.loops.scheduled_kernel import ScheduledKernel
from tunefarm.compiler.loops.size_conditions import Condition, terms_of
from tunefarm.compiler.plan.sizes.size_names import (
    SizeName,
    first_known,
    names_by_size,
    size_names,
    with_kernel,
    with_operands,
)
from tunefarm.compiler.types.dtypes import DType
from tunefarm.compiler.types.open_axes import OpenAxes
from tunefarm.compiler.types.padded_shape import PaddedShape, extent_of
from tunefarm.compiler.types.signature import SIZES, Signature
from tunefarm.compiler.types.sizes import Dimension, Function, Size, bounds_of, divide
from tunefarm.compiler.types.tensor_type import TensorType

# --- How far windows reach: the largest index under a condition on a size, as another size -------
#
# A convolution that is needed for `oh < rows` reads `2 * oh + kh - 1`, no more than `2 * rows`.
# With rows = (height + 1) // 2 that is height + 1 at most: the data is needed to one row behind
# its own.


def reaches(
    index: Expr, condition: Condition, size: Dimension, ranges: Ranges
) -> Iterator[Dimension]:
    """Sizes that an index is below where the condition holds, whose size this is."""
    form = affine(index, ranges)
    for highest in _highest(form, condition, size, ranges):
        yield highest + 1


def named(reach: Dimension, sizes: Mapping[SizeName, Dimension]) -> Iterator[tuple[SizeName, int]]:
    """Sizes with what is to be added to them, so that the sum is no less than the reach."""
    for bound in _without_fractions(reach):
        for name, size in sizes.items():
            if not isinstance(bound, Size) or not isinstance(size, Size):
                continue
            more = bound - size if bound.open_terms == size.open_terms else None
            if isinstance(more, int):
                yield name, more


def _highest(
    form: Affine, condition: Condition, size: Dimension, ranges: Ranges
) -> Iterator[Dimension]:
    """Upper bounds of a sum where the condition holds."""
    name, coefficient = condition.terms[0]
    factor, rest = divmod(form.coefficient(name), coefficient)
    if factor >= 1 and not rest:
        left = form.plus(condition.form, -factor)
        if not any(left.coefficient(variable) for variable, _ in condition.terms):
            most = affine_range(left, ranges)[1]
            yield (size * condition.scale - 1) * factor + most
        return
    if form.coefficient(name) > 0 and coefficient > 0:  # y of y * 2 + x < size
        others = condition.form.plus(Affine(0, ((name, 1),)), -coefficient)
        least = affine_range(others, ranges)[0]
        by = form.coefficient(name)
        most = affine_range(form.plus(Affine(0, ((name, 1),)), -by), ranges)[1]
        yield divide(size * condition.scale - 1 - least, coefficient) * by + most
    if form.coefficient(name):
        return
    for atom, by in form.terms:
        if isinstance(atom, Binary) and by > 0:
            others = form.plus(Affine(0, ((atom, 1),)), -by)
            most = affine_range(others, ranges)[1]
            for highest in _highest_atom(atom, condition, size, ranges):
                yield highest * by + most


def _highest_atom(
    atom: Binary, condition: Condition, size: Dimension, ranges: Ranges
) -> Iterator[Dimension]:
    left = _highest(affine(atom.left, ranges), condition, size, ranges)
    match atom:
        case Binary(op="floordiv", right=Const(value=divisor)) if int(divisor) > 0:
            yield from (divide(highest, int(divisor)) for highest in left)
        case Binary(op="min", right=right):
            yield from left
            yield from _highest(affine(right, ranges), condition, size, ranges)
        case Binary(op="max", right=Const(value=least)):
            # max(y, 0) is y + 2 at most where y is -2 at least.
            yield from (item + max(0, int(least) - bounds_of(item)[0]) for item in left)


def _without_fractions(size: Dimension) -> Iterator[Dimension]:
    """The size, and what it is at most: c * (x // d) <= c / g * (x // (d / g))."""
    yield size
    if not isinstance(size, Size):
        return
    for atoms, factor in size.terms:
        if len(atoms) != 1 or not isinstance(atoms[0], Function) or atoms[0].name != "//":
            continue
        dividend, divisor = atoms[0].operands
        if not isinstance(divisor, int) or factor < 0:
            continue
        rest = size - Size(((atoms, factor),))
        common = gcd(factor, divisor)
        for by in range(common, 1, -1):
            if common % by == 0:
                yield from _without_fractions(
                    rest + divide(dividend, divisor // by) * (factor // by)
                )


# --- How far the results of kernels are needed, where shapes are dynamic -------------------------
#
# From the outputs' true sizes backwards: an element of a value is of use where a kernel that
# matters reads it.


Needs = dict[str, frozenset[ValidExtent]]


def needed_extents(program: KernelProgram, graph: Graph, signature: Signature) -> Needs:
    """By value of a graph's program how far it is needed, by sizes that are known when it is made;
    what is not there is read by nobody. Nor is what lies behind the true sizes of `graph.unread`.
    """
    reads: dict[str, list[_Read]] = {}
    needs: Needs = {}
    sizes = size_names(program, graph)
    names, known = names_by_size(sizes), first_known(program)
    first = first_numbers(signature)

    def add_read(name: str, read: _Read) -> None:
        limits = frozenset(_named_by(first, limit) for limit in read.limits)
        reads.setdefault(name, []).append(replace(read, limits=limits))

    ports = {port.name: port for port in signature.outputs}
    for name, value in zip(graph.outputs, program.outputs, strict=True):
        limits = frozenset[ValidExtent]()
        if name in ports:
            limits = _limits_of(ports[name].padded, names)
        add_read(value, _Read(limits))
    seen: dict[tuple[str, frozenset[ValidExtent], tuple[str, ...]], list[tuple[int, _Read]]] = {}
    for number, call in reversed(list(enumerate(program.calls))):
        own = _common(reads.get(call.output, []), sizes)
        dims = graph.unread.get(call.output)
        if dims is not None and tuple(map(extent_of, dims)) == program.types[call.output].shape:
            own |= _limits_of(dims, names)
        own = _strongest({limit for limit in own if known.get(limit.sizes, number) < number}, sizes)
        needs[call.output] = own
        match call:
            case ViewCall(input=source, offset=offset):
                size, whole = program.types[call.output].size, program.types[source].size
                begin = offset // program.types[source].dtype.bytes
                kept = frozenset(limit for limit in own if _fits(limit, begin, size, whole))
                add_read(source, _Read(kept))
            case JoinCall():
                for value, read in _reads_of_join(program, call, own):
                    add_read(value, read)
            case FunctionCall():
                for value, read in _reads_of_function(call):
                    add_read(value, read)
            case LoopBegin() | LoopEnd():
                for value in reads_of(call):
                    add_read(value, _Read(frozenset()))
            case KernelCall():
                key = (call.key, own, _vectors_of_sizes(call))
                if key not in seen:
                    seen[key] = _reads_of(call, own, sizes)
                for position, read in seen[key]:
                    add_read(call.inputs[position], read)
    return needs


@dataclass(frozen=True, slots=True)
class _Read:
    """A reader of a value, and how far it needs it; `place` is which elements, where that helps."""

    limits: frozenset[ValidExtent]
    place: Affine | None = None
    ranges: Ranges | None = None

    def keeps(self, limit: ValidExtent, least: int) -> bool:
        """It reads nothing beyond the limit, whose size is no less than `least`."""
        if any(_implies(item, limit) for item in self.limits):
            return True
        if self.place is None or self.ranges is None:
            return False
        terms = tuple((atom, c) for atom, c in self.place.terms if c % limit.period)
        form = Affine(self.place.constant % limit.period, terms)
        low, high = affine_range(form, self.ranges)
        return low >= 0 and high < min(limit.period, limit.stride * (least + limit.offset))


def _named_by(first: Mapping[int, int], limit: ValidExtent) -> ValidExtent:
    """The limit by the first of sizes that are equal in every run."""
    number = first.get(limit.number) if limit.sizes == SIZES else None
    return limit if number is None else replace(limit, number=number)


def _implies(first: ValidExtent, second: ValidExtent) -> bool:
    """What is within the first limit is within the second one."""
    return first.offset <= second.offset and first == replace(second, offset=first.offset)


def _common(reads: Sequence[_Read], sizes: Mapping[SizeName, Dimension]) -> frozenset[ValidExtent]:
    """The limits that all readers keep."""
    found: frozenset[ValidExtent] = frozenset().union(*(read.limits for read in reads))

    def least(limit: ValidExtent) -> int:
        return bounds_of(sizes.get((limit.sizes, limit.number), 0))[0]

    return frozenset(x for x in found if all(read.keeps(x, least(x)) for read in reads))


def _strongest(
    limits: AbstractSet[ValidExtent], sizes: Mapping[SizeName, Dimension]
) -> frozenset[ValidExtent]:
    """The limits without those that others imply, or that leave nothing out."""
    chosen: list[ValidExtent] = []
    open_limits = (limit for limit in limits if not _holds_always(limit, sizes))
    for limit in sorted(open_limits, key=lambda x: (x.offset < 0, abs(x.offset), x)):
        if not any(_is_within(other, limit, sizes) for other in chosen):
            weaker = [other for other in chosen if _is_within(limit, other, sizes)]
            chosen = [*(other for other in chosen if other not in weaker), limit]
    return frozenset(chosen)


def _is_within(
    first: ValidExtent, second: ValidExtent, sizes: Mapping[SizeName, Dimension]
) -> bool:
    """Whether what keeps to the first limit keeps to the second one too, whatever the sizes are."""
    by, rest = divmod(second.stride, first.stride)
    if rest or first.period != second.period:
        return False
    names = [(limit.sizes, limit.number) for limit in (first, second)]
    if names[0] == names[1]:
        return by == 1 and first.offset <= second.offset
    if not all(name in sizes for name in names):
        return False
    left, right = sizes[names[0]] + first.offset, sizes[names[1]] + second.offset
    more = left - right * by
    return isinstance(more, int) and more <= 0


def _holds_always(limit: ValidExtent, sizes: Mapping[SizeName, Dimension]) -> bool:
    """Whether there is no size that leaves anything out."""
    size = sizes.get((limit.sizes, limit.number))
    return size is not None and bounds_of(size)[0] + limit.offset >= limit.extent


def _fits(limit: ValidExtent, begin: int, *sizes: int) -> bool:
    """The limit says the same of memory that starts at another element."""
    return not any(number % limit.period for number in (begin, *sizes))


def _limits_of(dims: PaddedShape, names: Mapping[Size, SizeName]) -> frozenset[ValidExtent]:
    """The limits that true sizes are."""
    found = set()
    stride = 1
    for factors in reversed(dims):
        for true, extent in reversed(factors):
            if isinstance(true, Size) and true in names:
                found.add(ValidExtent(stride, extent, *names[true]))
            stride *= extent
    return frozenset(found)


def _reads_of_join(
    program: KernelProgram, call: JoinCall, own: frozenset[ValidExtent]
) -> Iterator[tuple[str, _Read]]:
    """How far each part of a join is read, of which `own` says how far it is needed."""
    begin, whole = 0, program.types[call.output].size
    for source in call.inputs:
        size = program.types[source].size
        yield source, _Read(frozenset(limit for limit in own if _fits(limit, begin, whole, size)))
        begin += size


def _reads_of_function(call: FunctionCall) -> Iterator[tuple[str, _Read]]:
    """A function is given what is there of its operands, and nothing behind that."""
    axes: list[OpenAxes | None] = [None] * len(call.inputs)
    axes[: len(call.axes) - len(call.outputs)] = call.axes[: -len(call.outputs)]
    for value, dims in zip(call.inputs, axes, strict=True):
        limits = set()
        stride = 1
        for true, extent in reversed([factor for axis in dims or () for factor in axis]):
            if true < 0:
                limits.add(ValidExtent(stride, extent, call.inputs[-1], ~true))
            stride *= extent
        if value:
            yield value, _Read(frozenset(limits))


# --- through a kernel ---------------------------------------------------------------------------


def _vectors_of_sizes(call: KernelCall) -> tuple[str, ...]:
    """The values that sizes may be read from; calls that have them in common read alike."""
    named = zip(call.inputs, call.kernel.inputs, strict=True)
    return tuple(value if buffer.dtype is DType.I64 else "" for value, buffer in named)


def _reads_of(
    call: KernelCall, own: frozenset[ValidExtent], named_sizes: Mapping[SizeName, Dimension]
) -> list[tuple[int, _Read]]:
    """How far a call needs its inputs, by position, where its result is needed so far."""
    sizes = {limit.sizes: f"{limit.sizes}?" for limit in own}
    ends = [replace(limit, sizes=sizes[limit.sizes]) for limit in sorted(own)]
    kernel = merged_rows(replace(call.kernel, limits=tuple(ends)))
    ends = list(kernel.limits)
    kernel = replace(split_rows(kernel, keep_attention=False), limits=())
    nest = bounded_loops(ScheduledKernel.of(kernel))
    live = DemandAnalysis(nest, ends).guarded_analysis()
    values = dict(zip((item.name for item in kernel.inputs), call.inputs, strict=True))
    values |= {text: name for name, text in sizes.items()}
    found = []
    for position, buffer in enumerate(kernel.inputs):
        for load, conditions, ranges in live.reads_of_input(buffer.name):
            place = _place(buffer, load, ranges)
            held = [(item, name) for item in conditions if (name := _size_name(item, values))]
            limits = frozenset(
                (
                    *_limits(buffer, load, held, ranges),
                    *_window_limits(buffer, load, held, ranges, named_sizes),
                )
            )
            known = terms_of(place) is not None
            found.append((position, _Read(limits, place, ranges) if known else _Read(limits)))
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
    conditions: Sequence[tuple[Condition, SizeName]],
    ranges: Ranges,
) -> Iterator[ValidExtent]:
    """What conditions, each with the name of its size, say of the elements that a load reads."""
    place = _place(buffer, load, ranges)
    for condition, name in conditions:
        found = None
        if terms_of(place) is not None:
            found = _along(place, condition, math.prod(buffer.shape), ranges)
        found = found or _along_axis(buffer, load, condition, ranges)
        if found is not None:
            yield ValidExtent(*found, *name)


def _window_limits(
    buffer: Buffer,
    load: Load,
    conditions: Sequence[tuple[Condition, SizeName]],
    ranges: Ranges,
    sizes: Mapping[SizeName, Dimension],
) -> Iterator[ValidExtent]:
    """As `_limits`, of windows that reach further than their own number along an axis."""
    stride = 1
    for extent, item in zip(reversed(buffer.shape), reversed(load.indices), strict=True):
        for condition, name in conditions:
            if name not in sizes or not condition.terms or extent == 1:
                continue
            for reach in reaches(item, condition, sizes[name], ranges):
                for other, offset in named(reach, sizes):
                    if bounds_of(sizes[other])[0] + offset < extent:
                        yield ValidExtent(stride, extent, *other, offset)
        stride *= extent


def _size_name(condition: Condition, values: Mapping[str, str]) -> SizeName | None:
    """The value that holds a condition's size, and its number; None where no value does."""
    if condition.size.buffer not in values:
        return None
    (number,) = condition.size.indices
    return values[condition.size.buffer], affine(number, {}).constant


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
    so: windows with padding read only what is there. They may be any of their axes, so that the
    limit must be one on whole indices of that one.
    """
    names = {name for name, _ in condition.terms}
    found: tuple[Affine, int, int] | None = None
    inner = 1
    for extent, item in zip(reversed(buffer.shape), reversed(load.indices), strict=True):
        if not names.isdisjoint(axes_of(item)):
            if found is not None:
                return None
            found = Affine(0, ()).plus(affine(item, ranges), inner), extent * inner, inner
        inner *= extent
    if found is None or terms_of(found[0]) is None:
        return None
    place, size, step = found
    limit = _along(place, condition, size, ranges)
    return limit if limit is not None and limit[0] % step == 0 else None


def limit_kernels(program: KernelProgram, graph: Graph) -> KernelProgram:
    """The program of a graph with limits on its kernels, which get the sizes as an operand."""
    if graph.is_fixed:
        return program
    needs = needed_extents(program, graph, graph.signature)
    calls: list[Call] = []
    types = dict(program.types)
    for call in program.calls:
        if isinstance(call, KernelCall):
            limits = sorted(needs.get(call.output, ()))
            calls += _in_views(types, _limited(program, call, limits))
        else:
            calls.append(call)
    return replace(program, calls=tuple(calls), types=types)


def without_computed_outputs(program: KernelProgram, graph: Graph) -> KernelProgram:
    """The program without the outputs that only tell kernels of sizes, and what made only those."""
    dropped = [name in graph.computed_sizes for name in graph.outputs]
    if not any(dropped):
        return program
    pairs = zip(program.outputs, dropped, strict=True)
    outputs = tuple(name for name, is_dropped in pairs if not is_dropped)
    needed, calls = set(outputs), list[Call]()
    for call in reversed(program.calls):
        made = isinstance(call, KernelCall | ViewCall | JoinCall)
        if made and needed.isdisjoint(written_by(call)):
            continue
        calls.append(call)
        needed.update((*reads_of(call), *written_by(call)))
        needed.update(guard.value for guard in getattr(call, "guards", ()))
    needed.update(program.inputs)
    return replace(
        program,
        outputs=outputs,
        calls=tuple(reversed(calls)),
        types={name: type for name, type in program.types.items() if name in needed},
        constants={name: array for name, array in program.constants.items() if name in needed},
    )


def without_computed_sizes(graph: Graph) -> Graph:
    """The graph without the outputs that only tell kernels of sizes."""
    if not graph.computed_sizes:
        return graph
    outputs = tuple(name for name in graph.outputs if name not in graph.computed_sizes)
    return replace(graph, outputs=outputs, computed_sizes={})


def _limited(program: KernelProgram, call: KernelCall, limits: Sequence[ValidExtent]) -> KernelCall:
    """The call of the kernel with these limits."""
    if not limits:
        return with_kernel(call, split_folds(merged_rows(call.kernel)))
    call, named = with_operands(call, (limit.sizes for limit in limits), program.types)
    ends = tuple(replace(limit, sizes=named[limit.sizes]) for limit in limits)
    joined = {name for item in program.calls if isinstance(item, JoinCall) for name in item.inputs}
    kernel = split_folds(merged_rows(replace(call.kernel, limits=ends)))
    return with_kernel(call, kernel if call.output in joined else split_rows(kernel))


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
