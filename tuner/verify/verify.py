"""A model built anew from its records, and measured next to its untuned build on this machine."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from tunefarm import compiler
from tunefarm.compiler.errors import DatabaseError, MeasureError, SettingsError
from tunefarm.compiler.kernels.serialize import kernel_from_json
from tunefarm.compiler.runtime.execution.executable import Executable, load
from tunefarm.compiler.target import llvm_version
from tunefarm.compiler.types.dtypes import WIDE_FLOATS
from tunefarm.compiler.types.numerics import Algorithm
from tunefarm.configs.temporary_folders import temporary_folder
from tunefarm.db import queries
from tunefarm.db.store import Store
from tunefarm.measure.machine import fingerprint
from tunefarm.tuner.building.flow import build
from tunefarm.tuner.building.request import BuildRequest, BuildResult
from tunefarm.tuner.building.size_values import programs_of
from tunefarm.tuner.confirm.latency import (
    COMPARISON,
    Agree,
    ModelLatency,
    compare_models,
    outputs_agree,
    outputs_near,
)
from tunefarm.tuner.confirm.model_times import with_kernels, with_steps
from tunefarm.tuner.confirm.whole_model import agreement
from tunefarm.tuner.records.model_latencies import (
    Conditions,
    MeasuredModel,
    ModelTimes,
    Ratio,
    measured_models,
    record_latency,
)
from tunefarm.tuner.verify.drift import (
    Drift,
    Situation,
    choose_baseline,
    compare_times,
)

PROFILE_SECONDS = 1.0
FINE = 0.004
"""Standard error of the ratio at which measuring ends: less than runs of one pair differ by."""


@dataclass(frozen=True, slots=True)
class Verification:
    """What was found: the model as it is now, as it was recorded, what has changed, and notes."""

    model: str
    situation: Situation
    times: ModelTimes
    baseline: MeasuredModel | None
    drift: Drift
    notes: tuple[str, ...] = ()


def verify_model(
    request: BuildRequest, seconds: float, notify: Callable[[str], None]
) -> Verification:
    """Build, measure for about so long, compare with what is recorded, and record it.

    Raises TunefarmError for what cannot be built, and for outputs that are not the untuned build's.
    """
    if len(programs_of(request.shapes)) > 1:
        raise SettingsError(
            "one size, or one range of sizes, is verified at a time", hint="give --shape one value"
        )
    url = request.settings.database.url
    if "://" not in url and not Path(url).exists():
        raise SettingsError(
            f"no such database: {url}", hint="what tune has recorded there is verified"
        )
    with _built(request, notify) as (tuned, untuned, built):
        settings, model = request.settings, load(tuned)
        with Store.open(
            settings.database.url, create=False, read_only=True, leave_damaged=True
        ) as store:
            conditions = Conditions.of(settings, built.model_hash, model.spec.target)
            known = _recorded(store, conditions)
            baseline = choose_baseline(known, conditions.target.key, fingerprint())
            sizes = _sizes(model, baseline)
            agree = _agree(store, model)
            notify(f"measuring it and the untuned one, interleaved, for {seconds:.0f} s at most")
            latency = _measured(tuned, untuned, agree, sizes, seconds)
            times = with_kernels(_times(latency), store, model.kernels)
            times = with_steps(times, model.spec, model, PROFILE_SECONDS)
            if sizes is not None:
                times = replace(times, sizes=sizes)
            situation = Situation(
                conditions.target.key, compiler.VERSION, llvm_version(), fingerprint()
            )
            drift = compare_times(baseline, times, situation, built.report.tuned_share)
    note = record_verification(request, times, conditions)
    notes = (*built.report.notes, *filter(None, [note]))
    return Verification(
        Path(request.model).name,
        situation,
        times,
        baseline,
        drift,
        notes,
    )


@contextmanager
def _built(
    request: BuildRequest, notify: Callable[[str], None]
) -> Iterator[tuple[str, str, BuildResult]]:
    """The artifacts of the model with and without its records, while the block runs."""
    with temporary_folder("verify") as folder:
        tuned, untuned = str(folder / "tuned.tuned"), str(folder / "untuned.tuned")
        result = build(replace(request, output=tuned, listed=False))
        notify(f"{request.name} is built from its records; now without")
        build(replace(request, output=untuned, listed=False, untuned=True))
        yield tuned, untuned, result


def _recorded(store: Store, conditions: Conditions) -> Iterator[MeasuredModel]:
    """What is recorded of the model, of all machines and compilers, newest first."""
    return measured_models(
        store,
        model_hash=conditions.model_hash,
        threads=conditions.threads,
        numerics=conditions.numerics,
    )


def _sizes(model: Executable, baseline: MeasuredModel | None) -> Mapping[str, int] | None:
    """The recorded sizes, if the model is built for them; None: those in the middle."""
    if model.signature.is_fixed or baseline is None or not baseline.times.sizes:
        return None
    return dict(model.chosen_sizes(dict(baseline.times.sizes)))


def _agree(store: Store, model: Executable) -> Agree:
    """How outputs are compared: models that round to narrow types inside may differ by more."""
    if {kernel.numerics for kernel in model.kernels} - set(Algorithm):
        return outputs_near
    keys = {kernel.key for kernel in model.kernels}
    known = queries.workloads(store, list(keys))
    if known.keys() == keys:
        return agreement(kernel_from_json(record.kernel) for record in known.values())
    ports = (*model.inputs.values(), *model.outputs.values())
    narrow = any(type.dtype.is_float and type.dtype not in WIDE_FLOATS for type in ports)
    return outputs_near if narrow else outputs_agree


def _measured(
    tuned: str,
    untuned: str,
    agree: Agree,
    sizes: Mapping[str, int] | None,
    seconds: float,
) -> ModelLatency:
    """Both in interleaved pairs, until their ratio is known as well as it can be, or the time is
    over."""
    options = replace(COMPARISON, max_seconds=seconds, precise=FINE)
    try:
        return compare_models(load(untuned), load(tuned), None, options, agree, sizes)
    except MeasureError as error:
        hint = "a record gives wrong code, or the machine fails: tune db check --replay 100"
        raise MeasureError(error.message, hint=hint) from error


def _times(latency: ModelLatency) -> ModelTimes:
    return ModelTimes(
        tuned=latency.tuned,
        llvm=llvm_version(),
        spread=latency.tuned_spread,
        untuned=latency.untuned,
        over_untuned=Ratio(latency.ratio, latency.low, latency.high),
    )


def record_verification(request: BuildRequest, times: ModelTimes, conditions: Conditions) -> str:
    """Record what was measured; why that failed, or "". Build servers may only read records."""
    facts: Mapping[str, Any] = fingerprint()
    try:
        with Store.open(request.settings.database.url, create=False, leave_damaged=True) as store:
            name = Path(request.model).name
            record_latency(store, times, name, conditions, "verify", facts)
    except DatabaseError as error:
        return f"nothing was recorded: {error.message}"
    return ""
