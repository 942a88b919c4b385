"""Vectors rearranged in registers: elements of two of them, and transposed blocks."""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache

from tunefarm.compiler.expr.instructions import literal
from tunefarm.compiler.expr.nodes import Const
from tunefarm.compiler.llvm import scalar_ops
from tunefarm.compiler.llvm.writer import FunctionWriter, Value
from tunefarm.compiler.types.dtypes import DType
from tunefarm.compiler.types.frozen import frozen

GROUP_BYTES = 16  # x86 interleaves two registers within groups of this size only; others may always


def shuffle(writer: FunctionWriter, a: Value, b: Value, lanes: Sequence[int | None]) -> Value:
    """A vector of elements of `a` (0 .. width - 1) and `b` (from width on); None is any element."""
    mask = ", ".join("i32 poison" if lane is None else f"i32 {lane}" for lane in lanes)
    name = writer.emit(f"shufflevector {a.typed}, {b.typed}, <{len(lanes)} x i32> <{mask}>")
    return Value(name, a.dtype, len(lanes))


def first_lanes(width: int) -> Value:
    """The mask of the first lanes of a register that holds a vector of so many."""
    side = 1 << (width - 1).bit_length()
    lanes = ", ".join(f"i1 {'true' if i < width else 'false'}" for i in range(side))
    return Value(f"<{lanes}>", DType.BOOL, side)


def transpose(writer: FunctionWriter, rows: Sequence[Value]) -> list[Value]:
    """The columns of a square block, whose side is a power of two.

    Two rows at a time, first within groups of 16 bytes by interleaving (unpack on x86, zip on Arm),
    then whole groups between rows: log2(side) shuffles per row.
    """
    width = len(rows)
    group = max(1, min(width, GROUP_BYTES // rows[0].dtype.bytes))
    columns = list(rows)
    for first in range(0, width, group):
        columns[first : first + group] = _within_groups(writer, columns[first : first + group])
    distance = group
    while distance < width:
        low = [i if not i & distance else i - distance + width for i in range(width)]
        high = [i + distance if not i & distance else i + width for i in range(width)]
        for i in range(width):
            if not i & distance:
                a, b = columns[i], columns[i + distance]
                columns[i] = shuffle(writer, a, b, low)
                columns[i + distance] = shuffle(writer, a, b, high)
        distance *= 2
    return columns


def transpose_block(writer: FunctionWriter, rows: Sequence[Value]) -> list[Value]:
    """The columns of a block of vectors of any width, as vectors of len(rows) elements."""
    count, width = len(rows), rows[0].width
    side = 1 << (max(count, width) - 1).bit_length()
    if count == width == side:
        return transpose(writer, rows)
    whole: list[int | None] = [i if i < width else None for i in range(side)]
    square = list(rows)
    if width < side:
        square = [shuffle(writer, row, row, whole) for row in rows]
    none = Value("poison", rows[0].dtype, side)
    columns = transpose(writer, [*square, *[none] * (side - count)])[:width]
    if count == side:
        return columns
    return [shuffle(writer, column, column, range(count)) for column in columns]


def _within_groups(writer: FunctionWriter, rows: list[Value]) -> list[Value]:
    """Transpose each group of len(rows) elements, by interleaving rows half of them apart."""
    size = len(rows)
    half = size // 2
    width = rows[0].width
    for _ in range(size.bit_length() - 1):
        following: list[Value] = []
        for i in range(half):
            for begin in (0, half):
                lanes = [
                    first + begin + j + side * width
                    for first in range(0, width, size)
                    for j in range(half)
                    for side in (0, 1)
                ]
                following.append(shuffle(writer, rows[i], rows[i + half], lanes))
        rows = following
    return rows


def reversed_lanes(writer: FunctionWriter, value: Value) -> Value:
    """The elements of a vector in reverse order."""
    return shuffle(writer, value, value, range(value.width - 1, -1, -1))


def prefixes(
    writer: FunctionWriter, operation: str, value: Value, neutral: Const, exclusive: bool
) -> tuple[Value, Value]:
    """Each element combined with all before it, itself left out if `exclusive`; and all of them.

    log2(width) steps: each combines with what lies twice as far back as in the step before (Hillis
    and Steele 1986).
    """
    width = value.width
    none = Value(literal(neutral.value, value.dtype, width), value.dtype, width)

    distance = 1
    while distance < width:
        # Turned round and left as it is in the first elements, not filled: that is one instruction.
        moved = shuffle(writer, value, value, [(i - distance) % width for i in range(width)])
        joined = scalar_ops.binary(writer, operation, moved, value)
        kept = ", ".join(f"i1 {int(i >= distance)}" for i in range(width))
        text = writer.emit(f"select <{width} x i1> <{kept}>, {joined.typed}, {value.typed}")
        value = Value(text, value.dtype, width)
        distance *= 2
    last = writer.emit(f"extractelement {value.typed}, i64 {width - 1}")
    if exclusive:
        value = shuffle(writer, value, none, [(i - 1) % (2 * width) for i in range(width)])
    return value, Value(last, value.dtype, 0)


# Elements at known distances from each other, collected from a few vectors that hold them.


@frozen
class Pieces:
    """Vectors of `width` elements at `starts`; lane i of the result is in `lanes[i]`.

    A lane is (piece, element). Pieces lie between the first and the last of the elements.
    """

    width: int
    starts: tuple[int, ...]
    lanes: tuple[tuple[int, int], ...]


def pieces_of(offsets: Sequence[int]) -> Pieces | None:
    """The fewest vectors that hold the elements; None where one load for each is cheaper."""
    return _pieces(tuple(offsets))


@lru_cache(maxsize=1024)  # unrolled instances read in the same pattern
def _pieces(offsets: tuple[int, ...]) -> Pieces | None:
    lanes = len(offsets)
    best: Pieces | None = None
    width = lanes
    while width >= 1:
        found = _cover(offsets, width)
        if found is not None and (best is None or len(found.starts) <= len(best.starts)):
            best = found
        width //= 2
    return best if best is not None and 2 * len(best.starts) <= max(lanes, 2) else None


def _cover(offsets: Sequence[int], width: int) -> Pieces | None:
    """Vectors of this width, from the smallest offset on; None where not even one fits between."""
    distinct = sorted(set(offsets))
    last = distinct[-1] + 1 - width  # where the last vector may start
    if last < distinct[0]:
        return None
    starts: list[int] = []
    for offset in distinct:
        if not starts or offset >= starts[-1] + width:
            starts.append(min(offset, last))
    lanes = []
    for offset in offsets:
        piece = max(i for i, start in enumerate(starts) if start <= offset)
        lanes.append((piece, offset - starts[piece]))
    return Pieces(width, tuple(starts), tuple(lanes))


def collect(writer: FunctionWriter, pieces: Pieces, vectors: Sequence[Value]) -> Value:
    """The elements from the vectors loaded at `pieces.starts`.

    Two vectors at a time give the lanes that they hold; then lanes are chosen between the results.
    """
    width, count = pieces.width, len(pieces.lanes)
    if len(vectors) == 1 and pieces.lanes == tuple((0, i) for i in range(width)):
        return vectors[0]
    held: list[tuple[Value, frozenset[int]]] = []
    for first in range(0, len(vectors), 2):
        wanted = {
            i: (piece - first) * width + element
            for i, (piece, element) in enumerate(pieces.lanes)
            if piece in (first, first + 1)
        }
        other = vectors[first + 1] if first + 1 < len(vectors) else vectors[first]
        chosen = [wanted.get(i) for i in range(count)]
        held.append((shuffle(writer, vectors[first], other, chosen), frozenset(wanted)))
    while len(held) > 1:
        joined = []
        for (left, own), (right, others) in zip(held[::2], held[1::2], strict=False):
            chosen = [i if i in own else count + i if i in others else None for i in range(count)]
            joined.append((shuffle(writer, left, right, chosen), own | others))
        held = joined + held[len(held) - len(held) % 2 :]
    return held[0][0]


def readers(pieces: Pieces, piece: int) -> list[list[int | None]]:
    """For each element of a piece the lanes that read it, one in each round; None: no more."""
    lanes: list[list[int]] = [[] for _ in range(pieces.width)]
    for i, (where, element) in enumerate(pieces.lanes):
        if where == piece:
            lanes[element].append(i)
    rounds = max(len(found) for found in lanes)
    return [
        [found[number] if number < len(found) else None for found in lanes]
        for number in range(rounds)
    ]
