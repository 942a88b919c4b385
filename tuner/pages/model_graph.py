"""A model as a drawing: its steps as boxes, joined by what they read, that have two colours each.

One is that of their time, the other that of the layout of their results, if it is known.
"""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from statistics import fmean

from tunefarm.compiler.plan.choices.program_steps import CHANNELS_LAST, PLAIN_LAYOUT, ProgramStep
from tunefarm.compiler.runtime.execution.profile import COPY
from tunefarm.tuner.pages.packed import shortened
from tunefarm.tuner.records.model_latencies import ModelStep
from tunefarm.tuner.reports.report import format_seconds, format_share

MOST_STEPS = 600
"""Of a drawing; the rest of a larger model is left out of it."""
COLUMNS = 8
_WIDTH, _HEIGHT = 124, 36  # of a box
_GAP, _ROW, _LINE = 26, 8, 26  # between columns, boxes of a layer, and lines
_MARGIN = 10
_CHARACTERS = 17  # of a name that fit into a box
_SHADES = 9
_OUTPUT = re.compile(r"_output(_\d+)?$")
"""What exporters append to a node's name for what it gives."""


@dataclass(frozen=True, slots=True)
class Box:
    """A step of a drawing: `shade` goes from 0 (no time) to 9, `anchor` is its kernel's or "".

    `colour` is the class of its `layout`'s colour; both are "" where layouts are not known.
    """

    x: float
    y: float
    name: str
    time: str
    title: str
    shade: int
    anchor: str
    layout: str = ""
    colour: str = ""


@dataclass(frozen=True, slots=True)
class Drawing:
    """Boxes and edges, as paths of SVG with the numbers of the boxes at both ends."""

    width: float
    height: float
    boxes: tuple[Box, ...]
    edges: tuple[tuple[str, int, int], ...]
    left_out: int

    box_width: float = _WIDTH
    box_height: float = _HEIGHT


def drawing_of(
    steps: Sequence[ModelStep],
    anchors: Mapping[str, str],
    graph: Sequence[ProgramStep | None],
    colours: Mapping[str, str],
) -> Drawing:
    """The steps of a model; `anchors` are places in the page by workload key.

    `graph` is what is known of each step, if anything is, `colours` are classes by layout.
    """
    shown = steps[:MOST_STEPS]
    layout = _layered([step.reads for step in shown], COLUMNS)
    tops = _tops(layout)
    total = math.fsum(step.seconds or 0.0 for step in steps)
    most = max((step.seconds or 0.0 for step in steps), default=0.0)
    boxes: list[Box] = []
    for step, spot in zip(shown, layout.spots, strict=True):
        x = _MARGIN + spot.column * (_WIDTH + _GAP)
        y = tops[spot.line] + spot.place * (_HEIGHT + _ROW)
        box = _box(step, x, y, total, most, anchors)
        known = graph[len(boxes)] if graph else None
        boxes.append(_with_layout(box, known, colours) if graph else box)
    edges = []
    for reader, (step, spot) in enumerate(zip(shown, layout.spots, strict=True)):
        for source in step.reads:
            other = layout.spots[source]
            over = None if spot.line == other.line else tops[spot.line] - _LINE / 2
            path = _path(boxes[source], boxes[reader], over)
            edges.append((path, source, reader))
    width = 2 * _MARGIN + min(COLUMNS, 1 + _last(layout)) * (_WIDTH + _GAP) - _GAP / 2 + 2
    return Drawing(width, tops[-1], tuple(boxes), tuple(edges), len(steps) - len(shown))


def _tops(layout: _Layout) -> list[float]:
    """Where each line begins, and where the last one ends."""
    tops: list[float] = [_MARGIN + _LINE / 2]
    for count in layout.heights:
        tops.append(tops[-1] + count * (_HEIGHT + _ROW) - _ROW + _LINE)
    return tops


def _last(layout: _Layout) -> int:
    return max((spot.column for spot in layout.spots), default=0)


def _box(
    step: ModelStep, x: float, y: float, total: float, most: float, anchors: Mapping[str, str]
) -> Box:
    seconds = step.seconds
    time = "" if seconds is None else format_seconds(seconds)
    shade = 0
    if seconds is not None and most > 0:
        shade = math.ceil(_SHADES * math.sqrt(seconds / most))
    share = f", {format_share(seconds / total)} of the steps" if seconds and total > 0 else ""
    title = f"{step.name}{f' {step.key[:8]}' if step.key else ''}: {time or 'not timed'}{share}"
    anchor = anchors.get(step.key, "") if step.name != COPY else ""
    return Box(x, y, shortened(step.name, _CHARACTERS), time, title, shade, anchor)


def _with_layout(box: Box, step: ProgramStep | None, colours: Mapping[str, str]) -> Box:
    if step is None:
        return replace(box, colour=NONE)
    about = f"{step.value} by {', '.join(step.operators)}, {step.layout}"
    name = shortened(_OUTPUT.sub("", step.value), _CHARACTERS)
    colour = colours.get(step.layout, NONE)
    return replace(box, name=name, title=f"{box.title}; {about}", layout=step.layout, colour=colour)


def _path(source: Box, reader: Box, over: float | None) -> str:
    """From the right side of a box to the left one of another, around what is between them.

    `over` is the height between lines at which it goes to the reader's line, None within one.
    """
    x, y = source.x + _WIDTH, source.y + _HEIGHT / 2
    end_x, end_y = reader.x, reader.y + _HEIGHT / 2
    if over is None and end_x - x <= _GAP + 1:
        bend = (end_x - x) / 2
        return f"M{x:g} {y:g}C{x + bend:g} {y:g} {end_x - bend:g} {end_y:g} {end_x:g} {end_y:g}"
    left = x + _GAP / 2
    right = end_x - _GAP / 2 + (0 if over is None else 4)
    if over is None:  # above the boxes between
        over = min(source.y, reader.y) - _ROW
    corners = [(x, y), (left, y), (left, over), (right, over), (right, end_y), (end_x, end_y)]
    return _corners(corners, 6)


def _corners(points: Sequence[tuple[float, float]], radius: float) -> str:
    """A path along points with rounded corners."""
    path = f"M{points[0][0]:g} {points[0][1]:g}"
    for before, corner, after in zip(points, points[1:], points[2:], strict=False):
        enter, leave = _towards(corner, before, radius), _towards(corner, after, radius)
        path += f"L{enter[0]:g} {enter[1]:g}Q{corner[0]:g} {corner[1]:g} {leave[0]:g} {leave[1]:g}"
    return path + f"L{points[-1][0]:g} {points[-1][1]:g}"


def _towards(
    corner: tuple[float, float], other: tuple[float, float], radius: float
) -> tuple[float, float]:
    """The point so far from a corner on the way to another, halfway at most."""
    length = math.hypot(other[0] - corner[0], other[1] - corner[1])
    share = min(radius, length / 2) / length if length else 0.0
    return corner[0] + share * (other[0] - corner[0]), corner[1] + share * (other[1] - corner[1])


@dataclass(frozen=True, slots=True)
class _Spot:
    """Where a node is: its line, its layer within that, and its place in the layer, from 0."""

    line: int
    column: int
    place: int


@dataclass(frozen=True, slots=True)
class _Layout:
    """The nodes' spots, and how many places the fullest layer of each line has."""

    spots: tuple[_Spot, ...]
    heights: tuple[int, ...]


def _layered(reads: Sequence[Sequence[int]], columns: int) -> _Layout:
    """Spots for nodes, each of which reads from earlier ones, with so many layers in a line.

    A layer holds what only depends on the layers before it (longest paths; Sugiyama et al., IEEE
    Trans. SMC 11, 1981, with barycentres for the order within layers). Networks are long and
    narrow: so layers go from left to right, and on in the next line.
    """
    layers = _layers(reads)
    order = _ordered(reads, layers)
    places: dict[int, int] = {}
    heights = [1] * (-(-len(order) // columns))
    for number, layer in enumerate(order):
        heights[number // columns] = max(heights[number // columns], len(layer))
        places |= {node: place for place, node in enumerate(layer)}
    spots = tuple(
        _Spot(layer // columns, layer % columns, places[node]) for node, layer in enumerate(layers)
    )
    return _Layout(spots, tuple(heights))


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


_FIXED = (PLAIN_LAYOUT, CHANNELS_LAST, "NCHW16c", "NCHW8c", "NCHW32c", "NCHW4c")
COLOURS = 10
"""That there are; layouts beyond that share the last one."""
NONE = "ln"
"""The class of what gives nothing of a layout, as a copy of memory."""


def colours_of(layouts: Iterable[str]) -> dict[str, str]:
    """The class of each layout: "l0" to "l9"."""
    others = [name for name in dict.fromkeys(layouts) if name not in _FIXED]
    names = (*_FIXED, *others)
    return {name: f"l{min(number, COLOURS - 1)}" for number, name in enumerate(names)}


def legend_of(layouts: Iterable[str], colours: Mapping[str, str]) -> list[dict[str, object]]:
    """The layouts that steps have, the commonest first, with their colours and how many have it."""
    return [
        {"layout": name, "colour": colours[name], "steps": steps}
        for name, steps in Counter(layouts).most_common()
    ]
