"""Latency against size: of the tuned model and the untuned one, of ours and other engines.

Curves come from size plans in a database, and from what `tune bench --json` wrote. Sizes stand side
by side, those with the smallest cost first, latencies on a logarithmic scale.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tunefarm.compiler.errors import InputError
from tunefarm.compiler.with_count import with_count
from tunefarm.db import model_queries
from tunefarm.db.store import Store
from tunefarm.tuner.records.size_ranges import SizePlan
from tunefarm.tuner.reports.report import format_seconds, format_time

WIDTH, HEIGHT, MARGIN = 480, 200, 12
"""Of a drawing, in pixels."""
WRONG = "wrong outputs"


@dataclass(frozen=True, slots=True)
class SizeCurves:
    """Seconds by size of each line, by name; None where the outputs were wrong."""

    title: str
    sizes: tuple[str, ...]
    lines: tuple[tuple[str, tuple[float | None, ...]], ...]


def curves_of_plans(store: Store) -> list[SizeCurves]:
    """What jobs found for models with a range of sizes, the newest first.

    Of whole models where they were measured, else of the kernels that depend on sizes.
    """
    found = []
    for record in model_queries.plans(store):
        try:
            plan = SizePlan.from_json(record.plan)
        except (KeyError, TypeError, ValueError, AttributeError):
            continue  # a choice of precisions, or what others wrote
        threads, created = with_count(record.threads, "thread"), format_time(record.created)
        what = f"{record.model_name}, {threads}, {created}"
        times, other = plan.models, "untuned"
        if not times:
            what, times, other = f"kernels of {what}", plan.seconds, "one schedule for all sizes"
        if len(times) > 1:
            tuned, untuned = zip(*times.values(), strict=True)
            found.append(SizeCurves(what, tuple(times), (("tuned", tuned), (other, untuned))))
    return found


def curves_of_bench(data: Any) -> SizeCurves:
    """What `tune bench --json` wrote of a model with sizes that are open.

    `KeyError`, `TypeError`, `ValueError` or `IndexError` on other JSON.
    """
    rows = data["sizes"]
    lines = []
    for place, engine in enumerate(rows[0]["engines"]):
        name = str(engine["engine"])
        seconds = tuple(
            None if name in row["wrong"] else float(row["engines"][place]["seconds"])
            for row in rows
        )
        lines.append((name, seconds))
    title = f"{data['model']}, {with_count(int(data['threads']), 'thread')}, next to other engines"
    return SizeCurves(title, tuple(str(row["sizes"]) for row in rows), tuple(lines))


def read_curves(path: str) -> SizeCurves:
    """The latencies by size in a file that `tune bench --json` wrote. Raises InputError."""
    try:
        return curves_of_bench(json.loads(Path(path).read_text()))
    except (OSError, ValueError, KeyError, TypeError, IndexError, AttributeError) as error:
        raise InputError(
            f"{path} holds no latencies by size: {type(error).__name__}",
            hint="tune bench --json FILE writes them, of a model whose sizes are open",
        ) from error


def drawn(all_curves: Iterable[SizeCurves]) -> list[dict[str, object]]:
    """What the page's template asks for: a polyline and a column of figures for each line."""
    return [
        {
            "title": curves.title,
            "scale": _scale(curves),
            "lines": [
                {"name": name, "points": points}
                for (name, _), points in zip(curves.lines, _polylines(curves), strict=True)
            ],
            "rows": [
                {"sizes": sizes, "cells": [_cell(line[place]) for _, line in curves.lines]}
                for place, sizes in enumerate(curves.sizes)
            ],
        }
        for curves in map(_in_order, all_curves)
    ]


def _in_order(curves: SizeCurves) -> SizeCurves:
    """The same with sizes by the product of all: what computes less stands before."""

    def magnitude(place: int) -> int:
        return math.prod(map(int, re.findall(r"=(\d{1,10})\b", curves.sizes[place])))

    order = sorted(range(len(curves.sizes)), key=magnitude)
    lines = [(name, tuple(line[place] for place in order)) for name, line in curves.lines]
    return SizeCurves(curves.title, tuple(curves.sizes[place] for place in order), tuple(lines))


def _scale(curves: SizeCurves) -> str:
    """What the axes are, and where they begin and end."""
    known = _known(curves)
    if not known or not curves.sizes:
        return ""
    return (
        f"upwards: latency, {format_seconds(min(known))} to {format_seconds(max(known))} on a "
        f"logarithmic scale; to the right: sizes, {curves.sizes[0]} to {curves.sizes[-1]}"
    )


def _known(curves: SizeCurves) -> list[float]:
    return [s for _, line in curves.lines for s in line if s is not None and s > 0]


def _cell(seconds: float | None) -> str:
    return WRONG if seconds is None else format_seconds(seconds)


def _polylines(curves: SizeCurves) -> list[str]:
    known = _known(curves)
    low, high = math.log(min(known, default=1.0)), math.log(max(known, default=1.0))
    span = (high - low) or 1.0
    step = (WIDTH - 2 * MARGIN) / max(1, len(curves.sizes) - 1)

    def place(number: int, seconds: float) -> str:
        height = (math.log(seconds) - low) / span * (HEIGHT - 2 * MARGIN)
        return f"{MARGIN + number * step:.1f},{HEIGHT - MARGIN - height:.1f}"

    def line(seconds: Sequence[float | None]) -> str:
        return " ".join(place(n, s) for n, s in enumerate(seconds) if s is not None and s > 0)

    return [line(seconds) for _, seconds in curves.lines]
