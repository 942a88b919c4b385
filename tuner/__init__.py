"""Tuning: search the schedules of a model's kernels, and build the model from the best ones.

    import tunefarm
    tunefarm.tune("resnet18.onnx", db="tuning.db", trials=500)
    exe = tunefarm.build("resnet18.onnx", db="tuning.db")

Without a database a model is built of default schedules, with an `UntunedWarning`.

What a call needs is imported when it is made.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from os import PathLike, fspath
from typing import TYPE_CHECKING

from tunefarm.compiler.errors import UntunedWarning
from tunefarm.compiler.types.extents import Shapes, with_fixed

if TYPE_CHECKING:
    from tunefarm.compiler.runtime.execution.executable import Executable
    from tunefarm.tuner.calibration.choice import PrecisionChoice
    from tunefarm.tuner.inference_session import InferenceSession
    from tunefarm.tuner.reports.progress import Progress
    from tunefarm.tuner.result import TuneResult


# Long: one parameter for each setting, all described.
def tune(
    model: str | PathLike[str],
    *,
    db: str | PathLike[str] | None = None,
    trials: int | None = None,
    minutes: float | None = None,
    target_gain: float | None = None,
    threads: int | None = None,
    precision: str | None = None,
    targets: Sequence[str] | None = None,
    calibration: str | PathLike[str] | None = None,
    config: str | None = None,
    seed: int | None = None,
    shapes: Shapes | None = None,
    inputs: Mapping[str, object] | None = None,
    runner: str | None = None,
    address: str | None = None,
    progress: Progress | None = None,
    numerics: str | None = None,
) -> TuneResult:
    """Tune a model's kernels into the database `db`; a later call continues where this one ended.

    `trials` and `minutes` limit the whole job; it stops when a speed-up of the whole model of
    `target_gain` is confirmed (1.1 is 10 % faster). `precision` is "strict", "default",
    "deterministic" (the same bits for any schedule, number of threads and CPU of a family),
    "int8-activations" (what weights of 2 to 8 bits multiply is rounded to 8 bits), "bf16", "fp16"
    or "int8", which takes its ranges from the data `calibration`; `numerics` is its former
    name, and `choose` does what "auto" does. `targets` are the CPUs of a cluster's nodes, each
    tuned for separately (`host` is this machine), `config` is a preset or a TOML file, `shapes`
    fixes dynamic dimensions by input name, `inputs` fixes the values of inputs. An argument
    that is None comes from the configuration. Ctrl-C ends the job early; everything measured is
    kept. `progress` shows the job: nothing is shown without it. Raises TunefarmError.
    """
    from tunefarm.compiler.types.numerics import one_precision
    from tunefarm.configs.settings import load_settings
    from tunefarm.tuner.calibration.options import PrecisionOptions
    from tunefarm.tuner.job_request import JobRequest
    from tunefarm.tuner.reports.progress import Progress
    from tunefarm.tuner.tune_precisions import tune_sizes

    settings = load_settings(
        config,
        {
            "search.total_trials": trials,
            "search.minutes": None if minutes is None else float(minutes),
            "search.target_gain": None if target_gain is None else float(target_gain),
            "search.seed": seed,
            "compile.threads": threads,
            "compile.precision": one_precision(precision, numerics),
            "compile.targets": None if targets is None else tuple(targets),
            "measure.runner": runner,
            "measure.address": address,
            "database.url": None if db is None else fspath(db),
        },
    )
    options = PrecisionOptions(None if calibration is None else fspath(calibration))
    return tune_sizes(
        JobRequest(model, settings, options, with_fixed(shapes, inputs), progress or Progress())
    )


def choose(
    model: str | PathLike[str],
    max_error: float,
    *,
    db: str | PathLike[str] | None = None,
    calibration: str | PathLike[str] | None = None,
    trials: int | None = None,
    minutes: float | None = None,
    threads: int | None = None,
    config: str | None = None,
    seed: int | None = None,
    shapes: Shapes | None = None,
    inputs: Mapping[str, object] | None = None,
    progress: Progress | None = None,
) -> PrecisionChoice:
    """Tune a model in every precision, and choose one for each matmul/conv.

    Outputs differ from f32 by at most `max_error` of the largest output, over the data
    `calibration` (without it int8 is left out and inputs are random). The choice is kept in the
    database `db`: `build` with precision "auto" applies it. The rest is as in `tune`. Raises
    TunefarmError.
    """
    from tunefarm.configs.settings import load_settings
    from tunefarm.tuner.calibration.options import PrecisionOptions
    from tunefarm.tuner.job_request import JobRequest
    from tunefarm.tuner.reports.progress import Progress
    from tunefarm.tuner.tune_precisions import tune_auto

    settings = load_settings(
        config,
        {
            "search.total_trials": trials,
            "search.minutes": None if minutes is None else float(minutes),
            "search.seed": seed,
            "compile.threads": threads,
            "compile.precision": "auto",
            "database.url": None if db is None else fspath(db),
        },
    )
    data = None if calibration is None else fspath(calibration)
    options = PrecisionOptions(data, max_error=max_error)
    return tune_auto(
        JobRequest(model, settings, options, with_fixed(shapes, inputs), progress or Progress())
    )


# Long: one parameter for each setting, all described.
def build(
    model: str | PathLike[str],
    *,
    db: str | PathLike[str] | None = None,
    threads: int | None = None,
    precision: str | None = None,
    denormals: str | None = None,
    targets: Sequence[str] | None = None,
    calibration: str | PathLike[str] | None = None,
    max_error: float | None = None,
    point: int | None = None,
    config: str | None = None,
    shapes: Shapes | None = None,
    inputs: Mapping[str, object] | None = None,
    require_tuned: float = 0.0,
    accept_nominees: bool = False,
    numerics: str | None = None,
) -> Executable:
    """Build a model from the best records of `db`; kernels without one run default schedules.

    The default of `db` is the configured database, else tuning.db; if there is none, the records
    that come with the package. If no kernel is tuned, an `UntunedWarning` gives the reason.

    Of several `targets` the best that this machine can run is loaded. `precision` is as in `tune`,
    or "auto" (`numerics` is its former name): "int8" takes its ranges from the data `calibration`,
    else from the database; with "auto", `max_error` or `point` select another point than the chosen
    one. Denormal numbers count as zeros unless `denormals` is "keep". Raises TunefarmError, also if
    tuned kernels cover less than `require_tuned` (0 to 1) of the model's estimated run time.

    Records from another CPU, another version or another database were not confirmed here: they
    apply only if it is to `accept_nominees`.
    """
    from tunefarm.compiler.types.numerics import one_precision
    from tunefarm.configs.settings import load_settings
    from tunefarm.tuner.building.flow import build_in_memory
    from tunefarm.tuner.building.request import BuildRequest
    from tunefarm.tuner.calibration.options import PrecisionOptions

    settings = load_settings(
        config,
        {
            "compile.threads": threads,
            "compile.precision": one_precision(precision, numerics),
            "compile.denormals": denormals,
            "compile.targets": None if targets is None else tuple(targets),
            "database.url": None if db is None else fspath(db),
        },
    )
    data = None if calibration is None else fspath(calibration)
    request = BuildRequest(
        fspath(model),
        "",
        settings,
        with_fixed(shapes, inputs),
        require_tuned=require_tuned,
        accept_nominees=accept_nominees,
        precision=PrecisionOptions(data, max_error=max_error, point=point),
    )
    return build_in_memory(request, stacklevel=2)


def __getattr__(name: str) -> object:
    """`InferenceSession`, whose module needs NumPy: imported when asked for."""
    if name == "InferenceSession":
        from tunefarm.tuner.inference_session import InferenceSession

        return InferenceSession
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


__all__ = ["InferenceSession", "UntunedWarning", "build", "choose", "tune"]
