"""A model with dynamic shapes against other engines, at representative sizes.

Engines get the model as it is, with its dynamic dimensions. An engine whose outputs are wrong at a
size is shown with its error there, and its time does not count.
"""

from __future__ import annotations

import math
import os
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from functools import partial
from statistics import geometric_mean
from typing import Any

from rich.table import Table

from tunefarm.compiler.errors import InputError, MeasureError
from tunefarm.compiler.runtime.execution.executable import Executable
from tunefarm.compiler.types.numerics import Algorithm
from tunefarm.compiler.types.tensor_type import Array
from tunefarm.compiler.with_count import with_count
from tunefarm.tuner.commands.accuracy import Accuracy, error_of
from tunefarm.tuner.commands.bench import (
    OURS,
    EngineLatency,
    all_engines,
    latency_of,
    programs_of,
)
from tunefarm.tuner.commands.engines import ENGINES, Asked, Engine, Inputs, is_quantised
from tunefarm.tuner.confirm.latency import (
    NEAR_SHARE,
    LatencyOptions,
    aligned_inputs,
    latencies_at_placements,
    outputs_agree,
    pinned,
)
from tunefarm.tuner.records.size_ranges import SizePoint, points_of
from tunefarm.tuner.reports.report import format_ratio, format_seconds


@dataclass(frozen=True, slots=True)
class AtSize:
    """Latencies at one size, ours first; the outputs of `wrong` engines are not the model's.

    `symbols` are what `sizes` says, by name.
    """

    sizes: str
    engines: tuple[EngineLatency, ...]
    wrong: tuple[str, ...] = ()
    symbols: Mapping[str, int] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class SizedBench:
    """Latencies at each size; outputs are compared with those of `reference`."""

    model: str
    threads: int
    sizes: tuple[AtSize, ...]
    reference: str

    @property
    def means(self) -> dict[str, float]:
        """The geometric mean over the sizes of each engine's time over ours, where it is right."""
        found: dict[str, list[float]] = {}
        for at in self.sizes:
            for engine in at.engines[1:]:
                if engine.engine not in at.wrong:
                    found.setdefault(engine.engine, []).append(engine.ratio)
        return {name: geometric_mean(ratios) for name, ratios in found.items()}

    def to_json(self) -> dict[str, Any]:
        """The result as JSON values."""
        return {**asdict(self), "means": self.means}


def has_sizes(executable: Executable) -> bool:
    """Whether a model has axes of several sizes."""
    return len(points_of(executable.signature, only_told=False)) > 1


def bench_sizes(
    model: str | os.PathLike[str],
    ours: Executable,
    against: Sequence[str],
    options: LatencyOptions,
) -> SizedBench:
    """Time `ours` and the engines named in `against` at representative sizes of a model.

    Raises MeasureError when ours are not what the reference computes (onnxruntime, if that is
    asked for), SettingsError for an engine that is not installed.
    """
    signature = ours.signature
    shapes = {
        port.name: tuple(size if isinstance(size, int) else -1 for size in port.shape)
        for port in signature.inputs
    }
    asked = Asked(os.fspath(model), shapes, ours.threads)
    points = [point for point in points_of(signature, only_told=False) if _is_built(ours, point)]
    points.sort(key=lambda point: math.prod(point.symbols.values()))
    narrow = {kernel.numerics for kernel in ours.kernels} - set(Algorithm)
    exact = not narrow and not is_quantised(os.fspath(model))
    with pinned(ours.threads):
        others = [engine for name in against for engine in ENGINES[name](asked)]
        engines = all_engines(ours, others)
        others = engines[1:]
        _begin(others, aligned_inputs(ours, sizes=points[-1].symbols))
        reference = next((each for each in others if each.name == "onnxruntime"), engines[0])
        found = tuple(_at(point, engines, reference, ours, options, exact) for point in points)
    return SizedBench(os.fspath(model), ours.threads, found, reference.name)


def _is_built(ours: Executable, point: SizePoint) -> bool:
    """Whether there is a program for these sizes: not between those of a list."""
    try:
        ours.chosen_sizes(point.symbols)
    except InputError:
        return False
    return True


def _begin(engines: Sequence[Engine], inputs: Inputs) -> None:
    """Run each engine once at the maximum sizes before any other.

    OpenVINO settles in its first run in which order data lies. If an axis has one element then, all
    orders are alike, and what it keeps is wrong for every other size.
    """
    for engine in engines:
        engine.run(inputs)


def _at(
    point: SizePoint,
    engines: Sequence[Engine],
    reference: Engine,
    ours: Executable,
    options: LatencyOptions,
    exact: bool,
) -> AtSize:
    inputs = aligned_inputs(ours, sizes=point.symbols)
    expected = {name: array.copy() for name, array in reference.run(inputs).items()}
    errors: dict[str, float] = {}
    wrong: list[str] = []
    for engine in engines:
        found = engine.run(inputs)
        errors[engine.name] = max(
            (_error(found.get(name), array) for name, array in expected.items()), default=0.0
        )
        right = errors[engine.name] <= NEAR_SHARE
        if exact and right:
            right = all(outputs_agree(found[name], array) for name, array in expected.items())
        if not right:
            wrong.append(engine.name)
    if OURS in wrong:
        raise MeasureError(
            f"our outputs differ from those of {reference.name} at {point}",
            hint="nothing was timed there; please report this model",
        )
    place = partial(programs_of, ours, lambda: engines[1:], point.symbols)
    meetings = latencies_at_placements(place, options)
    latencies = [
        latency_of(
            engine,
            meetings,
            number,
            None if engine is reference else Accuracy(errors[engine.name]),
        )
        for number, engine in enumerate(engines)
    ]
    return AtSize(str(point), tuple(latencies), tuple(wrong), dict(point.symbols))


def _error(found: Array | None, expected: Array) -> float:
    return math.inf if found is None else error_of(found, expected)


def sizes_table(result: SizedBench) -> Table:
    """A row per size: our latency, each engine's and our speed-up over it; means at the end."""
    caption = (
        f"in brackets: how much faster {OURS} is (higher is better); outputs are compared with "
        f"those of {result.reference}"
    )
    table = Table(header_style="bold", caption=caption)
    table.add_column("sizes")
    names = [engine.engine for engine in result.sizes[0].engines]
    for name in names:
        table.add_column(name, justify="right")
    for at in result.sizes:
        ours, *others = at.engines
        cells = [_cell(engine, engine.engine in at.wrong) for engine in others]
        table.add_row(at.sizes, format_seconds(ours.seconds), *cells)
    means = result.means
    over = [format_ratio(means[name]) if name in means else "-" for name in names[1:]]
    table.add_row("geometric mean", "", *over)
    return table


def sized_line(result: SizedBench) -> str:
    """The result in one line."""
    ratios = [f"{format_ratio(mean)} as fast as {name}" for name, mean in result.means.items()]
    count = with_count(len(result.sizes), "size")
    return f"{result.model}: {', '.join(ratios) or 'no engine is right'} (mean of {count})"


def _cell(engine: EngineLatency, wrong: bool) -> str:
    if wrong:
        return f"wrong, error {engine.error or 0.0:.1e}"
    return f"{format_seconds(engine.seconds)} ({format_ratio(engine.ratio)})"
