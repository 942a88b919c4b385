"""The built model against other engines: outputs compared first, then interleaved runs."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from statistics import median
from typing import Any, TypeAlias

from rich.table import Table

from compiler.errors import MeasureError, SettingsError
from compiler.runtime.executable import Executable
from compiler.types.tensor_type import Array
from configs.layers import suggestion
from measure.compare import compare_paired
from measure.worker.stability import relative_mad
from tuner.confirm.latency import (
    LatencyOptions,
    aligned_inputs,
    interleaved_latencies,
    outputs_agree,
    pinned,
)
from tuner.reports.report import format_ratio, format_seconds, format_share

Inputs: TypeAlias = Mapping[str, Array]
Engine: TypeAlias = Callable[[], Mapping[str, Array]]
"""One run of a model; its inputs were given when the engine was made."""

THREAD_PAUSE = 0.02  # seconds between engines: idle threads of the last one spin for a while


@dataclass(frozen=True, slots=True)
class EngineLatency:
    """Seconds per run of one engine, and its time over ours (above 1: ours is faster)."""

    engine: str
    seconds: float
    spread: float
    ratio: float
    low: float
    high: float


@dataclass(frozen=True, slots=True)
class BenchResult:
    """Latencies in one run, ours first."""

    model: str
    threads: int
    engines: tuple[EngineLatency, ...]

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


def bench(
    model: str | os.PathLike[str],
    ours: Executable,
    against: Sequence[str],
    options: LatencyOptions | None = None,
) -> BenchResult:
    """Time `ours` and the engines named in `against` with the same inputs and threads.

    Raises MeasureError when an engine's outputs differ from ours, SettingsError for an engine that
    is unknown or not installed.
    """
    inputs = aligned_inputs(ours)
    options = LatencyOptions() if options is None else options
    if ours.threads > 1:
        options = replace(options, pause=THREAD_PAUSE)
    with pinned(ours.threads):
        names = ["tunefarm", *against]
        programs: list[Engine] = [lambda: ours.run(inputs)]
        programs += [ENGINES[name](os.fspath(model), inputs, ours.threads) for name in against]
        expected = programs[0]()
        for name, program in zip(against, programs[1:], strict=True):
            _check(name, program(), expected)
        samples = interleaved_latencies(programs, options)
    return BenchResult(
        os.fspath(model),
        ours.threads,
        tuple(
            _latency(name, times, samples[0]) for name, times in zip(names, samples, strict=True)
        ),
    )


def bench_table(result: BenchResult) -> Table:
    """A row per engine."""
    table = Table(header_style="bold")
    table.add_column("engine")
    for name in ("latency", "spread", "time / ours", "95 % interval"):
        table.add_column(name, justify="right")
    for engine in result.engines:
        table.add_row(
            engine.engine,
            format_seconds(engine.seconds),
            format_share(engine.spread),
            format_ratio(engine.ratio),
            f"{engine.low:.2f} to {engine.high:.2f}",
        )
    return table


def _latency(name: str, times: Sequence[float], ours: Sequence[float]) -> EngineLatency:
    """The ratio comes from pairs, and the seconds are ours times the ratio: so the two agree."""
    compared = compare_paired(times, ours)
    return EngineLatency(
        name,
        median(ours) * compared.ratio,
        relative_mad(times),
        compared.ratio,
        compared.low,
        compared.high,
    )


def _check(name: str, actual: Mapping[str, Array], expected: Mapping[str, Array]) -> None:
    for output, array in expected.items():
        if output not in actual or not outputs_agree(array, actual[output]):
            raise MeasureError(
                f"output {output!r} of {name} differs from ours",
                hint="nothing was timed; please report this model",
            )


def _onnxruntime(model: str, inputs: Inputs, threads: int) -> Engine:
    try:
        import onnxruntime
    except ImportError:
        raise _not_installed("onnxruntime") from None
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = threads
    options.inter_op_num_threads = 1
    options.log_severity_level = 3
    session = onnxruntime.InferenceSession(model, options, providers=["CPUExecutionProvider"])
    names = [output.name for output in session.get_outputs()]
    feed = dict(inputs)
    return lambda: dict(zip(names, session.run(names, feed), strict=True))


def _openvino(model: str, inputs: Inputs, threads: int) -> Engine:
    try:
        import openvino
    except ImportError:
        raise _not_installed("openvino") from None
    core = openvino.Core()
    read = core.read_model(model)
    read.reshape({name: list(array.shape) for name, array in inputs.items()})
    properties = {
        "INFERENCE_NUM_THREADS": threads,
        "NUM_STREAMS": 1,
        "INFERENCE_PRECISION_HINT": "f32",
        "PERFORMANCE_HINT": "LATENCY",
    }
    request = core.compile_model(read, "CPU", properties).create_infer_request()
    feed = dict(inputs)

    def run() -> Mapping[str, Array]:
        results = request.infer(feed, share_inputs=True, share_outputs=True)
        return {output.get_any_name(): array for output, array in results.items()}

    return run


def _not_installed(package: str) -> SettingsError:
    return SettingsError(f"{package} is not installed", hint=f"pip install {package}")


ENGINES: dict[str, Callable[[str, Inputs, int], Engine]] = {
    "onnxruntime": _onnxruntime,
    "openvino": _openvino,
}
