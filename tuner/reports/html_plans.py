"""What was chosen for models as a whole, as rows of the HTML page: points of speed and error.

The records are JSON that others may have written: what does not read as a choice is left out.
"""

from __future__ import annotations

import math
from typing import Any

from tunefarm.db import model_queries
from tunefarm.db.store import Store
from tunefarm.tuner.reports.report import format_ratio, format_seconds, format_time

WIDTH, HEIGHT, MARGIN = 360, 160, 12
"""Of a drawing of speed against error, in pixels."""


def plans(store: Store) -> list[dict[str, object]]:
    """One item per recorded choice, the newest first."""
    rows = []
    for record in model_queries.plans(store):
        try:
            rows.append(
                {
                    "model": record.model_name,
                    "numerics": record.numerics,
                    "threads": record.threads,
                    "created": format_time(record.created),
                    **_choice(record.plan),
                }
            )
        except (KeyError, TypeError, ValueError, AttributeError, IndexError):
            continue
    return rows


def _choice(plan: Any) -> dict[str, object]:
    points = [_point(number, point) for number, point in enumerate(plan["points"])]
    chosen = int(plan["chosen"])
    places = _places([(float(p["ratio"]), float(p["error"])) for p in plan["points"]])
    for point, place in zip(points, places, strict=True):
        point |= {"x": f"{place[0]:.1f}", "y": f"{place[1]:.1f}"}
    precisions = plan["points"][chosen]["precisions"]
    return {
        "measure": str(plan["measure"]),
        "chosen": chosen,
        "points": points,
        "line": " ".join(f"{point['x']},{point['y']}" for point in points),
        "contractions": [_contraction(item, precisions) for item in plan["contractions"]],
    }


def _point(number: int, point: Any) -> dict[str, object]:
    kinds = [str(kind) for kind in point["precisions"].values()]
    counts = ", ".join(f"{kinds.count(kind)} {kind}" for kind in sorted(set(kinds)))
    held_out = point["held_out"]
    return {
        "number": number,
        "precisions": counts or "all f32",
        "error": f"{float(point['error']):.2g}",
        "held_out": "-" if held_out is None else f"{float(held_out):.2g}",
        "speed": format_ratio(1.0 / float(point["ratio"])),
    }


def _contraction(item: Any, precisions: Any) -> dict[str, object]:
    kind = str(precisions.get(item["identity"], "f32"))
    before = float(item["seconds"]["f32"])
    now = float(item["seconds"].get(kind, before))
    error = item["errors"].get(kind)
    return {
        "name": str(item["label"]),
        "precision": kind,
        "before": format_seconds(before),
        "now": format_seconds(now),
        "gained": f"{1 - now / before:.0%}",
        "error": "-" if error is None else f"{float(error):.2g}",
    }


def _places(points: list[tuple[float, float]]) -> list[tuple[float, float]]:
    """Where points are drawn: speed to the right, the logarithm of the error upwards."""
    speeds = [1.0 / ratio for ratio, _ in points]
    errors = [error for _, error in points if error > 0]
    least = min(errors, default=1e-6) / 2.0
    heights = [math.log(max(error, least)) for _, error in points]

    def scaled(value: float, values: list[float], length: int) -> float:
        span = max(values) - min(values) or 1.0
        return MARGIN + (value - min(values)) / span * (length - 2 * MARGIN)

    return [
        (scaled(speed, speeds, WIDTH), HEIGHT - scaled(height, heights, HEIGHT))
        for speed, height in zip(speeds, heights, strict=True)
    ]
