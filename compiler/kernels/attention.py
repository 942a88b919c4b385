"""Attention over blocks of keys, as a rewrite of its kernel.

    scores, max, exp, sum, weighted     ->     the same with keys as blocks of so many (direct)

or with what each block comes to on its own, put together at the end (online):

    for block: top = max(s); e = exp(s - top); part = sum(e); product = sum(e v)
    max = max(top); factor = exp(top - max)
    sum = sum(factor part); weighted = sum(factor product)

The online form is the parallel one of Milakov and Gimelshein, "Online normalizer calculation for
softmax" (2018, section 3.1), with values as in Dao et al., "FlashAttention" (2022, section 3.1):
scores of one block at a time are enough, whatever the number of keys.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from itertools import product

from tunefarm.compiler.errors import ScheduleError
from tunefarm.compiler.expr.nodes import (
    Binary,
    Cast,
    Const,
    Expr,
    Index,
    Load,
    Select,
    add,
    all_of,
    binary,
    cast,
    const,
    index,
    integer,
    mul,
    select,
    sub,
    unary,
)
from tunefarm.compiler.expr.parts import conjuncts
from tunefarm.compiler.expr.walk import axes_of, loads, substitute, transform
from tunefarm.compiler.kernels.kernel import FusedKernel
from tunefarm.compiler.kernels.stage import Axis, Stage
from tunefarm.compiler.machine.amx_set_up import FULL_PALETTE
from tunefarm.compiler.types.dtypes import DType
from tunefarm.compiler.types.frozen import frozen
from tunefarm.compiler.types.numerics import is_narrow

BLOCK, KEY = "nb", "n"  # the axes of a key: its block, and its place there
GROUP, LANE = "no", "nl"  # the axes of a packed key
STEP, PLACE = "step", "place"  # the axes of packed factors of tiles: a step of the sum, a row
KEYS, VALUES, MASKED = "keys", "values", "masked"
ROWS = f"{KEYS}.rows"
TOP, PART, PRODUCT, FACTOR = "block.max", "block.sum", "block.weighted", "factor"
SHIFT = "block.shift"
"""The stages that the rewrite adds."""
MOST_KEYS = 8192
"""Whose scores, and weights of 2 bytes, a kernel keeps on its stack of 1 MiB for a tile's rows."""


@frozen
class Attention:
    """The parts of an attention kernel, whatever its axes are called."""

    batch: tuple[Axis, ...]
    queries: Axis
    keys: Axis
    features: Axis  # of queries and keys
    columns: Axis  # features of values
    scores: Stage
    largest: Stage
    exponential: Stage
    total: Stage
    weighted: Stage
    query: Load
    key: Load
    value: Load
    exists: Expr | None  # of a key, where the number of keys is dynamic
    seen: tuple[Expr, ...]  # conditions of queries and keys, where a query sees some in front of it
    summed: tuple[Expr, ...]  # conditions of features, where only so many are there
    zeroed: bool  # weights of rows that have no largest number are 0
    power: str  # the function that gives e^x of differences of scores
    sunk: bool  # the result is divided by more than the sum: it reads the largest score, too

    @property
    def masked(self) -> Expr:
        """The scores under scale and masks, an expression over the axes of the scores."""
        return self.largest.body


def weight_of(score: Expr, largest: Expr, zeroed: bool, power: str = "exp") -> Expr:
    """The weight of a score by the largest one of its row; 0 if that is no number and `zeroed`."""
    weight = unary(power, sub(score, largest))
    if not zeroed:
        return weight
    finite = binary("lt", unary("abs", largest), const(math.inf, weight.dtype))
    return select(finite, weight, const(0, weight.dtype))


def fits_tiles(queries: int, keys: int, features: int, columns: int) -> bool:
    """Whether matrix tiles (AMX) pay for both products of an attention of narrow operands.

    Queries and keys fill a tile's rows, for fewer it takes longer to pack keys and values; columns
    are whole rows of sums, and the features have steps that fill a quarter of a tile at least.
    """
    rows, lanes = FULL_PALETTE.rows, FULL_PALETTE.row_bytes // DType.F32.bytes
    if min(queries, keys) < rows or keys > MOST_KEYS:
        return False
    return columns % lanes == 0 and features % (rows // 2) == 0


def attention_of(kernel: FusedKernel) -> Attention | None:
    """The kernel's parts if it is an f32 attention, as the operator's expression gives it.

    The result may be stored in a narrow type.
    """
    if len(kernel.stages) != 6:
        return None
    scores, largest, exponential, total, weighted, output = kernel.stages
    if not _has_attentions_stages(kernel):
        return None
    *batch, queries, keys = scores.axes
    rows = (*batch, queries)
    own = tuple(index(axis.name) for axis in scores.axes)
    top = Load(DType.F32, largest.name, own[:-1])
    weight = Load(DType.F32, exponential.name, own)
    if (largest.axes, largest.reduce_axes) != (rows, (keys,)):
        return None
    if (total.axes, total.reduce_axes, total.body) != (rows, (keys,), weight):
        return None
    if exponential.axes != scores.axes or weighted.reduce_axes != (keys,):
        return None
    weights = _weights(exponential, largest, top)
    if weights is None:
        return None
    if any(load.indices != own for load in loads(largest.body) if load.buffer == scores.name):
        return None
    summed, product = _summed(scores.body)
    factors, inputs = _factors(replace(scores, body=product)), {each.name for each in kernel.inputs}
    seen, term = _summed(weighted.body)
    exists, both = _values(replace(weighted, body=term))
    if factors is None or both is None or both[0] != weight:
        return None
    query, key = factors
    if keys.name in _axes(query) or queries.name in _axes(key) or queries.name in _axes(both[1]):
        return None
    if not {query.buffer, key.buffer, both[1].buffer} <= inputs:
        return None
    columns = [axis for axis in weighted.axes if axis not in rows]
    if len(columns) != 1 or len(weighted.axes) != len(rows) + 1:
        return None
    return Attention(
        tuple(batch),
        queries,
        keys,
        scores.reduce_axes[0],
        columns[0],
        scores,
        largest,
        exponential,
        total,
        weighted,
        query,
        key,
        both[1],
        exists,
        tuple(part for condition in seen for part in conjuncts(condition)),
        summed,
        *weights,
        sunk=any(load.buffer == largest.name for load in loads(output.body)),
    )


def _weights(exponential: Stage, largest: Stage, top: Load) -> tuple[bool, str] | None:
    """Whether weights are zeroed, and the function that gives them; None if they are others."""
    forms = product((False, True), ("exp", "exp_nonpositive"))
    same = (form for form in forms if exponential.body == weight_of(largest.body, top, *form))
    return next(same, None)


def _has_attentions_stages(kernel: FusedKernel) -> bool:
    """Whether six stages combine, and are of types, as those of an attention."""
    *summed, weighted, output = kernel.stages
    combiners = tuple(stage.combiner for stage in kernel.stages)
    if combiners != ("sum", "max", "", "sum", "sum", "") or kernel.anchor != weighted.name:
        return False
    if any(len(s.reduce_axes) > 1 or s.accumulates is not DType.F32 for s in (*summed, weighted)):
        return False
    if output.dtype is not DType.F32 and not is_narrow(output.dtype):
        return False
    return len(summed[0].axes) >= 2 and output.axes == weighted.axes


def _wide(load: Load) -> Expr:
    """The load, widened to the type of sums."""
    return cast(DType.F32, load)


def _axes(load: Load) -> frozenset[str]:
    return frozenset(name for item in load.indices for name in axes_of(item))


def _summed(body: Expr) -> tuple[tuple[Expr, ...], Expr]:
    """The conditions outside of which the terms of a sum are 0, and the terms."""
    match body:
        case Select(condition=condition, then=term, otherwise=Const(value=0)):
            others, term = _summed(term)
            return (condition, *others), term
    return (), body


def _factors(stage: Stage) -> tuple[Load, Load] | None:
    """The operands of a body that is the product of two loads, which may be widened."""
    body = stage.body
    if not isinstance(body, Binary) or body.op != "mul":
        return None
    left, right = _loaded(body.left), _loaded(body.right)
    return None if left is None or right is None else (left, right)


def _loaded(factor: Expr) -> Load | None:
    """The load that a factor is, or is widened from."""
    if isinstance(factor, Cast) and is_narrow(factor.operand.dtype):
        factor = factor.operand
    return factor if isinstance(factor, Load) else None


def _values(weighted: Stage) -> tuple[Expr | None, tuple[Load, Load] | None]:
    """The operands of the sums over values, without the select for keys that are padding."""
    match weighted.body:
        case Binary(
            op="mul",
            left=left,
            right=Select(condition=exists, then=value, otherwise=Const(value=0)),
        ):
            return exists, _factors(replace(weighted, body=mul(left, value)))
    return None, _factors(weighted)


def block_attention(
    kernel: FusedKernel, keys: int, lanes: int, online: bool, terms: int = 1
) -> FusedKernel:
    """The same kernel with its keys in blocks of so many, packed in groups of `lanes`.

    `keys` gives keys as [group, feature, lane], `values` gives values with zeros behind the last
    one where blocks are not full. The output stage stays. The anchor of the result is what sums up
    values: `weighted` or, `online`, that of a block.

    With several `terms` both products are of narrow factors, that many in each step of their sums,
    which lie next to each other in both operands: keys [group, step, (lane, term)] and values
    [block, step, (column, term)]. Weights are then rounded to the type of the values, and a block
    may have more keys than there are. Those of keys that a query does not see are 0 and multiplied.

    Raises `ScheduleError` where the kernel is no attention, a block has no key, or operands are of
    other types or numbers than the terms.
    """
    parts = attention_of(kernel)
    if parts is None:
        raise ScheduleError(f"{kernel.name} is no attention of f32 operands")
    if keys < 1 or lanes < 1 or (terms == 1 and keys > parts.keys.extent):
        raise ScheduleError(f"no blocks of {keys} keys in groups of {lanes}")
    if terms > 1:
        _check_terms(parts, keys, terms)
    blocks = _Blocks(parts, keys, lanes, terms)
    made = [*blocks.operands(), blocks.scores(), blocks.masked()]
    made += blocks.online() if online else blocks.direct()
    anchor = PRODUCT if online else parts.weighted.name
    return replace(kernel, stages=(*made, kernel.output), anchor=anchor)


def _check_terms(parts: Attention, keys: int, terms: int) -> None:
    """Raises `ScheduleError` where the operands have no products of so many terms."""
    types = {load.dtype for load in (parts.query, parts.key, parts.value)}
    if len(types) > 1 or not is_narrow(parts.value.dtype):
        raise ScheduleError(f"products of {terms} terms need operands of one narrow type")
    if keys % terms or parts.features.extent % terms:
        raise ScheduleError(f"{keys} keys or {parts.features.extent} features are no whole steps")
    if parts.summed:
        raise ScheduleError("tiles sum whole steps: which features there are must not be dynamic")


class _Blocks:
    """Makes the stages of an attention over blocks of keys."""

    def __init__(self, parts: Attention, keys: int, lanes: int, terms: int) -> None:
        self.parts, self.size, self.lanes, self.terms = parts, keys, lanes, terms
        self.count = -(-parts.keys.extent // keys)
        self.padded = self.count * keys != parts.keys.extent
        self.outer = tuple(index(axis.name) for axis in parts.batch)
        self.position = add(mul(index(BLOCK), integer(keys)), index(KEY))
        self.exists = binary("lt", self.position, integer(parts.keys.extent))
        self.own = (*self.outer, index(BLOCK), index(parts.queries.name), index(KEY))
        self.axes = (
            *parts.batch,
            Axis(BLOCK, self.count),
            parts.queries,
            Axis(KEY, keys),
        )
        self.row = (*self.outer, index(BLOCK), index(parts.queries.name))

    def _of(self, stage: str, indices: Sequence[Expr], dtype: DType = DType.F32) -> Load:
        return Load(dtype, stage, tuple(indices))

    @property
    def weight(self) -> Expr:
        """The weight of a key for a query."""
        dtype = self.parts.value.dtype if self.terms > 1 else DType.F32
        return _wide(self._of(self.parts.exponential.name, self.own, dtype))

    def _at(self, load: Load, position: Expr) -> Load:
        """The load of a key or value at this position."""
        values = {self.parts.keys.name: position}
        return replace(load, indices=tuple(substitute(item, values) for item in load.indices))

    def _stack(self, load: Load) -> tuple[Axis, ...]:
        """The axes of the stack that an operand has itself."""
        return tuple(axis for axis in self.parts.batch if axis.name in _axes(load))

    def operands(self) -> list[Stage]:
        """Packed keys, and values that are packed or, where the blocks are padded, padded."""
        if self.terms > 1:
            return [*self._key_steps(), self._value_steps()]
        parts, extent = self.parts, self.parts.keys.extent
        groups = -(-self.count * self.size // self.lanes)
        position = add(mul(index(GROUP), integer(self.lanes)), index(LANE))
        key = _wide(self._at(parts.key, self._inside(position)))
        if groups * self.lanes != extent and parts.exists is None:
            key = select(binary("lt", position, integer(extent)), key, const(0, DType.F32))
        axes = (Axis(GROUP, groups), parts.features, Axis(LANE, self.lanes))
        made = [Stage(KEYS, (*self._stack(parts.key), *axes), (), "", key)]
        if self.padded:
            value = _wide(self._at(parts.value, self._inside(self.position)))
            body = value
            if parts.exists is None:
                body = select(self.exists, value, const(0, DType.F32))
            rows = (Axis(BLOCK, self.count), Axis(KEY, self.size), parts.columns)
            made.append(Stage(VALUES, (*self._stack(parts.value), *rows), (), "", body))
        return made

    def _key_steps(self) -> list[Stage]:
        """Keys as the right factor of a product of tiles: [group, step, (lane, term)].

        They are read from rows in groups, zeros where these are padded.
        """
        parts, lanes, extent = self.parts, integer(self.lanes), self.parts.keys.extent
        groups = -(-self.count * self.size // self.lanes)
        position = add(mul(index(GROUP), lanes), index(LANE))
        key: Expr = self._at(parts.key, position)
        if groups * self.lanes != extent:
            key = select(binary("lt", position, integer(extent)), key, const(0, key.dtype))
        stack, group = self._stack(parts.key), Axis(GROUP, groups)
        rows = Stage(ROWS, (*stack, group, Axis(LANE, self.lanes), parts.features), (), "", key)
        outer = (*(index(axis.name) for axis in stack), index(GROUP))
        steps = Axis(STEP, parts.features.extent // self.terms)
        axes = (*stack, group, steps, Axis(PLACE, self.lanes * self.terms))
        return [
            rows,
            Stage(KEYS, axes, (), "", self._of(ROWS, (*outer, *self._place()), key.dtype)),
        ]

    def _value_steps(self) -> Stage:
        """Values as the right factor of a product of tiles: [block, step, (column, term)].

        Those of keys that are padding are zeros, so that the sums need not leave them out.
        """
        parts, extent = self.parts, self.parts.keys.extent
        column, key = self._place()
        position = add(mul(index(BLOCK), integer(self.size)), key)
        value: Expr = self._at(parts.value, position)
        value = substitute(value, {parts.columns.name: column})
        conditions = [binary("lt", position, integer(extent))] if self.padded else []
        if parts.exists is not None:
            conditions.append(substitute(parts.exists, {parts.keys.name: position}))
        if conditions:
            value = select(all_of(*conditions), value, const(0, value.dtype))
        rows = (Axis(BLOCK, self.count), Axis(STEP, self.size // self.terms))
        axes = (*self._stack(parts.value), *rows, Axis(PLACE, parts.columns.extent * self.terms))
        return Stage(VALUES, axes, (), "", value)

    def _place(self) -> tuple[Expr, Expr]:
        """The lane at a place of a packed row, and the term of all steps there."""
        terms = integer(self.terms)
        term = add(mul(index(STEP), terms), binary("mod", index(PLACE), terms))
        return binary("floordiv", index(PLACE), terms), term

    def _packed(self, lane: Expr, term: Expr) -> tuple[Expr, Expr]:
        """Where a packed factor has a term of its sum in a lane: the step, and the place there."""
        if self.terms == 1:
            return term, lane
        terms = integer(self.terms)
        place = add(mul(lane, terms), binary("mod", term, terms))
        return binary("floordiv", term, terms), place

    def scores(self) -> Stage:
        parts, lanes = self.parts, integer(self.lanes)
        lane = binary("mod", self.position, lanes)
        packed = (
            *(index(axis.name) for axis in self._stack(parts.key)),
            binary("floordiv", self.position, lanes),
            *self._packed(lane, index(parts.features.name)),
        )
        dtype = parts.key.dtype if self.terms > 1 else DType.F32
        body: Expr = mul(_wide(parts.query), _wide(self._of(KEYS, packed, dtype)))
        for condition in reversed(parts.summed):
            body = select(condition, body, const(0, DType.F32))
        return Stage(parts.scores.name, self.axes, (parts.features,), "sum", body)

    def masked(self) -> Stage:
        scores, keys = self._of(self.parts.scores.name, self.own), self.parts.keys.name

        def rule(node: Expr) -> Expr | None:
            if isinstance(node, Load):
                return scores if node.buffer == scores.buffer else self._at(node, self.position)
            return self.position if isinstance(node, Index) and node.name == keys else None

        body = transform(self.parts.masked, rule)
        if self.padded:
            body = select(self.exists, body, const(-math.inf, DType.F32))
        return Stage(MASKED, self.axes, (), "", body)

    def _values(self) -> Expr:
        """The values of a key, zeros where it is padding."""
        value = _wide(self._stored_values())
        if self.parts.exists is None or self.terms > 1:
            return value
        exists = substitute(self.parts.exists, {self.parts.keys.name: self.position})
        return select(exists, value, const(0, DType.F32))

    def _inside(self, position: Expr) -> Expr:
        """The position of a key, of those behind the last one the last one's.

        Of a dynamic number of keys these have a weight of 0, and are not copied to be padded.
        """
        last = self.parts.keys.extent - 1
        if not self.padded or self.parts.exists is None:
            return position
        return binary("min", position, integer(last))

    def _stored_values(self) -> Load:
        if not self.padded and self.terms == 1:
            return self._at(self.parts.value, self.position)
        stack = (index(axis.name) for axis in self._stack(self.parts.value))
        rows = (index(BLOCK), *self._packed(index(self.parts.columns.name), index(KEY)))
        dtype = self.parts.value.dtype if self.terms > 1 else DType.F32
        return self._of(VALUES, (*stack, *rows), dtype)

    def _seen(self, body: Expr, neutral: float, block: bool = False) -> Expr:
        """What is reduced over keys, `neutral` where a query sees none: so that loops end there.

        Of a `block` some are seen if the first one is, or the last one in a window.
        """
        first = mul(index(BLOCK), integer(self.size))
        conditions = []
        for part in self.parts.seen:
            place = self.position
            if block:
                below = isinstance(part, Binary) and part.op == "lt"
                place = first if below else add(first, integer(self.size - 1))
            conditions.append(substitute(part, {self.parts.keys.name: place}))
        if block:
            conditions += [substitute(part, {self.parts.keys.name: first}) for part in self._ends()]
        if not conditions:
            return body
        return select(all_of(*conditions), body, const(neutral, DType.F32))

    def _ends(self) -> list[Expr]:
        """Conditions that end at a key: of a block they hold for some if they do for the first."""
        found = conjuncts(self.parts.exists) if self.parts.exists is not None else ()
        return [
            part
            for part in found
            if isinstance(part, Binary)
            and part.op == "lt"
            and part.left == index(self.parts.keys.name)
        ]

    def _exponential(self, shift: Expr) -> Stage:
        body = weight_of(self._of(MASKED, self.own), shift, self.parts.zeroed, self.parts.power)
        if self.terms > 1:
            body = cast(self.parts.value.dtype, body)
        return Stage(self.parts.exponential.name, self.axes, (), "", body)

    def direct(self) -> list[Stage]:
        """The stages of the kernel over blocks instead of keys."""
        parts = self.parts
        reduce = (Axis(BLOCK, self.count), Axis(KEY, self.size))
        row = (*self.outer, index(parts.queries.name))
        weight = self.weight
        largest = self._seen(self._of(MASKED, self.own), -math.inf)
        weighted: Expr = mul(weight, self._values())
        if self.terms == 1:  # tiles multiply weights of 0
            weighted = self._seen(weighted, 0)
        return [
            replace(parts.largest, reduce_axes=reduce, body=largest),
            self._exponential(self._of(parts.largest.name, row)),
            replace(parts.total, reduce_axes=reduce, body=self._seen(weight, 0)),
            replace(parts.weighted, reduce_axes=reduce, body=weighted),
        ]

    def online(self) -> list[Stage]:
        """What each block comes to under its own largest score, and how blocks are joined.

        A block whose scores are all -inf counts nothing: its weights are 0, not undefined.
        """
        parts = self.parts
        block, key = Axis(BLOCK, self.count), Axis(KEY, self.size)
        rows = (*parts.batch, block, parts.queries)
        row = (*self.outer, index(parts.queries.name))
        weight, top = self.weight, self._of(TOP, self.row)
        nothing = binary("eq", top, const(-math.inf, DType.F32))
        factor = self._of(FACTOR, self.row)
        product = self._of(PRODUCT, (*self.row, index(parts.columns.name)))
        joined = weight_of(top, self._of(parts.largest.name, row), parts.zeroed, parts.power)
        part = mul(factor, self._of(PART, self.row))
        parts_of_block = (
            Stage(TOP, rows, (key,), "max", self._seen(self._of(MASKED, self.own), -math.inf)),
            Stage(SHIFT, rows, (), "", select(nothing, const(0, DType.F32), top)),
            self._exponential(self._of(SHIFT, self.row)),
            Stage(PART, rows, (key,), "sum", self._seen(weight, 0)),
            Stage(
                PRODUCT,
                (*rows, parts.columns),
                (key,),
                "sum",
                self._seen(mul(weight, self._values()), 0),
            ),
        )
        largest = self._seen(top, -math.inf, block=True)
        total, weighted = (self._seen(body, 0, block=True) for body in (part, mul(factor, product)))
        return [
            *parts_of_block,
            replace(parts.largest, reduce_axes=(block,), body=largest),
            Stage(FACTOR, rows, (), "", joined),
            replace(parts.total, reduce_axes=(block,), body=total),
            replace(parts.weighted, reduce_axes=(block,), body=weighted),
        ]
