"""Pass: decomposed attention, softmax(scale Q K' + masks) V, becomes one operator.

    matmul(softmax(add(mul(matmul(Q, transpose(K)), scale), mask)), V)  ->  attention(Q, K, V, mask)

Spellings that are known: the scale before or behind the product, on either operand or on both (as
torch exports it), as mul or div; soft caps, cap * tanh(scores / cap), as Gemma 2 has them; masks
that are added, or chosen by `where`; keys that are turned as matrices of a flat stack (reshape,
transpose, reshape); heads that share keys and values (unsqueeze, expand, reshape); rows of weights
that are set to zero (as ONNX's operator is expanded), or are where they are NaN, as all keys are
masked (as torch exports it); one more score of each head without a value, a sink, as a column of
the softmax (Concat, Softmax, Slice).

Operands and result keep the order of axes in which they lie, where features (of keys: or positions)
stay adjacent. What only the attention needs disappears: scores and weights that others read, or a
softmax over another axis, leave everything as it is.

Of 16-bit floats operands are widened once and the result is rounded, or they are multiplied as they
are where matrix tiles hold the products; casts to f32 round the softmax and back, which models
spell for that, are left out.
"""

from __future__ import annotations

import math
from collections.abc import Collection
from dataclasses import replace

import numpy as np

from tunefarm.compiler.graph import dead_code
from tunefarm.compiler.graph.causal_masks import HIDDEN, Diagonals, MaskReader
from tunefarm.compiler.graph.emit_attention import (
    Ends,
    Mask,
    Match,
    Operand,
    Perm,
    emit_attention,
    plain_order,
)
from tunefarm.compiler.graph.ir import Graph
from tunefarm.compiler.graph.rewriter import Rewriter, consumers, use_counts
from tunefarm.compiler.kernels.attention import fits_tiles
from tunefarm.compiler.operators.registry import Pattern, complete_attributes, operator
from tunefarm.compiler.types.dtypes import DType
from tunefarm.compiler.types.frozen import frozen
from tunefarm.compiler.types.node import Node

FEWEST_QUERIES = 4  # of a head with keys of its own
FEWEST_KEYS = 32  # of which some are left out: with fewer, what is saved is not worth the code
_TYPES = frozenset((DType.F32, DType.F16, DType.BF16))


def run(
    graph: Graph,
    summed: Collection[DType] = (),
    rounds_each: bool = False,
    tiled: Collection[DType] = (),
) -> Graph:
    """The graph with attention operators for what spells them out.

    They are computed in f32, whatever 16-bit floats the model has; where every operator rounds its
    result (`rounds_each`), such attention stays. So does that in a type whose products the target
    sums (`summed`), which is faster in two products, but for heads that share their keys, and for
    what the target's matrix tiles hold in this type (`tiled`), where factors are as they are.
    """
    types = frozenset((DType.F32,)) if rounds_each else _TYPES
    finder = _Finder(graph, summed, types, tiled)
    matches = [match for node in graph.nodes if (match := finder.match(node)) is not None]
    by_output = {match.last.output: match for match in matches}
    if not by_output:
        return graph
    rewriter = Rewriter(graph)
    for node in graph.nodes:
        if node.output in by_output:
            emit_attention(rewriter, by_output[node.output])
        else:
            rewriter.keep(node)
    return dead_code.run(rewriter.finish())


@frozen
class _Scores:
    """What becomes of the first product: a scale, a soft cap (0: none), masks, and what is where
    they mask."""

    product: Node
    scale: float = 1.0
    softcap: float = 0.0
    masks: tuple[Mask, ...] = ()
    masked: float = -math.inf


@frozen
class _Sunk:
    """A softmax over scores and a column next to them."""

    weights: str
    scores: str
    sink: str


class _Finder:
    """Finds attention from its last product backwards."""

    def __init__(
        self,
        graph: Graph,
        summed: Collection[DType],
        types: Collection[DType],
        tiled: Collection[DType],
    ) -> None:
        self.graph = graph
        self.summed = summed
        self.tiled = tiled
        self.types = types
        self.producers = {node.output: node for node in graph.nodes}
        self.uses = use_counts(graph)
        self.readers = consumers(graph)
        self.masks = MaskReader(graph, self.producers)

    def match(self, product: Node) -> Match | None:
        """The attention whose product of weights and values this node is, or None."""
        if product.operator != "matmul" or _flag(product, "transpose_a"):
            return None
        guarded = self._guarded(product.inputs[0])
        weights = self._before_cast(product.inputs[0] if guarded is None else guarded[1])
        filled = self._filled(weights, "zero", last=1)
        sunk = self._sunk(filled[0])
        weights = filled[0] if sunk is None else sunk.weights
        numbers = self._numbers(weights)
        softmax = self.producers.get(weights if numbers is None else numbers)
        uses = 1 if numbers is None else 2
        if softmax is None or softmax.operator != "softmax" or self.uses[softmax.output] != uses:
            return None
        rank = len(self._shape(softmax.output))
        axis = complete_attributes(softmax).integer("axis")
        dtype = self._dtype(product.output)
        if axis != rank - 1 or rank < 2 or dtype not in self.types:
            return None
        masked_scores, ends = self._filled(softmax.inputs[0], "lowest", last=1)
        if sunk is not None:
            masked_scores, ends = self._beside_sink(sunk, ends, filled[1])
        scores = self._shape(masked_scores)
        found = self._scores(masked_scores, scores)
        if found is None:
            return None
        first = found.product
        query, query_scale = self._scaled(Operand(first.inputs[0], plain_order(rank)))
        turned = plain_order(rank) if _flag(first, "transpose_b") else _last_swapped(rank)
        key, key_scale = self._scaled(Operand(first.inputs[1], turned))
        turned_values = _flag(product, "transpose_b")
        values = self._filled(product.inputs[1], "zero", last=1 if turned_values else 2)
        if values[1] not in (Ends(), ends):
            return None
        value = Operand(values[0], _last_swapped(rank) if turned_values else plain_order(rank))
        operands = ((query, (rank - 1,)), (key, (rank - 1, rank - 2)), (value, (rank - 1,)))
        if any(len(self._shape(operand.value)) != rank for operand, _ in operands):
            return None
        query, key, value = (self._as_it_lies(operand, axes) for operand, axes in operands)
        last, perm = self._result(product)
        masks, seen = self._seen(found, scores)
        match = self._shared(
            Match(
                last,
                query,
                key,
                value,
                perm,
                found.scale * (query_scale * key_scale),
                masks,
                found.masked,
                seen,
                found.softcap,
                "" if sunk is None else sunk.sink,
                "" if guarded is None else guarded[0],
                ends,
                zeroed=numbers is not None,
            )
        )
        return self._in_one(match, dtype, scores[-2])

    def _in_one(self, match: Match, dtype: DType, queries: int) -> Match | None:
        """The match where one kernel takes less: in tiles, of narrow operands, or in vectors."""
        if self._fits_tiles(match, dtype):
            return replace(match, narrow=True)
        return match if self._pays(match, dtype, queries) else None

    def _fits_tiles(self, match: Match, dtype: DType) -> bool:
        """Whether the products are in matrix tiles, of operands in this type as they are."""
        if dtype not in self.tiled or match.softcap:
            return False
        operands = (match.query, match.key, match.value)
        query, key, value = (
            [self.graph.types[item.value].shape[axis] for axis in item.perm] for item in operands
        )
        return fits_tiles(query[-2], key[-2], query[-1], value[-1])

    def _pays(self, match: Match, dtype: DType, queries: int) -> bool:
        """Whether one kernel takes less: two products of a few rows read keys, values in place."""
        few = queries < FEWEST_QUERIES
        if dtype in self.summed:
            return bool(match.groups) and few
        return bool(match.groups) or not few

    def _seen(self, found: _Scores, shape: tuple[int, ...]) -> tuple[tuple[Mask, ...], Diagonals]:
        """The masks without those that only hide keys by their number, and what these show."""
        if shape[-2] == 1 or shape[-1] < FEWEST_KEYS:
            return found.masks, Diagonals()
        left, seen = list[Mask](), Diagonals()
        for mask in found.masks:
            if self._dtype(mask.value) is DType.BOOL:
                own = self.masks.of_bools(mask.value, not mask.inverted)
                own = replace(own, finite=found.masked > -math.inf)
                own = own if found.masked <= HIDDEN else Diagonals(whole=False)
            else:
                own = self.masks.of_numbers(mask.value)
            joined = seen.both(own)
            if not own or not own.whole or (seen and not joined.whole):
                left.append(mask)
            seen = joined
        if not seen.last or (left and seen.finite):  # what hides by a number needs the first key
            seen = replace(seen, first=())
        if not seen.last:
            return found.masks, Diagonals()
        return tuple(left), seen

    def _filled(self, name: str, value: str, last: int) -> tuple[str, Ends]:
        """A value before its axis `last` from behind is filled, and what of it is not."""
        node = self._own(name, "fill")
        if node is None:
            return name, Ends()
        attributes, shape = complete_attributes(node), self._shape(name)
        whole = attributes.integer("extent") in (0, shape[-last]) and attributes["inner"] == 1
        axis = attributes.integer("axis") % len(shape)
        other = attributes["value"] != value or len(node.inputs) > 2
        if axis != len(shape) - last or not whole or other:
            return name, Ends()
        ends = Ends(node.inputs[1], attributes.integer("number"), attributes.integer("since"))
        return node.inputs[0], ends

    def _guarded(self, name: str) -> tuple[str, str] | None:
        """where(rows, 0, weights) as the rows and the weights, as ONNX's own operator spells it."""
        node = self._own(name, "where")
        if node is None or self._number(node.inputs[1]) != 0.0:
            return None
        rows, _, weights = node.inputs
        shape, constant = self._shape(rows), self.graph.constants.get(rows)
        if self._shape(weights) != self._shape(name) or (shape and shape[-1] != 1):
            return None
        return ("" if constant is not None and not constant.any() else rows), weights

    def _sunk(self, weights: str) -> _Sunk | None:
        """The weights of keys among those of a softmax that has a sink as its first or last one."""
        part = self._own(weights, "slice")
        softmax = None if part is None else self._own(part.inputs[0], "softmax")
        if part is None or softmax is None:
            return None
        joined = self._own(self._filled(softmax.inputs[0], "lowest", last=1)[0], "concat")
        if joined is None or len(joined.inputs) != 2:
            return None
        rank = len(self._shape(weights))
        attributes = complete_attributes(part)
        *outer, start = attributes.integers("starts")
        if any(outer) or start not in (0, 1) or set(attributes.integers("steps")) != {1}:
            return None
        scores, column = joined.inputs if start == 0 else joined.inputs[::-1]
        if self._shape(scores) != self._shape(weights) or self._shape(column)[-1] != 1:
            return None
        if complete_attributes(joined).integer("axis") != rank - 1:
            return None
        expand = self._own(column, "expand")
        sink = column if expand is None else expand.inputs[0]
        return _Sunk(softmax.output, scores, sink) if self._shape(sink) else None

    def _beside_sink(self, sunk: _Sunk, whole: Ends, weights: Ends) -> tuple[str, Ends]:
        """The scores next to a sink, and which keys there are.

        A column in front moves keys by one, if all of the softmax is filled: as many of them are
        there as of weights.
        """
        scores, own = self._filled(sunk.scores, "lowest", last=1)
        return scores, weights if whole.sizes else own

    def _numbers(self, name: str) -> str | None:
        """The weights of where(isnan(weights), 0, weights), or of its inverse."""
        node = self._own(name, "where")
        if node is None:
            return None
        condition, *sides = node.inputs
        inverse = self._own(condition, "not")
        zero, weights = sides if inverse is None else sides[::-1]
        test = self._own(condition if inverse is None else inverse.inputs[0], "isnan")
        if test is None or test.inputs[0] != weights or self._number(zero) != 0.0:
            return None
        return weights if self._shape(weights) == self._shape(name) else None

    # --- from the softmax to the first product --------------------------------------------------

    def _scores(self, name: str, shape: tuple[int, ...]) -> _Scores | None:
        """The first product with what becomes of its result."""
        name = self._before_cast(name)
        node = self._own(name, "")
        if node is None or self._shape(name) != shape:
            return None
        match node.operator:
            case "matmul":
                return None if _flag(node, "transpose_a") else _Scores(node)
            case "mul" | "div":
                return self._multiplied(node, shape)
            case "add":
                for inner, other in _operands(node):
                    found = self._scores(inner, shape)
                    if found is not None and self._dtype(other) is self._dtype(name):
                        return replace(found, masks=(*found.masks, Mask(other)))
            case "where":
                return self._chosen(node, shape)
        return None

    def _multiplied(self, node: Node, shape: tuple[int, ...]) -> _Scores | None:
        """Scores that are multiplied by a number, before and after a soft cap."""
        for inner, other in _operands(node):
            factor = self._number(other)
            if factor is None:
                continue
            tanh = self._own(self._before_cast(inner), "tanh")
            found = self._scores(inner if tanh is None else tanh.inputs[0], shape)
            if found is None or found.masks:
                continue
            if tanh is None and not found.softcap:
                return replace(found, scale=_scaled_by(node, found.scale, factor))
            softcap = _scaled_by(node, found.softcap or 1.0, factor)
            if softcap > 0 and (tanh is None or not found.softcap):
                return replace(found, softcap=softcap)
        return None

    def _chosen(self, node: Node, shape: tuple[int, ...]) -> _Scores | None:
        """where(mask, scores, number), or the scores in the last place."""
        condition, *sides = node.inputs
        for inner, other in (sides, sides[::-1]):
            fill = self._number(other)
            found = self._scores(inner, shape) if fill is not None else None
            if fill is None or found is None:
                continue
            chosen = any(self._dtype(mask.value) is DType.BOOL for mask in found.masks)
            if chosen and found.masked != fill:
                return None
            mask = Mask(condition, inner == sides[1])
            return replace(found, masks=(*found.masks, mask), masked=fill)
        return None

    # --- operands -------------------------------------------------------------------------------

    def _scaled(self, operand: Operand) -> tuple[Operand, float]:
        """The operand without a factor that multiplies all of it, and that factor."""
        node = self.producers.get(operand.value)
        if node is None or node.operator not in ("mul", "div"):
            return operand, 1.0
        for inner, other in _operands(node):
            factor = self._number(other)
            if factor is not None and self._shape(inner) == self._shape(operand.value):
                bare, scale = self._scaled(replace(operand, value=inner))
                return bare, _scaled_by(node, scale, factor)
        return operand, 1.0

    def _as_it_lies(self, operand: Operand, adjacent: Perm) -> Operand:
        """The operand without transposes, as long as one of the axes `adjacent` comes last."""
        while (source := self._turned(operand)) is not None:
            if source.perm.index(len(source.perm) - 1) not in adjacent:
                break
            operand = source
        return operand

    def _turned(self, operand: Operand) -> Operand | None:
        """What lies before the transpose that the operand is the result of; None if it is not."""
        node = self.producers.get(operand.value)
        if node is None:
            return None
        if node.operator == "transpose":
            before = complete_attributes(node).integers("perm")
            return Operand(node.inputs[0], tuple(before[axis] for axis in operand.perm))
        if not _is_view(node):
            return None
        # Matrices of a flat stack that are turned: reshape, transpose, reshape.
        inner = self.producers.get(node.inputs[0])
        flat = self.producers.get(inner.inputs[0]) if inner is not None else None
        if inner is None or inner.operator != "transpose" or flat is None or not _is_view(flat):
            return None
        source, result = self._shape(flat.inputs[0]), self._shape(operand.value)
        swapped = (*source[:-2], source[-1], source[-2]) if len(source) > 1 else ()
        stack = self._shape(flat.output)
        perm = complete_attributes(inner).integers("perm")
        whole = stack[-2:] == source[-2:] and perm == _last_swapped(len(stack))
        if not whole or result != swapped:
            return None
        turn = _last_swapped(len(source))
        return Operand(flat.inputs[0], tuple(turn[axis] for axis in operand.perm))

    def _result(self, product: Node) -> tuple[Node, Perm]:
        """The last node: a transpose of the product that keeps its features adjacent, or that."""
        rank = len(self._shape(product.output))
        readers = self.readers.get(product.output, [])
        if self.uses[product.output] == 1 and len(readers) == 1:
            (reader,) = readers
            if reader.operator == "transpose":
                perm = complete_attributes(reader).integers("perm")
                if perm[-1] == rank - 1:
                    return reader, perm
        return product, plain_order(rank)

    def _shared(self, match: Match) -> Match:
        """The match with keys and values before they are repeated for several heads each."""
        key, value = self._repeated(match.key), self._repeated(match.value)
        if key is None or value is None or key[1] != value[1]:
            return match
        return replace(match, key=key[0], value=value[0], groups=key[1])

    def _repeated(self, operand: Operand) -> tuple[Operand, int] | None:
        """[..., groups, 1, positions, features] before expand and reshape, and the groups.

        None where the operand's heads, the third axis from behind, are not repeated in this way.
        """
        rank = len(operand.perm)
        view = self.producers.get(operand.value)
        if (
            rank < 3
            or view is None
            or not _is_view(view)
            or operand.perm[: rank - 2] != plain_order(rank - 2)
        ):
            return None
        expand = self.producers.get(view.inputs[0])
        if expand is None or expand.operator != "expand":
            return None
        source, wide = self._shape(expand.inputs[0]), self._shape(expand.output)
        if len(source) != rank + 1 or len(wide) != rank + 1 or source[rank - 2] != 1:
            return None
        heads = wide[rank - 3] * wide[rank - 2]
        joined = (*wide[: rank - 3], heads, *wide[rank - 1 :])
        if joined != self._shape(operand.value) or source[: rank - 2] != wide[: rank - 2]:
            return None
        if source[rank - 1 :] != wide[rank - 1 :]:
            return None
        perm = (*plain_order(rank - 1), *(axis + 1 for axis in operand.perm[rank - 2 :]))
        return Operand(expand.inputs[0], perm), wide[rank - 3]

    # --- facts ----------------------------------------------------------------------------------

    def _own(self, name: str, wanted: str) -> Node | None:
        """The node that computes a value which nothing else reads."""
        node = self.producers.get(name)
        if node is None or self.uses[name] != 1 or (wanted and node.operator != wanted):
            return None
        return node

    def _before_cast(self, name: str) -> str:
        """What is cast between f32 and 16 bits to be this value, or the value."""
        node = self._own(name, "cast")
        if node is None or not {self._dtype(name), self._dtype(node.inputs[0])} <= _TYPES:
            return name
        return node.inputs[0]

    def _shape(self, name: str) -> tuple[int, ...]:
        return self.graph.types[name].shape

    def _dtype(self, name: str) -> DType:
        return self.graph.types[name].dtype

    def _number(self, name: str) -> float | None:
        """The value of a constant that has the same number everywhere."""
        array = self.graph.constants.get(name)
        if array is None or self._dtype(name) not in _TYPES or array.size == 0:
            return None
        first = array.reshape(-1)[0]
        same = array.size == 1 or bool(np.all(array == first))
        return float(first) if same and not np.isnan(first) else None


def _operands(node: Node) -> tuple[tuple[str, str], ...]:
    """Each operand that the other may be applied to, with that other one."""
    left, right = node.inputs
    return ((left, right),) if node.operator == "div" else ((left, right), (right, left))


def _scaled_by(node: Node, scale: float, factor: float) -> float:
    return scale / factor if node.operator == "div" else scale * factor


def _flag(node: Node, name: str) -> bool:
    return complete_attributes(node).flag(name)


def _is_view(node: Node) -> bool:
    return operator(node.operator).pattern is Pattern.VIEW


def _last_swapped(rank: int) -> Perm:
    return (*range(rank - 2), rank - 1, rank - 2)
