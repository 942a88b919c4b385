"""Jobs whose precision is chosen for the model as a whole: int8 with calibration, and auto.

int8   calibration data -> ranges -> the quantised model, tuned like any other
auto   each uniform precision tuned -> a precision for each contraction (tunefarm.tuner.precision)

What was chosen is recorded, and `tune build` with the same precision builds it.
"""

from __future__ import annotations

import os
import shlex
import time
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from tunefarm.compiler.graph.ir import Graph
from tunefarm.compiler.graph.serialize import structural_hash
from tunefarm.compiler.plan.apply_precisions import apply_precisions, prepare
from tunefarm.compiler.types.numerics import Numerics
from tunefarm.configs.errors import DatabaseError, SettingsError
from tunefarm.configs.settings import Settings
from tunefarm.db.store import Store
from tunefarm.tuner.building.apply_best import choose_from
from tunefarm.tuner.building.lowered import (
    LoweredModel,
    calibrated,
    record_choice,
    recorded_choice,
    wider_note,
)
from tunefarm.tuner.building.size_values import programs_of
from tunefarm.tuner.calibration.choice import PrecisionChoice
from tunefarm.tuner.calibration.options import AUTO, INT8
from tunefarm.tuner.from_settings import target_of
from tunefarm.tuner.job_request import JobRequest
from tunefarm.tuner.precision.choose import choose_precisions
from tunefarm.tuner.result import SizeResult, TuneResult, changed_note
from tunefarm.tuner.tune_model import check_job, read_model, tune_lowered, tune_model


def tune_with(request: JobRequest) -> TuneResult:
    """Tune a model at the settings' precision; with int8 that is the quantised model.

    Raises TunefarmError as `tune_model` does, for calibration data that does not fit the model, and
    for `auto`, of which more comes than a tuned model.
    """
    settings = request.settings
    request.options.check(settings.compile.numerics)
    if settings.compile.numerics == AUTO:
        raise SettingsError("precision auto is a choice, no job", hint="tunefarm.choose makes it")
    if settings.compile.numerics != INT8:
        return tune_model(request)
    check_job(settings)
    graph, request = read_model(request)
    built_from = structural_hash(graph), settings
    lowered = _quantised(request, graph)
    return tune_lowered(replace(request, settings=_plain(settings)), lowered, built_from)


def _quantised(request: JobRequest, graph: Graph) -> LoweredModel:
    """The quantised model; its ranges are of the calibration data, or of the record."""
    settings, options = request.settings, request.options
    target = target_of(settings)
    with Store.open(settings.database.url, leave_damaged=True) as store:
        if options.calibration is None:
            choice = recorded_choice(graph, settings, target, store)
        else:
            choice = calibrated(graph, settings, options, target)
            record_choice(store, choice, Path(request.model).name, graph, settings, target)
            if note := wider_note(graph, choice):
                request.progress.message(note)
    return LoweredModel(*apply_precisions(prepare(graph), choice.plan()))


def tune_auto(request: JobRequest) -> PrecisionChoice:
    """Tune a model in every precision and choose one for each contraction, into the database.

    The trials and minutes of the settings are those of all these jobs together. Raises
    TunefarmError as `tune_model` does, and as `choose_precisions` does; KeyboardInterrupt when it
    is ended early, with all measurements kept and nothing chosen.
    """
    settings, options = request.settings, request.options
    options.check(AUTO)
    options.check_search()
    check_job(settings)
    target = target_of(settings)
    graph, request = read_model(request)

    def tune(lowered: Graph, numerics: Numerics, part: Settings) -> None:
        own = replace(request, settings=_plain(part), started=time.monotonic())
        result = tune_lowered(own, LoweredModel(lowered, numerics))
        if result.interrupted:
            raise KeyboardInterrupt
        if result.moved:
            name, again = settings.database.url, shlex.quote(result.moved)
            raise DatabaseError(
                result.lost or f"{name} was renamed to {result.moved} while it was in use",
                hint=f"nothing is chosen yet; the same command with --db {again} goes on",
            )

    plain = _plain(settings)
    with Store.open(settings.database.url, leave_damaged=True) as store:
        compile = plain.compile
        choose = choose_from(store, target, compile.threads, compile.numerics)
        notify = request.progress.message
        choice = choose_precisions(graph, plain, target, options, tune, choose, notify)
        record_choice(store, choice, Path(request.model).name, graph, settings, target)
    if request.stamp is not None and (difference := request.stamp.difference()):
        notify(changed_note(os.fspath(request.model), difference))
    return choice


def _plain(settings: Settings) -> Settings:
    """The settings with the precision that a graph is compiled with in which the choice is made."""
    compile = settings.compile.model_copy(update={"numerics": "default"})
    return settings.model_copy(update={"compile": compile})


# Jobs for several sizes: `--shape x=batch:1|4|16,…` and buckets of bounds, `seq:1..64|65..512`.


def tune_sizes(request: JobRequest) -> TuneResult:
    """As `tune_with`, for each program that the shapes ask for. Raises TunefarmError as it does."""
    programs = programs_of(request.shapes or {})
    if len(programs) == 1:
        return tune_with(request)
    results: list[TuneResult] = []
    text: list[SizeResult] = []
    for number, item in enumerate(programs):
        request.progress.message(f"{item} ({number + 1} of {len(programs)})")
        now = time.monotonic()
        measured = sum(result.measured for result in results)
        left = len(programs) - number
        settings = _part(request.settings, left, measured, now - request.started)
        options = replace(request.options, several=True)
        part = replace(request, settings=settings, options=options, shapes=item.shapes, started=now)
        result = tune_with(part)
        if result.moved:
            moved = request.settings.database.model_copy(update={"url": result.moved})
            settings = request.settings.model_copy(update={"database": moved})
            request = replace(request, settings=settings)
        results.append(result)
        text.append(SizeResult(str(item), result.latency))
        if result.interrupted:
            break
    return _joined(results, text, time.monotonic() - request.started)


def _part(settings: Settings, left: int, measured: int, elapsed: float) -> Settings:
    """The settings of the next of so many jobs that are left."""
    search = settings.search
    changes: dict[str, object] = {}
    if search.total_trials is not None:
        changes["total_trials"] = max(1, (search.total_trials - measured) // left)
    if search.minutes is not None:
        changes["minutes"] = max(0.01, (search.minutes - elapsed / 60.0) / left)
    return settings.model_copy(update={"search": search.model_copy(update=changes)})


def _joined(
    results: Sequence[TuneResult], sizes: Sequence[SizeResult], seconds: float
) -> TuneResult:
    """One result of all: of a kernel that several sizes have, what the last one says."""
    tasks = {(task.key, task.target): task for result in results for task in result.tasks}
    return replace(
        results[-1],
        measured=sum(result.measured for result in results),
        seconds=seconds,
        tasks=tuple(tasks.values()),
        known=results[0].known,
        sizes=tuple(sizes),
        moved=next((result.moved for result in reversed(results) if result.moved), ""),
        lost=next((result.lost for result in reversed(results) if result.lost), ""),
    )
