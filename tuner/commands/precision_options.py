"""The options of commands whose numerics are chosen for the model as a whole."""

from __future__ import annotations

from typing import Annotated

import typer

CalibrationOption = Annotated[
    str | None,
    typer.Option(
        "--calibration",
        metavar="FILE.npz|FOLDER",
        help="Data for int8 and auto: .npz with an array for each input, of the input's own shape "
        "(one sample), with one more axis in front or a longer first axis (several); a folder: "
        "all its .npz. Where sizes are open, each file or sample (0/x, 1/x, ...) has its own.",
    ),
]
MethodOption = Annotated[
    str | None,
    typer.Option(
        "--calibration-method",
        metavar="METHOD",
        help="minmax: all values are kept. percentile[:99.99]: the middle of them. mse: what errs "
        "least. [default: minmax]",
    ),
]
MaxErrorOption = Annotated[
    float | None,
    typer.Option(
        "--max-error",
        metavar="E",
        help="auto: most that outputs may differ from f32, max|y - f32| / max|f32|.",
    ),
]
MetricOption = Annotated[
    str | None,
    typer.Option(
        "--metric",
        metavar="FILE.py:FUNCTION",
        help="auto: FUNCTION(outputs, labels), larger is better, in the place of --max-error; "
        "outputs by name, all samples along the first axis.",
    ),
]
LabelsOption = Annotated[
    str | None,
    typer.Option("--labels", metavar="FILE.npy", help="The metric's labels, sample by sample."),
]
MaxLossOption = Annotated[
    float | None,
    typer.Option("--max-loss", metavar="L", help="auto: most that the metric may lose."),
]
PointOption = Annotated[
    int | None,
    typer.Option("--point", min=0, metavar="N", help="auto: this point of what was measured."),
]
