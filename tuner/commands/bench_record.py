"""What `tune bench` leaves in the database: the model's latency here, next to other engines'."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

from tunefarm.compiler.errors import DatabaseError
from tunefarm.compiler.runtime.execution.executable import Executable
from tunefarm.compiler.target import llvm_version
from tunefarm.db.store import Store
from tunefarm.measure.machine import fingerprint
from tunefarm.tuner.building.request import BuildRequest, BuildResult
from tunefarm.tuner.commands.bench import BenchResult, EngineLatency
from tunefarm.tuner.commands.bench_sizes import AtSize, SizedBench
from tunefarm.tuner.confirm.model_times import with_kernels, with_roof, with_steps
from tunefarm.tuner.records.model_latencies import (
    Conditions,
    EngineTime,
    ModelTimes,
    Ratio,
    record_latency,
)

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
