"""`tune verify`: options in, one call into the module that works, results out."""

from __future__ import annotations

import sys
from typing import Annotated

import typer

from tunefarm.compiler.function_modules import load_modules
from tunefarm.tuner.commands.command_line import prepare, show, tell_of_tiles
from tunefarm.tuner.commands.options import (
    ConfigOption,
    DbOption,
    DenormalsOption,
    FunctionsOption,
    InputOption,
    JsonOption,
    ModelOption,
    NumericsOption,
    ShapeOption,
    ThreadsOption,
    shapes_of,
)

SHOWN = 0.97
"""The share of the recorded speed that the verdict is about where none is required."""


def verify(
    model: ModelOption,
    db: DbOption = None,
    require: Annotated[
        float | None,
        typer.Option(
            min=0.01,
            max=1.0,
            metavar="SHARE",
            help="Exit with 1 unless so much of the recorded speed is left and so much of what was "
            "tuned runs from records (0.97), with 3 if that cannot be judged.",
        ),
    ] = None,
    minutes: Annotated[
        float, typer.Option(min=0.01, max=600.0, metavar="M", help="Most minutes of measuring.")
    ] = 1.0,
    threads: ThreadsOption = None,
    numerics: NumericsOption = None,
    denormals: DenormalsOption = None,
    config: ConfigOption = None,
    shape: ShapeOption = None,
    input: InputOption = None,
    functions: FunctionsOption = None,
    json: JsonOption = None,
) -> None:
    """Measure a model again, and say whether its records still hold on this machine.

    It is built from the records and measured beside its untuned build. Exit codes with --require:
    0 it holds, 1 it has drifted, 2 wrong options, 3 it cannot be judged (too noisy, or nothing is
    recorded to compare with).
    """
    load_modules(functions or ())
    shapes = shapes_of(shape, input)
    from tunefarm.configs.settings import load_settings

    values = {
        "database.url": db,
        "compile.threads": threads,
        "compile.precision": numerics,
        "compile.denormals": denormals,
    }
    settings = load_settings(config, values)
    prepare(settings, config, model, [json])
    from tunefarm.tuner.building.request import BuildRequest
    from tunefarm.tuner.verify.drift import EXIT_CODES
    from tunefarm.tuner.verify.show import (
        history_lines,
        kernel_table,
        verification_lines,
        verification_to_json,
    )
    from tunefarm.tuner.verify.verify import verify_model

    def tell(text: str) -> None:
        print(text, file=sys.stderr)

    found = verify_model(BuildRequest(model, "", settings, shapes), 60.0 * minutes, tell)
    tell_of_tiles(settings)
    asked = SHOWN if require is None else require
    tables = [kernel_table(found.drift)] if found.drift.kernels else []
    lines = [*verification_lines(found, asked), *history_lines(found)]
    show(json, verification_to_json(found, asked), *tables, "\n".join(lines))
    for note in found.notes:
        tell(f"note: {note}")
    if require is not None and (code := EXIT_CODES[found.drift.judge(asked)[0]]):
        raise typer.Exit(code)
