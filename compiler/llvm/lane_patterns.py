"""Elements at known distances from each other, collected from a few vectors that hold them.

A load whose index divides, mirrors or interleaves reads elements whose distances depend on the lane
alone: x[i // 2] reads 0 0 1 1 2 2 …, x[9 - i] goes backwards, x[i % 2, i // 2] alternates.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache

from tunefarm.compiler.llvm.shuffles import shuffle
from tunefarm.compiler.llvm.writer import FunctionWriter, Value


@dataclass(frozen=True, slots=True)
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
