"""Tuning: search the schedules of a model's kernels, and build the model from the best ones.

    import tuner
    tuner.tune("resnet18.onnx", db="tuning.db", trials=500)
    exe = tuner.build("resnet18.onnx", db="tuning.db")

What a call needs is imported when it is made.
"""

from __future__ import annotations

from collections.abc import Mapping
from os import PathLike, fspath
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from compiler.runtime.executable import Executable
    from tuner.reports.progress import Progress
    from tuner.result import TuneResult


def tune(
    model: str | PathLike[str],
    *,
    db: str | PathLike[str] | None = None,
    trials: int | None = None,
    minutes: float | None = None,
    threads: int | None = None,
    numerics: str | None = None,
    config: str | None = None,
    seed: int | None = None,
    shapes: Mapping[str, tuple[int, ...]] | None = None,
    runner: str | None = None,
    address: str | None = None,
    progress: Progress | None = None,
) -> TuneResult:
    """Tune a model's kernels into the database `db`, going on where an earlier run ended.

    `trials` and `minutes` bound the whole job, `numerics` names how exact the model is, `config` is
    a preset or a TOML file, `shapes` fixes symbolic dimensions by input name; what is None comes
    from the configuration. Ctrl-C ends it early with everything measured kept. Raises
    TunefarmError.
    """
    from configs.settings import load_settings
    from tuner.job import tune_model

    settings = load_settings(
        config,
        {
            "search.total_trials": trials,
            "search.minutes": None if minutes is None else float(minutes),
            "search.seed": seed,
            "compile.threads": threads,
            "compile.numerics": numerics,
            "measure.runner": runner,
            "measure.address": address,
            "database.url": None if db is None else fspath(db),
        },
    )
    return tune_model(model, settings, shapes=shapes, progress=progress)


def build(
    model: str | PathLike[str],
    *,
    db: str | PathLike[str] | None = None,
    threads: int | None = None,
    numerics: str | None = None,
    config: str | None = None,
    shapes: Mapping[str, tuple[int, ...]] | None = None,
    require_tuned: float = 0.0,
) -> Executable:
    """Build a model from the best records of `db`; kernels without one run default schedules.

    Raises TunefarmError, also if less than `require_tuned` of the model's estimated time is tuned.
    """
    from configs.settings import load_settings
    from tuner.building.flow import build_executable
    from tuner.building.request import BuildRequest

    settings = load_settings(
        config,
        {
            "compile.threads": threads,
            "compile.numerics": numerics,
            "database.url": None if db is None else fspath(db),
        },
    )
    return build_executable(
        BuildRequest(fspath(model), "", settings, shapes or {}, require_tuned=require_tuned)
    )


__all__ = ["build", "tune"]
