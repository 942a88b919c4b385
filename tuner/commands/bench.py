"""The built model against other engines: outputs compared first, then interleaved runs."""

from __future__ import annotations

import math
import os
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from functools import partial
from pathlib import Path
from statistics import geometric_mean, median
from typing import Any

import numpy as np
from rich.table import Table

from tunefarm.compiler.errors import (
    DatabaseError,
    InputError,
    MeasureError,
    SettingsError,
    with_count,
)
from tunefarm.compiler.plan.precision.choose_precision import NARROW
from tunefarm.compiler.runtime.execution.executable import Executable
from tunefarm.compiler.target import llvm_version
from tunefarm.compiler.types.dtypes import DType
from tunefarm.compiler.types.extents import LOGITS_TO_KEEP, Shapes, fixed_inputs
from tunefarm.compiler.types.numerics import Algorithm
from tunefarm.compiler.types.structure import NO_STRUCTURE, StringTable, Structure, WordTable, plain
from tunefarm.compiler.types.tensor_type import Array
from tunefarm.configs.layers import suggestion
from tunefarm.configs.settings import shown_precision
from tunefarm.db.store import Store
from tunefarm.measure.machine import fingerprint
from tunefarm.measure.worker.stability import relative_mad
from tunefarm.tuner.building.request import BuildRequest, BuildResult
from tunefarm.tuner.commands.engines import (
    ENGINES,
    QUANTISED,
    Asked,
    Engine,
    Inputs,
    Run,
    is_quantised,
    onnxruntime_session,
)
from tunefarm.tuner.confirm.drawn_inputs import drawn_inputs
from tunefarm.tuner.confirm.latency import (
    LONGEST_SPIN,
    NEAR_SHARE,
    LatencyOptions,
    Program,
    aligned_inputs,
    latencies_at_placements,
    outputs_agree,
    pinned,
    placed_anew,
    placed_inputs,
)
from tunefarm.tuner.confirm.model_times import with_kernels, with_roof, with_steps
from tunefarm.tuner.confirm.verdict import Meeting, compare
from tunefarm.tuner.records.model_latencies import (
    Conditions,
    EngineTime,
    ModelTimes,
    Ratio,
    record_latency,
)
from tunefarm.tuner.records.size_ranges import SizePoint, points_of
from tunefarm.tuner.reports.report import format_ratio, format_seconds, format_share

OURS = "tunefarm"
DEFAULT_BUILD = f"{OURS}, default"
ROUNDS = 15
PLACEMENTS = 5
"""At each our code is linked anew, and the other engines are made anew."""


@dataclass(frozen=True, slots=True)
class EngineLatency:
    """Seconds per run of one engine, and our speed-up over it (above 1: ours is faster).

    `numerics` is the type that it multiplies in, or our precision. `error` is its largest error
    against f32 over the largest output, `top1` the share of drawn inputs that it classifies as f32
    does; None for the engine that the others are compared with, and where there are no classes.
    """

    engine: str
    numerics: str
    seconds: float
    spread: float
    ratio: float
    low: float
    high: float
    error: float | None = None
    top1: float | None = None


@dataclass(frozen=True, slots=True)
class BenchResult:
    """Latencies in one run, ours first. Errors are against `reference`."""

    model: str
    threads: int
    engines: tuple[EngineLatency, ...]
    reference: str

    def to_json(self) -> dict[str, Any]:
        """The result as JSON values."""
        return asdict(self)


def parse_engines(text: str) -> list[str]:
    """Names of engines, separated by commas; SettingsError for an unknown one, and for none."""
    names = [name.strip() for name in text.split(",") if name.strip()]
    if not names:
        raise SettingsError("no engine is named", hint=f"known: {', '.join(ENGINES)}")
    for name in names:
        if name not in ENGINES:
            raise SettingsError(f"unknown engine {name!r}", hint=suggestion(name, list(ENGINES)))
    return names


def require_all_logits(ours: Executable, shapes: Shapes) -> None:
    """Raise SettingsError where ours has the last logits only, because `shapes` says so."""
    own = {port.name for port in ours.spec.structure.fixed}
    if LOGITS_TO_KEEP in fixed_inputs(shapes).keys() - own:
        raise SettingsError(
            f"other engines give all logits, and a build with {LOGITS_TO_KEEP} the last ones",
            hint=f"leave out --input {LOGITS_TO_KEEP}, or time a generation: --generate 128,64",
        )


def bench(
    model: str | os.PathLike[str],
    ours: Executable,
    against: Sequence[str],
    options: LatencyOptions | None = None,
    default: Executable | None = None,
) -> BenchResult:
    """Time `ours` and the engines named in `against` with the same inputs and threads.

    `default` is our build in the default precision, for what that of `ours` costs. Where ours
    multiplies in a narrow type, engines that have it use it too, and all engines run a quantized
    model as it is. Raises MeasureError when an engine's outputs differ from ours though both
    compute in f32, and when ours are not finite where f32 is; SettingsError for an engine that is
    unknown or not installed.
    """
    inputs = aligned_inputs(ours)
    options = bench_options(ours.threads) if options is None else options
    multiplied = {kernel.numerics for kernel in ours.kernels} - set(Algorithm)
    storage = next((dtype for dtype in NARROW if any(dtype in each for each in multiplied)), None)
    quantised = is_quantised(os.fspath(model))
    shapes = {name: array.shape for name, array in inputs.items()}
    asked = Asked(os.fspath(model), shapes, ours.threads, storage)

    def make() -> list[Engine]:
        made = [engine for name in against for engine in ENGINES[name](asked)]
        if quantised:
            made = [replace(engine, numerics=QUANTISED) for engine in made]
        if default is not None:
            anew = placed_anew(default)
            made.append(Engine(DEFAULT_BUILD, default.spec.numerics, anew.run))
        return all_engines(ours, made)[1:]

    with pinned(ours.threads):
        others = make()
        engines = [*all_engines(ours, ()), *others]
        if not multiplied and not quantised:
            _check(others, inputs, engines[0].run(inputs))
        reference = _reference(asked, others, quantised)
        accuracies = _accuracies(engines, reference, ours)
        place = partial(programs_of, ours, make)
        meetings = latencies_at_placements(place, options)
    return BenchResult(
        os.fspath(model),
        ours.threads,
        tuple(
            latency_of(engine, meetings, number, accuracy)
            for number, (engine, accuracy) in enumerate(zip(engines, accuracies, strict=True))
        ),
        reference.name,
    )


def bench_options(threads: int, rounds: int = ROUNDS) -> LatencyOptions:
    """Samples of engines with so many threads: `rounds` of them at least, at several placements."""
    return LatencyOptions(
        rounds=math.ceil(rounds / PLACEMENTS),
        placements=PLACEMENTS,
        idle=LONGEST_SPIN if threads > 1 else 0.0,
        serial=threads == 1,
    )


def programs_of(
    ours: Executable,
    make: Callable[[], Sequence[Engine]],
    sizes: Mapping[str, int] | None = None,
) -> list[Program]:
    """Runs of ours at a placement, and of the others that `make` gives, over the same inputs."""
    ours = placed_anew(ours)
    inputs = placed_inputs(ours, sizes)
    return [partial(engine.run, inputs) for engine in (*all_engines(ours, ()), *make())]


def all_engines(ours: Executable, others: Sequence[Engine]) -> list[Engine]:
    """Ours first, then the others, all called with the inputs that ours takes as tensors."""
    structure = ours.spec.structure
    if others and structure.prefix.steps:
        raise SettingsError(
            f"the model begins with operators on strings ({structure.prefix.operators}), for which "
            "there are no random inputs",
            hint="time your own strings with tune run --input NAME=FILE --repeat 100",
        )
    if structure.texts:
        others = [replace(engine, run=_of_texts(engine.run, structure)) for engine in others]
    run: Run = ours.run if structure == NO_STRUCTURE else lambda given: plain(ours.run(given))
    return [Engine(OURS, ours.spec.numerics, run), *others]


def _of_texts(run: Run, structure: Structure) -> Run:
    """A run of an engine that takes words where ours takes their numbers as well."""
    words = StringTable(WordTable(structure.words))
    return lambda inputs: run(words.shown(structure.texts, inputs))


def bench_table(result: BenchResult) -> Table:
    """A row per engine."""
    caption = (
        f"speed-up: how much faster {OURS} is (higher is better); errors are against "
        f"{result.reference}"
    )
    table = Table(header_style="bold", caption=caption)
    table.add_column("engine")
    table.add_column("precision")
    for name in ("latency", "spread", "speed-up", "95 % interval", "error", "top-1"):
        table.add_column(name, justify="right")
    for engine in result.engines:
        table.add_row(
            engine.engine,
            shown_precision(engine.numerics),
            format_seconds(engine.seconds),
            format_share(engine.spread),
            format_ratio(engine.ratio),
            f"{engine.low:.2f} to {engine.high:.2f}",
            "-" if engine.error is None else f"{engine.error:.1e}",
            "-" if engine.top1 is None else format_share(engine.top1),
        )
    return table


def bench_line(result: BenchResult) -> str:
    """The result in one line."""
    ours, *others = result.engines
    ratios = [f"{format_ratio(engine.ratio)} as fast as {engine.engine}" for engine in others]
    return f"{result.model}: {format_seconds(ours.seconds)}, {', '.join(ratios)}"


def latency_of(
    engine: Engine, meetings: Sequence[Meeting], number: int, accuracy: Accuracy | None
) -> EngineLatency:
    """The ratio comes from pairs, and the seconds are ours times the ratio: so the two agree."""
    compared = compare(meetings, number, 0)
    times, ours = ([s for m in meetings for s in m[each]] for each in (number, 0))
    return EngineLatency(
        engine.name,
        engine.numerics,
        median(ours) * compared.ratio,
        relative_mad(times),
        compared.ratio,
        compared.low,
        compared.high,
        None if accuracy is None else accuracy.error,
        None if accuracy is None else accuracy.top1,
    )


def _check(
    others: Sequence[Engine], inputs: Mapping[str, Array], ours: Mapping[str, Array]
) -> None:
    for engine in others:
        actual = engine.run(inputs)
        for output, array in ours.items():
            if output not in actual or not outputs_agree(array, actual[output]):
                raise MeasureError(
                    f"output {output!r} of {engine.name} differs from ours",
                    hint="nothing was timed; please report this model",
                )


def _reference(asked: Asked, others: Sequence[Engine], quantised: bool) -> Engine:
    """Who computes in f32 what the model says: one of the others, if they do not quantise."""
    if not quantised:
        return others[0]
    run: Run = onnxruntime_session(asked.model, asked.threads, optimised=False)
    return Engine("onnxruntime, every node in f32", "f32", run)


def _accuracies(
    engines: Sequence[Engine], reference: Engine, ours: Executable
) -> list[Accuracy | None]:
    """How far each engine is from the reference, None for that itself."""
    references = References.of(reference.run, partial(drawn_inputs, ours))
    found = [None if engine is reference else references.compare(engine.run) for engine in engines]
    if found[0] is not None and not found[0].is_finite:
        raise MeasureError(
            f"outputs in {shown_precision(engines[0].numerics)} are not finite where those in f32 "
            "are",
            hint="nothing was timed; fp16 ends at 65504, bf16 has the range of f32",
        )
    return found


# A model with dynamic shapes against other engines, at representative sizes.


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


# What `tune bench` leaves in the database: the model's latency here, next to other engines'.

PROFILE_SECONDS = 1.0
"""Of timing the model's steps, behind the benchmark."""


def record_bench(
    request: BuildRequest, built: BuildResult, ours: Executable, result: BenchResult | SizedBench
) -> str:
    """Keep what a benchmark found in the settings' database; why that failed, or "".

    Others may have the records for reading only: that is no reason to fail.
    """
    times = times_of(result)
    settings, spec = request.settings, ours.spec
    conditions = Conditions.of(settings, built.model_hash, spec.target)
    try:
        with Store.open(settings.database.url, create=False) as store:
            times = with_kernels(times, store, ours.kernels)
            times = with_steps(times, spec, ours, PROFILE_SECONDS)
            times = with_roof(times, settings, spec.target)
            name = Path(request.model).name
            record_latency(store, times, name, conditions, "bench", fingerprint())
    except DatabaseError as error:
        return f"the latencies are not recorded: {error.message}"
    return ""


def times_of(result: BenchResult | SizedBench) -> ModelTimes:
    """What is kept; ours is what it takes at the last of the sizes, where there are several."""
    ats = result.sizes if isinstance(result, SizedBench) else (AtSize("", result.engines),)
    own = ats[-1].engines[0]
    engines = [engine for at in ats for engine in _engines(at)]
    return ModelTimes(
        tuned=own.seconds,
        llvm=llvm_version(),
        spread=own.spread,
        sizes=ats[-1].symbols,
        engines=tuple(engines),
    )


def _engines(at: AtSize) -> Iterable[EngineTime]:
    for engine in at.engines:
        yield _engine(engine, at.sizes, engine.engine in at.wrong)


def _engine(engine: EngineLatency, sizes: str, wrong: bool) -> EngineTime:
    return EngineTime(
        engine.engine,
        engine.numerics,
        engine.seconds,
        Ratio(engine.ratio, engine.low, engine.high),
        sizes,
        engine.error,
        engine.top1,
        wrong,
    )


# How far the outputs of a run are from those of a reference, over a few drawn inputs.


MOST_INPUTS = 50
MOST_SECONDS = 3.0

Outputs = Mapping[str, Array]


@dataclass(frozen=True, slots=True)
class Accuracy:
    """`error` is the largest error over the largest element, of the worst output: of others than
    floats the share that differs. `top1` is the share of inputs that are classified alike; None
    where no output is one of classes."""

    error: float
    top1: float | None = None

    @property
    def is_finite(self) -> bool:
        """Whether all is finite that is finite in the reference."""
        return math.isfinite(self.error)


@dataclass(frozen=True, slots=True)
class References:
    """Drawn inputs, and a reference's outputs for them."""

    cases: tuple[tuple[Inputs, Outputs], ...]

    @staticmethod
    def of(run: Run, draw: Callable[[int], Inputs]) -> References:
        """What `run` gives for a few inputs, drawn by number, as many as there is time for."""
        end, cases = time.monotonic() + MOST_SECONDS, []
        for seed in range(MOST_INPUTS):
            inputs = draw(seed)
            cases.append((inputs, _copied(run(inputs))))
            if time.monotonic() > end:
                break
        return References(tuple(cases))

    def compare(self, run: Run) -> Accuracy:
        """How far a run's outputs are from these, over as many inputs as there is time for."""
        end = time.monotonic() + MOST_SECONDS
        errors: list[float] = []
        alike: list[bool] = []
        for inputs, expected in self.cases:
            found = run(inputs)
            errors += [error_of(found[name], array) for name, array in expected.items()]
            for name, array in expected.items():
                alike += _classified_alike(found[name], array)
            if time.monotonic() > end:
                break
        return Accuracy(max(errors, default=0.0), sum(alike) / len(alike) if alike else None)


def error_of(found: Array, expected: Array) -> float:
    """The largest error over the largest element of what is finite; infinity where only the
    reference is finite; of others than floats the share that differs."""
    dtype = DType.from_numpy(expected.dtype)
    if found.shape != expected.shape:
        return math.inf
    if not dtype.is_float:
        return float(np.mean(found != expected)) if expected.size else 0.0
    wide = expected.astype(np.float64)
    got, finite = found.astype(np.float64), np.isfinite(wide)
    if not finite.any():
        return 0.0
    largest, error = np.max(np.abs(wide[finite])), np.max(np.abs(got[finite] - wide[finite]))
    if not np.isfinite(error):
        return math.inf
    return float(error / largest) if largest else float(error > 0) and math.inf


def _classified_alike(found: Array, expected: Array) -> Iterator[bool]:
    """For each row of scores whether the same class has the highest one."""
    is_scores = DType.from_numpy(expected.dtype).is_float and _is_of_classes(expected.shape)
    if is_scores and found.shape == expected.shape:
        rows = expected.shape[0]
        best = [np.argmax(array.reshape(rows, -1), axis=1) for array in (found, expected)]
        yield from (bool(equal) for equal in best[0] == best[1])


def _is_of_classes(shape: Sequence[int]) -> bool:
    """A batch of scores, [N, classes] with no axes behind that have more than one element."""
    return len(shape) >= 2 and shape[1] > 1 and all(extent == 1 for extent in shape[2:])


def _copied(outputs: Outputs) -> dict[str, Array]:
    return {name: array.copy() for name, array in outputs.items()}
