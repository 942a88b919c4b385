"""`tune build`: options in, a built model and what it says of its kernels out."""

from __future__ import annotations

import sys
from typing import Annotated

import typer

from tunefarm.compiler.function_modules import load_modules
from tunefarm.tuner.calibration.options import PrecisionOptions
from tunefarm.tuner.commands.command_line import prepare, show, tell_of_tiles
from tunefarm.tuner.commands.entry import short_lived
from tunefarm.tuner.commands.options import (
    ConfigOption,
    DbOption,
    DenormalsOption,
    DumpOption,
    FunctionsOption,
    InputOption,
    JsonOption,
    MemoryOption,
    ModelOption,
    NumericsOption,
    PlanOption,
    ShapeOption,
    TargetsOption,
    ThreadsOption,
    UntunedOption,
    UsageError,
    memory_bytes,
    shapes_of,
    target_names,
)
from tunefarm.tuner.commands.precision_options import (
    CalibrationOption,
    MaxErrorOption,
    MethodOption,
    PointOption,
)

_C_FORMS = ("c-header+shared-library", "object")


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
    denormals: DenormalsOption = None,
    calibration: CalibrationOption = None,
    calibration_method: MethodOption = None,
    max_error: MaxErrorOption = None,
    point: PointOption = None,
    plan: PlanOption = None,
    max_memory: MemoryOption = None,
    config: ConfigOption = None,
    shape: ShapeOption = None,
    input: InputOption = None,
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
    shapes = shapes_of(shape, input)
    if cc is not None and (emit not in _C_FORMS or not cc.strip()):
        raise UsageError(f"--cc names the C compiler of --emit {' or '.join(_C_FORMS)}")
    from tunefarm.tuner.building.model_file import begin_digest

    digest = begin_digest(model)  # while settings are read, and what a build needs is imported
    from tunefarm.configs.settings import load_settings
    from tunefarm.tuner.building.flow import build as build_model
    from tunefarm.tuner.building.report import build_tables
    from tunefarm.tuner.building.request import BuildRequest

    values = {
        "database.url": db,
        "compile.threads": threads,
        "compile.precision": numerics,
        "compile.denormals": denormals,
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
