"""Jobs whose numerics are chosen for the model as a whole: int8 with calibration, and auto.

int8   calibration data -> ranges -> the quantised model, tuned like any other
auto   each uniform precision tuned -> a precision for each contraction (tuner.precision)

What was chosen is recorded, and `tune build` with the same numerics builds it.
"""

from __future__ import annotations

import os
import time
from pathlib import Path
from typing import TypedDict

from compiler.graph.ir import Graph
from compiler.plan.apply_precisions import apply_precisions, prepare
from compiler.types.extents import Shapes
from compiler.types.numerics import Numerics
from configs.errors import SettingsError
from configs.settings import Settings
from db.store import Store
from measure.sandbox.import_model import import_model
from tuner.building.apply_best import choose_from
from tuner.building.lowered import (
    LoweredModel,
    calibrated,
    record_choice,
    recorded_choice,
    wider_note,
)
from tuner.calibration.choice import PrecisionChoice
from tuner.calibration.options import AUTO, INT8, PrecisionOptions
from tuner.from_settings import limits_of, target_of
from tuner.job import MakeRunner, check_job, tune_lowered, tune_model
from tuner.precision.choose import choose_precisions
from tuner.reports.progress import Progress
from tuner.result import TuneResult

Model = str | os.PathLike[str]


def tune_with(
    model: Model,
    settings: Settings,
    options: PrecisionOptions,
    *,
    shapes: Shapes | None = None,
    progress: Progress | None = None,
    make_runner: MakeRunner | None = None,
    started: float | None = None,
) -> TuneResult:
    """Tune a model under the settings' numerics; with int8 that is the quantised model.

    Raises TunefarmError as `tune_model` does, for calibration data that does not fit the model, and
    for `auto`, of which more comes than a tuned model.
    """
    started = time.monotonic() if started is None else started
    options.check(settings.compile.numerics)
    if settings.compile.numerics == AUTO:
        raise SettingsError("numerics auto is a choice, no job", hint="tuner.choose makes it")
    job = _Job(progress=progress, make_runner=make_runner, started=started)
    if settings.compile.numerics != INT8:
        return tune_model(model, settings, shapes=shapes, **job)
    check_job(settings)
    lowered = _quantised(model, settings, options, shapes, progress)
    return tune_lowered(model, lowered, _plain(settings), **job)


class _Job(TypedDict):
    """What any job takes beside its model and settings."""

    progress: Progress | None
    make_runner: MakeRunner | None
    started: float


def _quantised(
    model: Model,
    settings: Settings,
    options: PrecisionOptions,
    shapes: Shapes | None,
    progress: Progress | None,
) -> LoweredModel:
    """The quantised model; its ranges are of the calibration data, or of the record."""
    target = target_of(settings)
    graph = import_model(model, shapes, limits_of(settings))
    with Store.open(settings.database.url) as store:
        if options.calibration is None:
            choice = recorded_choice(graph, settings, target, store)
        else:
            choice = calibrated(graph, settings, options, target)
            record_choice(store, choice, Path(model).name, graph, settings, target)
            if progress is not None and (note := wider_note(graph, choice)):
                progress.message(note)
    return LoweredModel(*apply_precisions(prepare(graph), choice.plan()))


def tune_auto(
    model: Model,
    settings: Settings,
    options: PrecisionOptions,
    *,
    shapes: Shapes | None = None,
    progress: Progress | None = None,
    make_runner: MakeRunner | None = None,
) -> PrecisionChoice:
    """Tune a model in every precision and choose one for each contraction, into the database.

    The trials and minutes of the settings are those of all these jobs together. Raises
    TunefarmError as `tune_model` does, and as `choose_precisions` does; KeyboardInterrupt when it
    is ended early, with all measurements kept and nothing chosen.
    """
    options.check(AUTO)
    options.check_search()
    check_job(settings)
    target, shown = target_of(settings), Progress() if progress is None else progress
    graph = import_model(model, shapes, limits_of(settings))

    def tune(lowered: Graph, numerics: Numerics, part: Settings) -> None:
        result = tune_lowered(
            model,
            LoweredModel(lowered, numerics),
            _plain(part),
            progress=shown,
            make_runner=make_runner,
        )
        if result.interrupted:
            raise KeyboardInterrupt

    plain = _plain(settings)
    with Store.open(settings.database.url) as store:
        compile = plain.compile
        choose = choose_from(store, target, compile.threads, compile.numerics)
        choice = choose_precisions(graph, plain, target, options, tune, choose, shown.message)
        record_choice(store, choice, Path(model).name, graph, settings, target)
    return choice


def _plain(settings: Settings) -> Settings:
    """The settings with numerics that a graph is compiled under in which the choice is made."""
    compile = settings.compile.model_copy(update={"numerics": "default"})
    return settings.model_copy(update={"compile": compile})
