"""The options of commands that choose a precision for the model as a whole."""

from __future__ import annotations

from typing import Annotated

import typer

from tunefarm.tuner.commands.options import PRECISION

CalibrationOption = Annotated[
    str | None,
    typer.Option(
        "--calibration",
        metavar="FILE.npz|FOLDER",
        help="Calibration data for int8 and auto: an .npz file with an array for each input, of "
        "the input's shape (one sample), or with another axis in front or a longer first axis "
        "(several samples); or a folder of such files. With dynamic shapes, each file or sample "
        "(0/x, 1/x, ...) may have another size.",
        rich_help_panel=PRECISION,
    ),
]
MethodOption = Annotated[
    str | None,
    typer.Option(
        "--calibration-method",
        metavar="minmax|percentile[:P]|mse",
        help="Calibration range: minmax, of all values; percentile, of the middle P % (default "
        "99.99); mse, with the smallest squared error [default: minmax].",
        rich_help_panel=PRECISION,
    ),
]
MaxErrorOption = Annotated[
    float | None,
    typer.Option(
        "--max-error",
        metavar="E",
        help="For auto, the maximum error of outputs against f32: max|y - f32| / max|f32|.",
        rich_help_panel=PRECISION,
    ),
]
MetricOption = Annotated[
    str | None,
    typer.Option(
        "--metric",
        metavar="FILE.py:FUNCTION",
        help="For auto, FUNCTION(outputs, labels), higher is better, instead of --max-error; "
        "outputs by name, all samples along the first axis.",
        rich_help_panel=PRECISION,
    ),
]
LabelsOption = Annotated[
    str | None,
    typer.Option(
        "--labels",
        metavar="FILE.npy",
        help="Labels for --metric, one for each sample.",
        rich_help_panel=PRECISION,
    ),
]
MaxLossOption = Annotated[
    float | None,
    typer.Option(
        "--max-loss",
        metavar="L",
        help="For auto, the maximum loss of --metric.",
        rich_help_panel=PRECISION,
    ),
]
PointOption = Annotated[
    int | None,
    typer.Option(
        "--point",
        min=0,
        metavar="N",
        help="For auto, use this point of the measured trade-off.",
        rich_help_panel=PRECISION,
    ),
]
