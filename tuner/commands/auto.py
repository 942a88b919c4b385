"""`tune --numerics auto`: choose a precision for each contraction, and show what was chosen."""

from __future__ import annotations

import sys

import typer

from tunefarm.compiler.types.extents import Shapes
from tunefarm.configs.settings import Settings
from tunefarm.tuner.calibration.options import PrecisionOptions
from tunefarm.tuner.commands.command_line import show
from tunefarm.tuner.interrupt import exit_code, signals_held
from tunefarm.tuner.records.job_command import JobCommand


def choose_and_show(
    model: str,
    settings: Settings,
    options: PrecisionOptions,
    shapes: Shapes,
    json: str | None,
    command: str,
    typed: JobCommand,
    metrics: str | None,
    trace: str | None,
) -> None:
    """Choose, and print a table of contractions, one of points, and the `command` to type next.

    What was `typed` is kept with the jobs; `metrics` and `trace` are files about them. Raises
    TunefarmError.
    """
    with signals_held():  # libraries start threads
        from tunefarm.tuner.job_request import JobRequest
        from tunefarm.tuner.precision.report import contractions_table, points_table, summary_lines
        from tunefarm.tuner.reports.progress import make_progress
        from tunefarm.tuner.search.monitor import Monitor
        from tunefarm.tuner.tune_precisions import tune_auto
    progress = make_progress()
    monitor = Monitor(metrics=metrics, trace=trace, tell=progress.message)
    asked = JobRequest(model, settings, options, shapes, progress, command=typed, monitor=monitor)
    try:
        choice = tune_auto(asked)
    except KeyboardInterrupt:
        print("interrupted; all measurements are kept, nothing is chosen", file=sys.stderr)
        raise typer.Exit(exit_code()) from None
    lines = summary_lines(choice, command)
    show(json, choice.to_json(), contractions_table(choice), points_table(choice), "\n".join(lines))
