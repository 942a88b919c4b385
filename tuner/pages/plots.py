"""The plots of a page: figures of Bokeh without data, which the page's script fills.

One figure of a kind serves all kernels, so that a page with thousands of trials stays small and is
made quickly. Bokeh's script is in the page, compressed, and starts when a kernel is first opened.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import bokeh
from bokeh.embed import json_item
from bokeh.models import ColumnDataSource, HoverTool
from bokeh.models.annotations import Legend
from bokeh.plotting import figure

from tunefarm.tuner.pages import kernels

TEXT, GRID = "#010101", "#020202"
"""Colours that the script replaces by those of light or dark pages."""
_KINDS = {
    kernels.OK: ("circle", "#4c8bf5", 5),
    kernels.EARLY: ("circle", "#9db8e8", 4),
    kernels.NOISE: ("circle", "#b0b0b0", 4),
    kernels.FAILED: ("x", "#d9534f", 6),
    kernels.REJECTED: ("inverted_triangle", "#e08a00", 9),
    kernels.APPLIED: ("star", "#1f9d55", 14),
}
_TOOLS = "pan,box_zoom,wheel_zoom,reset"


def library() -> str:
    """Bokeh's script, without what only widgets, tables and servers need."""
    folder = Path(bokeh.__file__).parent / "server" / "static" / "js"
    return (folder / "bokeh.min.js").read_text(encoding="utf-8")


def figures() -> dict[str, Any]:
    """The figures by name, as JSON for `Bokeh.embed.embed_item`; sources are named."""
    return {
        name: json.loads(json.dumps(json_item(made)))
        for name, made in (("trials", _trials()), ("roof", _roof()))
    }


def _trials() -> Any:
    made = _figure("trial", "µs per call", height=320, y_axis_type="log")
    items = []
    for kind, (marker, color, size) in _KINDS.items():
        source = _source(kind, "x", "y", "text")
        glyph = made.scatter(
            "x", "y", source=source, marker=marker, color=color, size=size, alpha=0.75, name=kind
        )
        items.append((kind, [glyph]))
    line = made.step(
        "x", "y", source=_source("line", "x", "y"), mode="after", color=TEXT, line_width=1.5
    )
    items.append(("best so far", [line]))
    legend = Legend(items=items, orientation="horizontal", click_policy="hide")
    legend.update(
        background_fill_alpha=0, border_line_alpha=0, label_text_color=TEXT, spacing=2, padding=0
    )
    legend.ncols = "auto"
    made.add_layout(legend, "below")
    renderers = [glyph for kind, (glyph,) in items if kind in _KINDS]
    made.add_tools(
        HoverTool(renderers=renderers, tooltips=[("trial", "@x"), ("µs", "@y"), ("", "@text")])
    )
    return made


def _roof() -> Any:
    made = _figure(
        "operations per byte of operands",
        "GFLOP/s",
        height=280,
        x_axis_type="log",
        y_axis_type="log",
    )
    made.line("x", "y", source=_source("line", "x", "y"), color=TEXT, line_width=1.5)
    others = made.scatter(
        "x", "y", source=_source("others", "x", "y", "text"), color="#b0b0b0", size=5, alpha=0.7
    )
    own = made.scatter(
        "x", "y", source=_source("own", "x", "y", "text"), color="#1f9d55", size=13, marker="star"
    )
    made.add_tools(HoverTool(renderers=[others, own], tooltips=[("", "@text")]))
    return made


def _figure(x: str, y: str, *, height: int, **axes: Any) -> Any:
    made = figure(
        height=height,
        sizing_mode="stretch_width",
        tools=_TOOLS,
        toolbar_location="above",
        x_axis_label=x,
        y_axis_label=y,
        **axes,
    )
    made.toolbar.logo = None
    made.update(background_fill_color=None, border_fill_color=None, outline_line_color=GRID)
    for axis in (*made.xaxis, *made.yaxis):
        axis.update(
            axis_label_text_color=TEXT,
            major_label_text_color=TEXT,
            axis_line_color=GRID,
            major_tick_line_color=GRID,
            minor_tick_line_color=None,
        )
    for grid in (*made.xgrid, *made.ygrid):
        grid.grid_line_color = GRID
    return made


def _source(name: str, *columns: str) -> ColumnDataSource:
    return ColumnDataSource(data={column: [] for column in columns}, name=name)
