"""From what was measured of a whole model to what is recorded of it (`ModelTimes`)."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace

from tunefarm.compiler.content_cache import ContentCache, cache_key
from tunefarm.compiler.errors import TunefarmError
from tunefarm.compiler.runtime.execution.executable import Executable
from tunefarm.compiler.runtime.execution.profile import COPY, StepTime
from tunefarm.compiler.runtime.spec.executable_spec import CallStep, ExecutableSpec, FunctionStep
from tunefarm.compiler.runtime.spec.kernel_report import TUNED, KernelReport
from tunefarm.compiler.target import Target, llvm_version
from tunefarm.configs.settings import Settings, cache_folder
from tunefarm.db import queries
from tunefarm.db.store import Store
from tunefarm.measure.compare import Comparison
from tunefarm.measure.machine import fingerprint
from tunefarm.measure.worker.roof import measure_roof
from tunefarm.tuner.confirm.latency import ModelLatency, aligned_inputs, pinned
from tunefarm.tuner.records.model_latencies import (
    AppliedKernel,
    MachineRoof,
    ModelStep,
    ModelTimes,
    Ratio,
)

MOST_ROUNDS = 20


def times_of_job(latency: ModelLatency, claimed: float, confirmed: float) -> ModelTimes:
    """What a comparison with the untuned model came to; sums of kernels are 0 where unknown."""
    applied = latency.applied
    return ModelTimes(
        tuned=latency.untuned * applied.ratio,
        llvm=llvm_version(),
        spread=latency.tuned_spread,
        untuned=latency.untuned,
        over_untuned=_ratio(applied),
        refused=_ratio(latency) if latency.is_slower else None,
        claimed=claimed or None,
        confirmed=confirmed or None,
    )


def with_kernels(times: ModelTimes, store: Store, kernels: Iterable[KernelReport]) -> ModelTimes:
    """The same with how each kernel was built, from the reports of a build with this store."""
    reports = list(kernels)
    of_records = [r.record_id for r in reports if r.schedule_source == TUNED and r.record_id]
    numbers = sorted({int(number) for number in of_records if number.isdecimal()})
    hashes = {trial.number: trial.schedule_hash for trial in queries.numbered(store, numbers)}

    def schedule(report: KernelReport) -> str:
        is_known = report.schedule_source == TUNED and (report.record_id or "").isdecimal()
        return hashes.get(int(report.record_id or 0), "") if is_known else ""

    applied = {
        report.key: AppliedKernel(
            report.title,
            report.occurrences,
            report.schedule_source,
            schedule(report),
            report.latency or None,
            report.flops,
        )
        for report in reports
    }
    return replace(times, kernels=applied)


def with_steps(
    times: ModelTimes, spec: ExecutableSpec, model: Executable | None, seconds: float
) -> ModelTimes:
    """The same with the steps of the `spec`, timed in runs of the model for so long.

    They have no times where `seconds` do not suffice for a round, and without the `model`. A model
    of several programs has the steps of the first one. Dynamic sizes are those of the times or else
    in the middle.
    """
    steps, sizes = known_steps(spec), times.sizes
    rounds = min(MOST_ROUNDS, int(seconds / (2.0 * times.tuned)) - 1)
    if model is not None:
        sizes = model.chosen_sizes(sizes)
    if model is not None and rounds >= 1:
        timed = _timed(model, sizes, rounds)
        if len(timed) == len(steps):
            pairs = zip(steps, timed, strict=True)
            steps = tuple(replace(step, seconds=found.seconds) for step, found in pairs)
    return replace(times, steps=steps, sizes=sizes)


def _timed(model: Executable, sizes: Mapping[str, int], rounds: int) -> tuple[StepTime, ...]:
    """None for a model whose functions do not want drawn inputs."""
    try:
        with pinned(model.threads):
            return model.profile(aligned_inputs(model, sizes=sizes), rounds).steps
    except TunefarmError:
        return ()


def with_roof(times: ModelTimes, settings: Settings, target: Target) -> ModelTimes:
    """The same with what this machine can do at most, measured once and kept in the cache."""
    threads = settings.compile.threads
    folder = cache_folder(settings)
    cache = None if folder is None else ContentCache(folder)
    key = cache_key("roof", fingerprint()["fingerprint"], target.to_json(), threads)
    kept = None if cache is None else cache.find(key)
    try:
        roof = MachineRoof(*map(float, kept[0])) if kept is not None else None
    except (TypeError, ValueError):
        roof = None
    if roof is None:
        try:
            found = measure_roof(target, threads)
        except TunefarmError:  # nothing depends on it
            return times
        roof = MachineRoof(found.flops, found.bytes)
        if cache is not None:
            cache.add(key, [roof.flops, roof.bytes])
    return replace(times, roof=roof)


def known_steps(spec: ExecutableSpec) -> tuple[ModelStep, ...]:
    """The steps of a model, without times."""
    reports = {part.symbol: report for part, report in zip(spec.objects, spec.kernels, strict=True)}
    found = []
    for step in spec.steps:
        name, key = COPY, ""
        if isinstance(step, CallStep):
            name, key = reports[step.symbol].name, reports[step.symbol].key
        elif isinstance(step, FunctionStep):
            name = key = spec.functions[step.function].name
        found.append(ModelStep(name, key, None))
    return tuple(found)


def _ratio(compared: Comparison | ModelLatency) -> Ratio:
    return Ratio(compared.ratio, compared.low, compared.high)
