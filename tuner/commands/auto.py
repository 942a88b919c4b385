"""`tune --numerics auto`: choose a precision for each contraction, and show what was chosen."""

from __future__ import annotations

import sys

import typer

from compiler.types.extents import Shapes
from configs.settings import Settings
from tuner.calibration.options import PrecisionOptions
from tuner.commands.command_line import show
from tuner.interrupt import exit_code, signals_held
from tuner.records.job_command import JobCommand


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
        from tuner.job_request import JobRequest
        from tuner.precision.report import contractions_table, points_table, summary_lines
        from tuner.reports.progress import make_progress
        from tuner.search.monitor import Monitor
        from tuner.tune_precisions import tune_auto
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
