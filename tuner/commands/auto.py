"""`tune --precision auto`: choose a precision for each matmul/conv, and show the choice."""

from __future__ import annotations

import sys

import typer

from tunefarm.tuner.commands.command_line import show
from tunefarm.tuner.commands.job_progress import JobProgress
from tunefarm.tuner.commands.verbosity import is_quiet
from tunefarm.tuner.interrupt import exit_code, signals_held
from tunefarm.tuner.job_request import JobRequest


def choose_and_show(
    asked: JobRequest, progress: JobProgress, json: str | None, command: str, *, prints: bool
) -> None:
    """Choose, and print a table of each matmul/conv, one of points, and the `command` to type next.

    With `prints` unset, nothing goes to stdout but JSON. Raises TunefarmError.
    """
    with signals_held():  # libraries start threads
        from tunefarm.tuner.precision.report import contractions_table, points_table, summary_lines
        from tunefarm.tuner.tune_precisions import tune_auto
    try:
        choice = tune_auto(asked)
    except KeyboardInterrupt:
        progress.end("interrupted", {})
        print("interrupted; all measurements are kept, no precision is chosen", file=sys.stderr)
        raise typer.Exit(exit_code()) from None
    point = choice.points[choice.chosen]
    progress.end("finished", {"chosen": choice.chosen, "speed_up": 1.0 / point.ratio})
    lines = summary_lines(choice, command)
    parts = contractions_table(choice), points_table(choice), "\n".join(lines)
    show(json, choice.to_json(), *(parts if prints else ()))
    if prints and is_quiet():
        print(lines[0])
