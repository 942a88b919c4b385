"""The command line: options in, one call into the module that does the work, results out.

Progress goes to stderr, results to stdout. What a command needs is imported when it runs, so that
`tune --help` is quick.
"""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Annotated, Any

import typer

from tunefarm.configs.errors import DatabaseError
from tunefarm.tuner.calibration.options import AUTO
from tunefarm.tuner.commands.build_cli import build
from tunefarm.tuner.commands.command_line import prepare, report_tiles, show
from tunefarm.tuner.commands.database_cli import database
from tunefarm.tuner.commands.entry import began, begins
from tunefarm.tuner.commands.farm_cli import farm
from tunefarm.tuner.commands.inspect_cli import inspect
from tunefarm.tuner.commands.jobs_cli import jobs
from tunefarm.tuner.commands.live_cli import add_live_commands, report
from tunefarm.tuner.commands.options import (
    ADVANCED,
    MODEL,
    OUTPUT,
    SEARCH,
    CalibrationOption,
    DbOption,
    JsonOption,
    LabelsOption,
    MachineOption,
    MaxErrorOption,
    MaxLossOption,
    MemoryOption,
    MethodOption,
    MetricOption,
    QuietOption,
    TargetsOption,
    UsageError,
    VerboseOption,
    model_command,
    option,
    tune_options,
)
from tunefarm.tuner.commands.run_cli import bench, generate, run
from tunefarm.tuner.commands.support_cli import docs, doctor, zoo
from tunefarm.tuner.commands.typed_command import next_build, to_go_on, typed_command
from tunefarm.tuner.commands.usage import FIRST_STEPS, Command, Workflow
from tunefarm.tuner.commands.verbosity import is_quiet, note, set_verbosity
from tunefarm.tuner.commands.verify_cli import verify
from tunefarm.tuner.interrupt import exit_code, signals_held

if TYPE_CHECKING:
    from tunefarm.tuner.commands.job_progress import JobProgress
    from tunefarm.tuner.job_request import JobRequest
    from tunefarm.tuner.result import TuneResult

app = typer.Typer(
    cls=Workflow,
    invoke_without_command=True,
    rich_markup_mode=None,
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100},
    epilog=f"{FIRST_STEPS} --debug after any command shows the traceback of an error.",
)
app.add_typer(database, name="db")
app.add_typer(farm, name="farm")
add_live_commands(app)
app.add_typer(jobs, name="jobs")
for _command in (zoo, build, run, generate, bench, report, verify, doctor, inspect, docs):
    app.command(cls=Command)(_command)


def _print_version(asked: bool) -> None:
    if asked:
        from importlib.metadata import version

        print(f"tunefarm {version('tunefarm')}")
        raise typer.Exit


# Long: one parameter for each option.
@app.callback()
@model_command
def tune(
    context: typer.Context,
    model: Annotated[
        str | None, option("--model FILE", "ONNX model to tune, the same as MODEL.", MODEL)
    ] = None,
    db: DbOption = None,
    trials: Annotated[
        int | None,
        option("--trials N", "Maximum number of trials of the whole job.", SEARCH, min=1),
    ] = None,
    minutes: Annotated[
        float | None, option("--minutes M", "Maximum minutes of the whole job.", SEARCH, min=0.0)
    ] = None,
    target_gain: Annotated[
        float | None,
        option(
            "--target-gain X",
            "Stop at a confirmed speed-up of the whole model (1.10: 10 % faster).",
            SEARCH,
        ),
    ] = None,
    targets: TargetsOption = None,
    machine: MachineOption = None,
    calibration: CalibrationOption = None,
    calibration_method: MethodOption = None,
    max_error: MaxErrorOption = None,
    metric: MetricOption = None,
    labels: LabelsOption = None,
    max_loss: MaxLossOption = None,
    seed: Annotated[int | None, option("--seed S", "Random seed.", SEARCH, min=0)] = None,
    max_memory: MemoryOption = None,
    address: Annotated[
        str | None,
        option(
            "--address HOST:PORT", "Ray cluster to measure on [default: this machine].", ADVANCED
        ),
    ] = None,
    runner: Annotated[
        str | None,
        option(
            "--runner ray|local",
            "Measure candidates with Ray, or in processes of this command [default: ray].",
            ADVANCED,
        ),
    ] = None,
    json: JsonOption = None,
    json_progress: Annotated[
        str | None,
        option(
            "--json-progress FILE",
            "Write progress as it happens, one JSON object a line (-: to stdout).",
            OUTPUT,
        ),
    ] = None,
    verbose: VerboseOption = 0,
    quiet: QuietOption = False,
    version: Annotated[
        bool,
        option(
            "--version", "Print the version of tunefarm.", callback=_print_version, is_eager=True
        ),
    ] = False,
) -> None:
    """Tune the kernels of an ONNX model, and print how much faster the model has become.

    A command of that name goes before a file: tune ./build tunes a file that is called build.
    """
    begins()
    started = began()
    name = context.invoked_subcommand
    if name is not None:
        if any(_is_typed(context, option) for option in context.params):
            raise UsageError(f"options of '{name}' go after it: tune {name} --…")
        return
    if model is None:
        raise UsageError("no model is given: type tune MODEL.onnx (or see tune --help)")
    if json == json_progress == "-":
        raise UsageError("--json and --json-progress cannot both write to stdout")
    set_verbosity(quiet, verbose)
    options = tune_options(context.params)
    settings, shapes, config = options.settings, options.shapes, context.params["config"]
    functions = context.params["functions"] or ()
    prepare(settings, config, model, [json, json_progress], options.precision.files())
    command = next_build(model, settings, config, shapes, db, functions)
    typed = typed_command(context, settings, started)
    with signals_held():  # libraries start threads
        from tunefarm.tuner.commands.job_progress import job_progress
        from tunefarm.tuner.job_request import JobRequest

    prints = "-" not in (json, json_progress)
    with job_progress(json_progress) as progress:
        asked = JobRequest(
            model, settings, options.precision, shapes, progress, started=started, command=typed
        )
        if settings.compile.numerics == AUTO:
            _choose_and_show(asked, progress, json, command, prints=prints)
            return
        with signals_held():
            from tunefarm.tuner.reports.task_table import TaskTable
            from tunefarm.tuner.result import changed_note, result_line, summary_lines
            from tunefarm.tuner.tune_precisions import tune_sizes

            report_tiles(settings)
        result = tune_sizes(asked)
        progress.end("interrupted" if result.interrupted else "finished", _end_of(result))
    if result.moved:
        command = next_build(model, settings, config, shapes, result.moved, functions)
    table = TaskTable(result.tasks, confirmed=not result.interrupted)
    show(json, result.to_json(), *([table] if prints else []))
    if result.interrupted:
        if result.changed:
            note(changed_note(result.model, result.changed))
        again = to_go_on(context, result.job, result.moved)
        print(f"interrupted; all results are kept. To continue: {again}", file=sys.stderr)
        raise typer.Exit(exit_code())
    if prints:
        print(result_line(result) if quiet else "\n".join(summary_lines(result, command)))
    if result.lost:
        raise DatabaseError(result.lost)


def _is_typed(context: typer.Context, option: str) -> bool:
    """Whether an option stood on the command line."""
    source = context.get_parameter_source(option)
    return source is not None and source.name == "COMMANDLINE"


def _end_of(result: TuneResult) -> dict[str, Any]:
    """What the last line of `--json-progress` has of a job, by the names that `--json` has."""
    gain = result.gain
    return {
        "job": result.job,
        "measured": result.measured,
        "untuned_seconds": gain.untuned if gain.is_known else None,
        "tuned_seconds": gain.tuned if gain.is_known else None,
        **result.to_json()["search"],
    }


def _choose_and_show(
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
