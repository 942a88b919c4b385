"""What was chosen for a model, for people: a row per contraction, and speed against error."""

from __future__ import annotations

from rich.table import Table

from tunefarm.compiler.types.precision import Precision
from tunefarm.tuner.calibration.choice import ChoicePoint, ContractionCost, PrecisionChoice
from tunefarm.tuner.reports.report import format_ratio, format_seconds

_BAR = 30
"""Characters of the fastest point's bar."""


def contractions_table(choice: PrecisionChoice) -> Table:
    """A row per contraction, the costliest in f32 first: what it is computed in, what that gained
    and what it alone costs of the outputs."""
    chosen = choice.points[choice.chosen].precisions
    table = Table(header_style="bold")
    table.add_column("contraction", overflow="ellipsis", no_wrap=True, ratio=1)
    for name in ("precision", "f32", "now", "gained", choice.measure):
        table.add_column(name, justify="right", no_wrap=True)
    for item in sorted(choice.contractions, key=lambda item: -item.seconds[Precision.F32]):
        kind = chosen.get(item.identity, Precision.F32)
        table.add_row(item.label, kind.value, *_costs(item, kind))
    return table


def _costs(item: ContractionCost, kind: Precision) -> tuple[str, ...]:
    before = item.seconds[Precision.F32]
    now = item.seconds.get(kind, before)
    error = item.errors.get(kind)
    text = "-" if kind is Precision.F32 or error is None else f"{error:.2g}"
    return format_seconds(before), format_seconds(now), f"{1 - now / before:.0%}", text


def points_table(choice: PrecisionChoice) -> Table:
    """A row per point, from f32 to the fastest, with its speed drawn; an arrow marks the chosen
    one."""
    table = Table(header_style="bold")
    for name in ("", "point", "contractions"):
        table.add_column(name, no_wrap=True)
    for name in (choice.measure, "held out", "speed"):
        table.add_column(name, justify="right", no_wrap=True)
    table.add_column("", no_wrap=True)
    fastest = min(point.ratio for point in choice.points)
    for number, point in enumerate(choice.points):
        table.add_row(
            "→" if number == choice.chosen else "",
            str(number),
            precision_texts(point),
            f"{point.error:.2g}",
            "-" if point.held_out is None else f"{point.held_out:.2g}",
            format_ratio(1.0 / point.ratio),
            "█" * max(1, round(_BAR * fastest / point.ratio)),
        )
    return table


def precision_texts(point: ChoicePoint) -> str:
    """How many contractions a point has in which precision."""
    counts = ", ".join(f"{count} {kind}" for kind, count in point.counts.items())
    return counts or "all f32"


def summary_lines(choice: PrecisionChoice, command: str) -> list[str]:
    """What was chosen and what to do next."""
    point = choice.points[choice.chosen]
    error = f"{choice.measure} {point.error:.2g}"
    if point.held_out is not None:
        error += f", {point.held_out:.2g} on held-out samples"
        if point.held_out > choice.budget:
            error += f" (more than {choice.budget:g}: give more samples, or allow less)"
    speed = format_ratio(1.0 / point.ratio)
    if point.low is not None and point.high is not None:
        sure = f"{format_ratio(1.0 / point.high)} to {format_ratio(1.0 / point.low)}"
        speed += f" (95 % sure: {sure})"
    lines = [
        f"point {choice.chosen} of {len(choice.points) - 1}: {precision_texts(point)}; {error}"
    ]
    if point.precisions:
        lines.append(f"{speed} as fast as f32")
    else:
        lines.append(
            f"nothing within {choice.budget:g} is faster than f32: the model stays as it is"
        )
    lines.append(f"another point: {command} --point N")
    lines.append(f"next: {command}")
    return lines
