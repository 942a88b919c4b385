"""`tune verify`: options in, one call into the module that works, results out."""

from __future__ import annotations

import sys
from typing import Annotated

import typer

from tunefarm.tuner.commands.command_files import check_files
from tunefarm.tuner.commands.command_line import prepare, report_tiles, show
from tunefarm.tuner.commands.options import (
    ADVANCED,
    DbOption,
    JsonOption,
    LayersOption,
    ModelOption,
    TargetsOption,
    UsageError,
    model_command,
    model_shapes,
    option,
    settings_of,
)
from tunefarm.tuner.commands.verbosity import note

SHOWN = 0.97
"""The share of the recorded speed that the verdict is about where none is required."""


# Long: one parameter for each option.
@model_command
def verify(
    context: typer.Context,
    model: ModelOption,
    db: DbOption = None,
    require: Annotated[
        float | None,
        option(
            "--require SHARE",
            "Exit with 1 if the model has less than SHARE (0.97: 97 %) of its recorded speed, "
            "or if tuned kernels cover less than that of what was tuned; with 3 if the measurement "
            "cannot decide.",
            ADVANCED,
            min=0.01,
            max=1.0,
        ),
    ] = None,
    against: Annotated[
        str | None,
        option(
            "--against OLD.tuned",
            "Compare the artifact MODEL with this one, which it is to replace: outputs, then "
            "latency. Exit with 1 if outputs differ or MODEL is slower.",
        ),
    ] = None,
    inputs: Annotated[
        str | None,
        option(
            "--inputs FILE.npz|FOLDER",
            "With --against, the inputs to compare with, in the form of --calibration "
            "[default: random values].",
        ),
    ] = None,
    most_minutes: Annotated[
        float | None,
        option(
            "--minutes M",
            "Maximum minutes of measuring [default: 1; with --against 10, of which it takes "
            "what its interval needs to decide].",
            ADVANCED,
            min=0.01,
            max=600.0,
        ),
    ] = None,
    quick: Annotated[
        bool,
        option(
            "--quick",
            "Only measure records from elsewhere (another CPU, version or database) against "
            "the default schedules, and record which ones apply here.",
        ),
    ] = False,
    layers: LayersOption = None,
    targets: TargetsOption = None,
    json: JsonOption = None,
) -> None:
    """Check for a performance regression: measure a tuned model again on this machine.

    The tuned build runs interleaved with the untuned one. Exit codes with --require: 0 as fast as
    recorded, 1 slower, 2 wrong options, 3 undecided (too noisy, or nothing recorded to compare
    with). With --against, MODEL and OLD.tuned are artifacts, and no database is read: 0 passed, 1
    outputs differ or slower, 3 undecided.

    With --quick only kernels with nominees are measured, which takes seconds.
    """
    if quick and require is not None:
        raise UsageError("--require is about the recorded speed, --quick about single records")
    if against is not None or inputs is not None:
        taken = ("model", "against", "inputs", "most_minutes", "threads", "functions", "json")
        given = (value for name, value in context.params.items() if name not in taken)
        if against is None or any(given):
            raise UsageError(
                "verify --against OLD.tuned NEW.tuned takes --inputs, --minutes, --threads, "
                "--functions and --json only, and --inputs needs --against"
            )
        _verify_against(against, model, inputs, most_minutes, context.params["threads"], json)
        return
    shapes, settings = model_shapes(context.params), settings_of(context.params)
    if len(settings.compile.targets) > 1:
        raise UsageError("one target is verified at a time: name one with --targets")
    prepare(settings, context.params["config"], model, [json])
    from tunefarm.tuner.building.request import BuildRequest
    from tunefarm.tuner.verify.drift import EXIT_CODES
    from tunefarm.tuner.verify.quick import verify_quick
    from tunefarm.tuner.verify.show import (
        check_lines,
        check_table,
        check_to_json,
        kernel_table,
        verification_lines,
        verification_to_json,
    )
    from tunefarm.tuner.verify.verify import verify_model

    def notify(text: str) -> None:
        print(text, file=sys.stderr)

    request = BuildRequest(model, "", settings, shapes)
    if quick:
        check = verify_quick(request, notify)
        tables = [check_table(check)] if check.met else []
        show(json, check_to_json(check), *tables, "\n".join(check_lines(check)))
        return
    found = verify_model(request, 60.0 * (most_minutes or 1.0), notify)
    report_tiles(settings)
    asked = SHOWN if require is None else require
    tables = [kernel_table(found.drift)] if found.drift.kernels else []
    lines = "\n".join(verification_lines(found, asked))
    show(json, verification_to_json(found, asked), *tables, lines)
    for text in found.notes:
        note(text)
    if require is not None and (code := EXIT_CODES[found.drift.judge(asked)[0]]):
        raise typer.Exit(code)


def _verify_against(
    old: str,
    new: str,
    inputs: str | None,
    minutes: float | None,
    threads: int | None,
    json: str | None,
) -> None:
    """A new artifact next to the one that it is to replace."""
    check_files(writes=[json], reads=[old, new])
    from tunefarm.tuner.verify.canary import (
        EXIT_CODES,
        LIMIT_SECONDS,
        canary_lines,
        compare_artifacts,
    )

    seconds = LIMIT_SECONDS if minutes is None else 60.0 * minutes
    found = compare_artifacts(old, new, inputs, seconds, threads)
    show(json, found.to_json(), "\n".join(canary_lines(found)))
    if code := EXIT_CODES[found.verdict]:
        raise typer.Exit(code)
