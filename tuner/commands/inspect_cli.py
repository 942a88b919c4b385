"""`tune inspect`: a model in, its program at a stage of the compiler out."""

from __future__ import annotations

from typing import Annotated

import typer

from tunefarm.tuner.building.model_file import other_file
from tunefarm.tuner.commands.command_files import check_files
from tunefarm.tuner.commands.command_line import show
from tunefarm.tuner.commands.options import (
    OUTPUT,
    DbOption,
    DumpOption,
    JsonOption,
    ModelOption,
    UsageError,
    model_command,
    model_shapes,
    option,
    settings_of,
)
from tunefarm.tuner.commands.verbosity import note

_STAGES = "graph|kernels|space|loops|shares|llvm|asm|variants"
VARIANTS = "variants"
"""The stage of artifacts."""


# Long: one parameter for each option.
@model_command
def inspect(
    context: typer.Context,
    model: ModelOption,
    stage: Annotated[
        str,
        option(
            f"--stage {_STAGES}",
            "What to print: the graph, the kernels, their schedule spaces, how evenly "
            "threads share loops, or the code as loops, LLVM IR or assembly. "
            "variants, of an artifact: what it holds for each CPU.",
            OUTPUT,
        ),
    ],
    kernel: Annotated[
        str | None, option("--kernel KERNEL", "Only this kernel, by key, name or node.", OUTPUT)
    ] = None,
    db: DbOption = None,
    dump_after: DumpOption = None,
    json: JsonOption = None,
) -> None:
    """Print a model's program at a stage of the compiler; with --db for the best schedules.

    With --stage variants MODEL is an artifact: print what it holds for each CPU, which CPU loads
    what, and whether each variant that runs on this CPU computes the same. Exit with 1 if not.
    """
    if stage == VARIANTS:
        taken = ("context", "model", "stage", "functions", "json")
        given = (value for name, value in context.params.items() if name not in taken)
        if any(given):
            raise UsageError("--stage variants takes an artifact, --functions and --json only")
        _print_variants(model, json)
        return
    if json is not None:
        raise UsageError("--json is for --stage variants: other stages are programs, as text")
    shapes = model_shapes(context.params)
    check_files(model=model)
    from tunefarm.tuner.building.record import open_records
    from tunefarm.tuner.commands.inspect_model import inspect_model
    from tunefarm.tuner.records.unapplied import damaged

    settings = settings_of(context.params)
    with open_records(() if db is None else (settings.database.url,)) as store:
        text = inspect_model(
            model, stage, settings, kernel=kernel, shapes=shapes, store=store, dump_after=dump_after
        )
        print(text)
        left_out = () if store is None else damaged(store, ())
        for reason in (*other_file(store, model), *left_out):
            note(str(reason))


def _print_variants(artifact: str, json: str | None) -> None:
    """What an artifact holds for each CPU."""
    check_files(writes=[json], reads=[artifact])
    from tunefarm.tuner.commands.inspect_variants import inspect_variants

    report = inspect_variants(artifact)
    show(json, report.to_json(), report.table(), "\n".join(report.lines()))
    if report.has_failed:
        raise typer.Exit(1)
