"""The command line: options in, one call into the module that does the work, results out.

Progress goes to stderr, results to stdout. What a command needs is imported when it runs, so that
`tune --help` is quick.
"""

from __future__ import annotations

import shlex
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from compiler.function_modules import load_modules
from tuner.calibration.options import AUTO, PrecisionOptions
from tuner.commands.command_files import check_files
from tuner.commands.command_line import prepare, show, tell_of_tiles
from tuner.commands.database_cli import database
from tuner.commands.docs_cli import docs
from tuner.commands.doctor_cli import doctor
from tuner.commands.entry import began, begins, short_lived
from tuner.commands.farm_cli import farm
from tuner.commands.jobs_cli import jobs
from tuner.commands.live_cli import add_live_commands
from tuner.commands.next_build import next_build
from tuner.commands.options import (
    ConfigOption,
    DbOption,
    DumpOption,
    FunctionsOption,
    JsonOption,
    MemoryOption,
    MetricsOption,
    ModelOption,
    NumericsOption,
    PlanOption,
    ShapeOption,
    TargetsOption,
    ThreadsOption,
    TraceOption,
    UntunedOption,
    UsageError,
    memory_bytes,
    named_values,
    numbers_of,
    shapes_of,
    target_names,
)
from tuner.commands.precision_options import (
    CalibrationOption,
    LabelsOption,
    MaxErrorOption,
    MaxLossOption,
    MethodOption,
    MetricOption,
    PointOption,
)
from tuner.commands.report_cli import report
from tuner.commands.tune_options import tune_options
from tuner.commands.typed_command import to_go_on, typed_command
from tuner.commands.usage import FIRST_STEPS, Workflow
from tuner.commands.verify_cli import verify
from tuner.interrupt import exit_code, signals_held

if TYPE_CHECKING:
    from tuner.commands.bench_sizes import SizedBench

_C_FORMS = ("c-header+shared-library", "object")

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
app.command()(doctor)
app.command()(verify)
app.command()(report)
app.command()(docs)
app.add_typer(jobs, name="jobs")


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
    command = next_build(model, settings, config, shapes, db)
    typed = typed_command(context, settings, started)
    if settings.compile.numerics == AUTO:
        from tuner.commands.auto import choose_and_show

        choose_and_show(model, settings, precision, shapes, json, command, typed, metrics, trace)
        return
    with signals_held():  # libraries start threads
        from tuner.job_request import JobRequest
        from tuner.reports.progress import make_progress
        from tuner.reports.task_table import TaskTable
        from tuner.result import summary_lines
        from tuner.search.monitor import Monitor
        from tuner.tune_sizes import tune_sizes

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
    show(json, result.to_json(), TaskTable(result.tasks, confirmed=not result.interrupted))
    if result.interrupted:
        again = to_go_on(context, result.job)
        print(f"interrupted; all results are kept. To go on: {again}", file=sys.stderr)
        raise typer.Exit(exit_code())
    if json != "-":
        print("\n".join(summary_lines(result, command)))


@app.command()
def build(
    model: ModelOption,
    output: Annotated[str, typer.Option(metavar="PATH", help="Where it goes (for C: a folder).")],
    db: DbOption = None,
    emit: Annotated[
        str,
        typer.Option(
            metavar="FORM",
            help="artefact: for tune run and Python. c-header+shared-library: into a folder, with "
            "an example. object: the same functions and constants to be linked in, its header "
            "beside it. llvm, asm: the code as text, without constants. graph: JSON, of constants "
            "the SHA-256.",
        ),
    ] = "artefact",
    require_tuned: Annotated[
        float,
        typer.Option(
            min=0.0,
            max=1.0,
            metavar="SHARE",
            help="Fail if less of the time runs from records.",
        ),
    ] = 0.0,
    untuned: UntunedOption = False,
    fallback: Annotated[
        bool, typer.Option("--fallback", help="Add a variant for CPUs that cannot run this one.")
    ] = False,
    targets: TargetsOption = None,
    cc: Annotated[
        str | None,
        typer.Option("--cc", metavar="COMPILER", help="C compiler of the target, for C forms."),
    ] = None,
    kernels: Annotated[
        bool, typer.Option("--kernels", help="In C forms export each kernel as a function too.")
    ] = False,
    cache: Annotated[
        bool, typer.Option("--cache/--no-cache", help="Use code that was compiled before.")
    ] = True,
    threads: ThreadsOption = None,
    numerics: NumericsOption = None,
    calibration: CalibrationOption = None,
    calibration_method: MethodOption = None,
    max_error: MaxErrorOption = None,
    point: PointOption = None,
    plan: PlanOption = None,
    max_memory: MemoryOption = None,
    config: ConfigOption = None,
    shape: ShapeOption = None,
    functions: FunctionsOption = None,
    dump_after: DumpOption = None,
    json: JsonOption = None,
) -> None:
    """Build a model from the best records, and list for every kernel what it runs.

    The records are those of --db, which tune --model has written. To build without any:
    tune build --model FILE --untuned --output PATH.
    """
    load_modules(functions or ())
    short_lived()
    shapes = shapes_of(shape)
    if cc is not None and (emit not in _C_FORMS or not cc.strip()):
        raise UsageError(f"--cc names the C compiler of --emit {' or '.join(_C_FORMS)}")
    from tuner.building.model_file import begin_digest

    digest = begin_digest(model)  # while settings are read, and what a build needs is imported
    from configs.settings import load_settings
    from tuner.building.flow import build as build_model
    from tuner.building.report import build_tables
    from tuner.building.request import BuildRequest

    values = {
        "database.url": db,
        "compile.threads": threads,
        "compile.numerics": numerics,
        "compile.targets": target_names(targets),
        "search.plan": plan,
        "limits.memory": memory_bytes(max_memory),
        "cache.enabled": None if cache else False,
    }
    settings = load_settings(config, values)
    precision = PrecisionOptions(calibration, calibration_method, max_error, point=point)
    request = BuildRequest(
        model,
        output,
        settings,
        shapes,
        emit,
        untuned,
        fallback,
        require_tuned,
        dump_after,
        precision=precision,
        compiler=cc,
        kernels=kernels,
    )
    prepare(settings, config, model, [*request.files(), json], precision.files())
    result = build_model(request, digest)
    tell_of_tiles(settings)
    show(json, result.to_json(), *build_tables(result.report, result.programs))
    notes = () if json == "-" else result.notes
    for note in (*notes, *filter(None, [result.not_listed])):
        print(f"note: {note}", file=sys.stderr)
    if json != "-":
        print("\n".join(result.lines()))


@app.command()
def run(
    artefact: Annotated[str, typer.Argument(metavar="FILE", help="Built model.")],
    input: Annotated[
        list[str] | None,
        typer.Option(
            "--input", metavar="NAME=FILE.npy", help="An input (repeatable); else random."
        ),
    ] = None,
    output: Annotated[
        str | None, typer.Option(metavar="FILE.npz", help="Write the outputs there.")
    ] = None,
    repeat: Annotated[
        int | None,
        typer.Option(min=1, metavar="N", help="Timed runs [default: 1, with --profile 20]."),
    ] = None,
    profile: Annotated[
        bool, typer.Option("--profile", help="Also time every kernel by itself.")
    ] = False,
    fallback: Annotated[
        bool, typer.Option("--fallback", help="Run the variant for other CPUs.")
    ] = False,
    threads: ThreadsOption = None,
    shape: Annotated[
        list[str] | None,
        typer.Option(
            "--shape",
            metavar="NAME=2,128",
            help="Where sizes are open, those of a random input, or of a symbol: batch=2 "
            "(repeatable) [default: the middle of the bounds].",
        ),
    ] = None,
    functions: FunctionsOption = None,
    seed: Annotated[int, typer.Option(min=0, metavar="S", help="Seed of random inputs.")] = 0,
    trace: TraceOption = None,
    json: JsonOption = None,
) -> None:
    """Run a built model and time it."""
    load_modules(functions or ())
    shapes = numbers_of(shape)
    files = named_values(input, "--input", "NAME=FILE.npy")
    check_files(writes=[output, trace, json], reads=[artefact, *files.values()])
    import compiler
    from compiler.runtime.array_files import write_outputs
    from tuner.commands.run_model import run_model, run_parts

    executable = compiler.load(artefact, threads, fallback=fallback)
    outputs, result = run_model(
        executable,
        files,
        shapes=shapes,
        repeat=repeat,
        seed=seed,
        profile=profile or trace is not None,
    )
    if trace is not None and result.profile is not None:
        from tuner.commands.run_trace import write_run_trace

        write_run_trace(result.profile, result.model, result.threads, trace)
    if output is not None:
        write_outputs(outputs, output)
    show(json, result.to_json(), *run_parts(result))


@app.command()
def bench(
    model: ModelOption,
    db: DbOption = None,
    against: Annotated[
        str, typer.Option(metavar="ENGINES", help="Separated by commas.")
    ] = "onnxruntime",
    untuned: UntunedOption = False,
    rounds: Annotated[int, typer.Option(min=3, metavar="N", help="Samples of each.")] = 15,
    threads: ThreadsOption = None,
    numerics: NumericsOption = None,
    config: ConfigOption = None,
    shape: ShapeOption = None,
    functions: FunctionsOption = None,
    json: JsonOption = None,
) -> None:
    """Time the built model against other engines in interleaved runs, at several sizes if open."""
    load_modules(functions or ())
    shapes = shapes_of(shape)
    from configs.settings import load_settings

    values = {"database.url": db, "compile.threads": threads, "compile.numerics": numerics}
    settings = load_settings(config, values)
    prepare(settings, config, model, [json])
    from tuner.building.flow import build_loaded
    from tuner.building.request import BuildRequest
    from tuner.commands import bench as benchmark
    from tuner.confirm.latency import LatencyOptions

    engines = benchmark.parse_engines(against)
    request = BuildRequest(model, "", settings, shapes, untuned=untuned)
    ours, built = build_loaded(request)
    options = LatencyOptions(rounds=rounds)
    from tuner.commands.bench_record import record_bench
    from tuner.commands.bench_sizes import bench_sizes, has_sizes, sizes_table

    result: benchmark.BenchResult | SizedBench
    if has_sizes(ours):
        result = sized = bench_sizes(model, ours, engines, options)
        show(json, sized.to_json(), sizes_table(sized))
    else:
        result = fixed = benchmark.bench(model, ours, engines, options)
        show(json, fixed.to_json(), benchmark.bench_table(fixed))
    if not untuned and (note := record_bench(request, built, ours, result)):
        print(f"note: {note}", file=sys.stderr)


@app.command()
def zoo(
    name: Annotated[
        str | None,
        typer.Argument(metavar="NAME", help="Which network; all are listed without."),
    ] = None,
    output: Annotated[
        str | None, typer.Option(metavar="FILE", help="Where the ONNX file goes.")
    ] = None,
    quantised: Annotated[
        bool, typer.Option("--quantised", help="In 8 bits, as onnxruntime writes it.")
    ] = False,
    form: Annotated[
        str, typer.Option(metavar="FORM", help="Of --quantised: qdq or qoperator.")
    ] = "qdq",
    dynamic: Annotated[
        bool, typer.Option("--dynamic", help="With sizes that are known at run time only.")
    ] = False,
) -> None:
    """Write a well-known network with seeded random weights as an ONNX file."""
    check_files(writes=[output])
    import compiler
    from compiler.frontend.zoo import build_model, dynamic_shapes, model_names, write_model
    from compiler.frontend.zoo.models import check_form

    check_form(form)
    if name is None:
        print("\n".join(model_names()))
        return
    if output is None:
        if name not in model_names():
            build_model(name)  # says which there are
        raise UsageError(f"say where the file goes: tune zoo {name} --output {name}.onnx")
    prepare = (lambda graph: compiler.build(graph).run) if quantised else None
    write_model(name, Path(output), prepare=prepare, form=form, dynamic=dynamic)
    print(output)
    shapes = dynamic_shapes(name).items() if dynamic else ()
    bounds = [word for symbol, (text,) in shapes for word in ("--shape", f"{symbol}={text}")]
    print(f"next: {shlex.join(['tune', '--model', output, *bounds, '--config', 'quick'])}")


@app.command()
def inspect(
    model: ModelOption,
    stage: Annotated[
        str, typer.Option(metavar="STAGE", help="graph, plan, kernels, space, loops, llvm or asm.")
    ],
    kernel: Annotated[
        str | None, typer.Option(metavar="K", help="Only this one: its key or its name.")
    ] = None,
    db: DbOption = None,
    threads: ThreadsOption = None,
    numerics: NumericsOption = None,
    config: ConfigOption = None,
    shape: ShapeOption = None,
    functions: FunctionsOption = None,
    dump_after: DumpOption = None,
) -> None:
    """Print a model's program at a stage of the compiler; with --db by the best records."""
    load_modules(functions or ())
    shapes = shapes_of(shape)
    check_files(model=model)
    from configs.settings import load_settings
    from tuner.building.record import open_records
    from tuner.commands.inspect_model import inspect_model

    values = {"database.url": db, "compile.threads": threads, "compile.numerics": numerics}
    settings = load_settings(config, values)
    with open_records(settings.database.url, untuned=db is None) as store:
        text = inspect_model(
            model,
            stage,
            settings,
            kernel=kernel,
            shapes=shapes,
            store=store,
            dump_after=dump_after,
        )
        print(text)
