"""Places for the nodes of a graph whose edges point forwards: layers, wrapped like lines of text.

A layer holds what only depends on the layers before it (longest paths; Sugiyama et al., IEEE Trans.
SMC 11, 1981, with barycentres for the order within layers). Networks are long and narrow: so layers
go from left to right, and on in the next line.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from statistics import fmean


@dataclass(frozen=True, slots=True)
class Spot:
    """Where a node is: its line, its layer within that, and its place in the layer, from 0."""

    line: int
    column: int
    place: int


@dataclass(frozen=True, slots=True)
class Layout:
    """The nodes' spots, and how many places the fullest layer of each line has."""

    spots: tuple[Spot, ...]
    heights: tuple[int, ...]


def layered(reads: Sequence[Sequence[int]], columns: int) -> Layout:
    """Spots for nodes, each of which reads from earlier ones, with so many layers in a line."""
    layers = _layers(reads)
    order = _ordered(reads, layers)
    places: dict[int, int] = {}
    heights = [1] * (-(-len(order) // columns))
    for number, layer in enumerate(order):
        heights[number // columns] = max(heights[number // columns], len(layer))
        places |= {node: place for place, node in enumerate(layer)}
    spots = tuple(
        Spot(layer // columns, layer % columns, places[node]) for node, layer in enumerate(layers)
    )
    return Layout(spots, tuple(heights))


def _layers(reads: Sequence[Sequence[int]]) -> list[int]:
    """The longest path to each node."""
    layers: list[int] = []
    for number, sources in enumerate(reads):
        before = [layers[source] for source in sources if 0 <= source < number]
        layers.append(1 + max(before, default=-1))
    return layers


def _ordered(reads: Sequence[Sequence[int]], layers: Sequence[int]) -> list[list[int]]:
    """The nodes of each layer, those first that read from what stands first."""
    order: list[list[int]] = [[] for _ in range(max(layers, default=-1) + 1)]
    for node, layer in enumerate(layers):
        order[layer].append(node)
    places: dict[int, float] = {}
    for nodes in order:
        centres = [fmean([places[source] for source in reads[node]] or [0.0]) for node in nodes]
        nodes[:] = [node for _, node in sorted(zip(centres, nodes, strict=True))]
        places |= {node: float(number) for number, node in enumerate(nodes)}
    return order
