"""The command line: options in, one call into the module that does the work, results out.

Progress goes to stderr, results to stdout. What a command needs is imported when it runs, so that
`tune --help` is quick.
"""

from __future__ import annotations

import sys
from typing import Annotated

import typer

from tunefarm.compiler.function_modules import load_modules
from tunefarm.configs.errors import DatabaseError
from tunefarm.tuner.calibration.options import AUTO
from tunefarm.tuner.commands.bench_cli import bench
from tunefarm.tuner.commands.build_cli import build
from tunefarm.tuner.commands.command_line import prepare, show, tell_of_tiles
from tunefarm.tuner.commands.database_cli import database
from tunefarm.tuner.commands.docs_cli import docs
from tunefarm.tuner.commands.doctor_cli import doctor
from tunefarm.tuner.commands.entry import began, begins
from tunefarm.tuner.commands.farm_cli import farm
from tunefarm.tuner.commands.inspect_cli import inspect
from tunefarm.tuner.commands.jobs_cli import jobs
from tunefarm.tuner.commands.live_cli import add_live_commands
from tunefarm.tuner.commands.next_build import next_build
from tunefarm.tuner.commands.options import (
    ConfigOption,
    DbOption,
    DenormalsOption,
    FunctionsOption,
    InputOption,
    JsonOption,
    MemoryOption,
    MetricsOption,
    NumericsOption,
    PlanOption,
    ShapeOption,
    TargetsOption,
    ThreadsOption,
    TraceOption,
    UsageError,
)
from tunefarm.tuner.commands.precision_options import (
    CalibrationOption,
    LabelsOption,
    MaxErrorOption,
    MaxLossOption,
    MethodOption,
    MetricOption,
)
from tunefarm.tuner.commands.report_cli import report
from tunefarm.tuner.commands.run_cli import run
from tunefarm.tuner.commands.tune_options import tune_options
from tunefarm.tuner.commands.typed_command import to_go_on, typed_command
from tunefarm.tuner.commands.usage import FIRST_STEPS, Workflow
from tunefarm.tuner.commands.verify_cli import verify
from tunefarm.tuner.commands.zoo_cli import zoo
from tunefarm.tuner.interrupt import exit_code, signals_held

app = typer.Typer(
    cls=Workflow,
    invoke_without_command=True,
    rich_markup_mode=None,
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100},
    epilog=f"{FIRST_STEPS} --debug behind any command shows the traceback of an error.",
)
app.add_typer(database, name="db")
app.add_typer(farm, name="farm")
add_live_commands(app)
app.add_typer(jobs, name="jobs")
for _command in (zoo, build, run, bench, report, verify, doctor, inspect, docs):
    app.command()(_command)


@app.callback()
def tune(
    context: typer.Context,
    model: Annotated[str | None, typer.Option(metavar="FILE", help="ONNX model to tune.")] = None,
    db: DbOption = None,
    trials: Annotated[
        int | None, typer.Option(min=1, metavar="N", help="Most trials of the whole job.")
    ] = None,
    minutes: Annotated[
        float | None, typer.Option(min=0.0, metavar="M", help="Most minutes of the whole job.")
    ] = None,
    threads: ThreadsOption = None,
    numerics: NumericsOption = None,
    denormals: DenormalsOption = None,
    targets: TargetsOption = None,
    calibration: CalibrationOption = None,
    calibration_method: MethodOption = None,
    max_error: MaxErrorOption = None,
    metric: MetricOption = None,
    labels: LabelsOption = None,
    max_loss: MaxLossOption = None,
    config: ConfigOption = None,
    seed: Annotated[int | None, typer.Option(min=0, metavar="S", help="Random seed.")] = None,
    plan: PlanOption = None,
    max_memory: MemoryOption = None,
    shape: ShapeOption = None,
    input: InputOption = None,
    functions: FunctionsOption = None,
    address: Annotated[
        str | None, typer.Option(metavar="A", help="Ray cluster to join [default: this machine].")
    ] = None,
    runner: Annotated[
        str | None, typer.Option(metavar="ray|local", help="Who measures the candidates.")
    ] = None,
    trace: TraceOption = None,
    metrics: MetricsOption = None,
    json: JsonOption = None,
) -> None:
    """Tune the kernels of an ONNX model, then say how much faster the model has become."""
    load_modules(functions or ())
    begins()
    started = began()
    name = context.invoked_subcommand
    if name is not None:
        if any(value not in (None, ()) for value in context.params.values()):
            raise UsageError(f"options of '{name}' go behind it: tune {name} --…")
        return
    if model is None:
        raise UsageError("say what to tune: tune --model FILE (or see tune --help)")
    options = tune_options(context.params)
    settings, precision, shapes = options.settings, options.precision, options.shapes
    prepare(settings, config, model, [json, trace, metrics], precision.files())
    command = next_build(model, settings, config, shapes, db, functions or ())
    typed = typed_command(context, settings, started)
    if settings.compile.numerics == AUTO:
        from tunefarm.tuner.commands.auto import choose_and_show

        choose_and_show(model, settings, precision, shapes, json, command, typed, metrics, trace)
        return
    with signals_held():  # libraries start threads
        from tunefarm.tuner.job_request import JobRequest
        from tunefarm.tuner.reports.progress import make_progress
        from tunefarm.tuner.reports.task_table import TaskTable
        from tunefarm.tuner.result import changed_note, summary_lines
        from tunefarm.tuner.search.monitor import Monitor
        from tunefarm.tuner.tune_sizes import tune_sizes

        tell_of_tiles(settings)
    progress = make_progress()
    asked = JobRequest(
        model,
        settings,
        precision,
        shapes,
        progress,
        started=started,
        command=typed,
        monitor=Monitor(metrics=metrics, trace=trace, tell=progress.message),
    )
    result = tune_sizes(asked)
    if result.moved:
        command = next_build(model, settings, config, shapes, result.moved, functions or ())
    show(json, result.to_json(), TaskTable(result.tasks, confirmed=not result.interrupted))
    if result.interrupted:
        if result.changed:
            print(f"note: {changed_note(result.model, result.changed)}", file=sys.stderr)
        again = to_go_on(context, result.job, result.moved)
        print(f"interrupted; all results are kept. To go on: {again}", file=sys.stderr)
        raise typer.Exit(exit_code())
    if json != "-":
        print("\n".join(summary_lines(result, command)))
    if result.lost:
        raise DatabaseError(result.lost)
