"""The options of `tune`, as they are typed and as its jobs take them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, cast

import typer

from tunefarm.compiler.types.extents import Shapes
from tunefarm.tuner.calibration.options import PrecisionOptions
from tunefarm.tuner.commands.options import (
    UsageError,
    memory_bytes,
    precision_of,
    shapes_of,
    target_names,
)

MOST_GAIN = 1000.0
"""Of `search.target_gain`: what is more is a mistake."""

if TYPE_CHECKING:
    from tunefarm.configs.settings import Settings


@dataclass(frozen=True, slots=True)
class TuneOptions:
    """What a job is asked by options; a model may be missing."""

    model: str | None
    settings: Settings
    precision: PrecisionOptions
    shapes: Shapes


def tune_options(given: Mapping[str, Any]) -> TuneOptions:
    """The options by their names in Python, as `tune` takes them.

    Raises UsageError and SettingsError for values that make no sense, alone or together.
    """
    shapes = shapes_of(given["shape"], given["input"])
    from tunefarm.configs.settings import load_settings

    values = {
        "database.url": given["db"],
        "compile.threads": given["threads"],
        "compile.precision": precision_of(given["numerics"], given["deterministic"]),
        "compile.denormals": given["denormals"],
        "compile.targets": target_names(given["targets"]),
        "compile.machine": given["machine"],
        "search.total_trials": given["trials"],
        "search.minutes": given["minutes"],
        "search.target_gain": _target_gain(given["target_gain"]),
        "search.seed": given["seed"],
        "search.plan": given["plan"],
        "limits.memory": memory_bytes(given["max_memory"]),
        "measure.runner": given["runner"],
        "measure.address": given["address"],
    }
    settings = load_settings(given["config"], values)
    precision = PrecisionOptions(
        given["calibration"],
        given["calibration_method"],
        given["max_error"],
        given["metric"],
        given["labels"],
        given["max_loss"],
    )
    precision.check(settings.compile.numerics)
    return TuneOptions(given["model"], settings, precision, shapes)


def _target_gain(speed_up: float | None) -> float | None:
    if speed_up is not None and not 1.0 < speed_up <= MOST_GAIN:
        raise UsageError(
            f"--target-gain is a speed-up above 1 and up to {MOST_GAIN:g}, as in 1.10 for 10 % "
            f"faster, not {speed_up:g}"
        )
    return speed_up


def parsed_tune(arguments: Sequence[str]) -> typer.Context:
    """The context in which `tune` would run with these arguments: its options are the `params`.

    Raises UsageError for what it would refuse, and for anything that is no option.
    """
    from tunefarm.tuner.commands.cli import app

    command = typer.main.get_command(app)
    with command.make_context("tune", list(arguments), resilient_parsing=True) as context:
        _, rest, _ = command.make_parser(context).parse_args(list(arguments))
    if rest:
        raise UsageError(f"{rest[0]!r} is not an option of tune (see tune --help)")
    with command.make_context("tune", list(arguments)) as context:
        return cast(typer.Context, context)
