"""Jobs for several sizes: `--shape x=batch:1|4|16,…` and buckets of bounds, `seq:1..64|65..512`.

A build has a program for each, whose kernels differ in their extents, or in what they are padded
to. So each is tuned for itself, one after the other, into one database: kernels that do not depend
on the size are known when the next one begins. Trials and minutes are shared out evenly; what one
leaves over is for those after it.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import replace

from tunefarm.configs.settings import Settings
from tunefarm.tuner.building.size_values import programs_of
from tunefarm.tuner.job_request import JobRequest
from tunefarm.tuner.result import SizeResult, TuneResult
from tunefarm.tuner.tune_precisions import tune_with


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
