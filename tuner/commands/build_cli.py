"""`tune build`: options in, a compiled model and a table of its kernels out."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Annotated

import typer

from tunefarm.tuner.building.model_file import begin_digest
from tunefarm.tuner.calibration.options import PrecisionOptions
from tunefarm.tuner.commands.command_files import EMIT, form_of
from tunefarm.tuner.commands.command_line import prepare, report_tiles, show
from tunefarm.tuner.commands.entry import short_lived
from tunefarm.tuner.commands.options import (
    ADVANCED,
    OUTPUT,
    TARGET,
    CalibrationOption,
    DbOption,
    DumpOption,
    JsonOption,
    LayersOption,
    MachineOption,
    MaxErrorOption,
    MemoryOption,
    MethodOption,
    ModelOption,
    PointOption,
    QuietOption,
    TargetsOption,
    UntunedOption,
    UsageError,
    VerboseOption,
    model_command,
    model_shapes,
    option,
    settings_of,
)
from tunefarm.tuner.commands.verbosity import LOG, note, set_verbosity

if TYPE_CHECKING:
    from tunefarm.tuner.building.explain import Explanation

_C_FORMS = ("c", "object")


# Long: one parameter for each option.
@model_command
def build(
    context: typer.Context,
    model: ModelOption,
    output: Annotated[
        str,
        option(
            "--output -o PATH", "Output file (with --emit c or object: output directory).", OUTPUT
        ),
    ],
    db: DbOption = None,
    emit: Annotated[
        str,
        option(
            f"--emit {'|'.join(EMIT)}",
            "artifact: a file for tune run and Python. c: a shared library with a C header "
            "and an example. object: an object file to link, with a C header. llvm, asm: the code "
            "as text, without constants. graph: the graph as JSON, with the SHA-256 of constants.",
            OUTPUT,
        ),
    ] = "artifact",
    require_tuned: Annotated[
        float,
        option(
            "--require-tuned SHARE",
            "Fail if tuned kernels cover less than SHARE (0-1) of the model's estimated run time.",
            ADVANCED,
            min=0.0,
            max=1.0,
        ),
    ] = 0.0,
    accept_nominees: Annotated[
        bool,
        option(
            "--accept-nominees",
            "Also apply records that were not confirmed on this CPU: from another CPU, "
            "version or database.",
            ADVANCED,
        ),
    ] = False,
    require_verified: Annotated[
        bool,
        option(
            "--require-verified",
            "Fail if a kernel has a record that was not confirmed on this CPU (tune verify "
            "--quick does it).",
            ADVANCED,
        ),
    ] = False,
    parent: Annotated[
        str | None,
        option(
            "--parent OLD.tuned",
            "The artifact that this one replaces, by which its manifest names it [default: "
            "the one at --output].",
            OUTPUT,
        ),
    ] = None,
    explain: Annotated[
        bool,
        option(
            "--explain",
            "Print for each kernel which record applies, which ones do not, and why.",
            OUTPUT,
        ),
    ] = False,
    layers: LayersOption = None,
    untuned: UntunedOption = False,
    fallback: Annotated[
        bool, option("--fallback", "Add a variant for CPUs without the target's features.", TARGET)
    ] = False,
    targets: TargetsOption = None,
    machine: MachineOption = None,
    cc: Annotated[
        str | None,
        option("--cc COMPILER", "C compiler for the target, with --emit c or object.", TARGET),
    ] = None,
    cache: Annotated[
        bool, option("--cache/--no-cache", "Reuse code that was compiled before.", ADVANCED)
    ] = True,
    calibration: CalibrationOption = None,
    calibration_method: MethodOption = None,
    max_error: MaxErrorOption = None,
    point: PointOption = None,
    max_memory: MemoryOption = None,
    dump_after: DumpOption = None,
    json: JsonOption = None,
    verbose: VerboseOption = 0,
    quiet: QuietOption = False,
) -> None:
    """Compile a model with the best schedules of the tuning log, and list its kernels.

    The tuning log is the database --db, which tune MODEL writes. Without one the records that come
    with the package are used. To build without any: tune build MODEL --untuned --output PATH.
    """
    set_verbosity(quiet, verbose)
    short_lived()
    began = time.monotonic()
    given = context.params
    shapes = model_shapes(given)
    form = form_of(emit)
    if cc is not None and (form not in map(form_of, _C_FORMS) or not cc.strip()):
        raise UsageError(f"--cc is the C compiler of --emit {' or '.join(_C_FORMS)}")

    digest = begin_digest(model)  # while settings are read, and what a build needs is imported
    from tunefarm.tuner.building.flow import build as build_model
    from tunefarm.tuner.building.report import build_tables
    from tunefarm.tuner.building.request import BuildRequest

    settings, config = settings_of(given), given["config"]
    precision = PrecisionOptions(calibration, calibration_method, max_error, point=point)
    request = BuildRequest(
        model,
        output,
        settings,
        shapes,
        form,
        untuned,
        fallback,
        require_tuned,
        dump_after,
        precision=precision,
        compiler=cc,
        accept_nominees=accept_nominees,
        require_verified=require_verified,
        parent=parent,
    )
    if explain and untuned:
        raise UsageError("--explain is about records: an --untuned build has none")
    prepare(settings, config, model, [*request.files(), json], precision.files())
    result = build_model(request, digest)
    report_tiles(settings)
    why: list[Explanation] = []
    if explain:
        from tunefarm.tuner.building.explain import explain_build
        from tunefarm.tuner.commands.typed_command import next_commands

        commands = next_commands(model, settings, config, shapes, db, given["functions"] or ())
        why = explain_build(request, result, commands)
    value = {**result.to_json(), **({"explained": [e.to_json() for e in why]} if explain else {})}
    show(json, value, *build_tables(result.report, result.programs))
    if why and json != "-" and not quiet:
        print("\n".join(line for item in why for line in item.lines))
    notes = () if json == "-" else result.notes
    for text in (*notes, *filter(None, [result.not_listed])):
        note(text)
    LOG.info("built %s in %.3f s", ", ".join(result.files), time.monotonic() - began)
    if json != "-":
        lines = result.lines()
        print(lines[0 if result.programs else -2] if quiet else "\n".join(lines))
