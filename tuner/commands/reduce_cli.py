"""`tune reduce`: a model that fails in, the smallest part of it that still fails out."""

from __future__ import annotations

import os
import re
import shlex
import shutil
import sys
from typing import Annotated

from tunefarm.compiler.function_modules import load_modules
from tunefarm.compiler.types.extents import shapes_to_json
from tunefarm.compiler.types.numerics import Numerics
from tunefarm.tuner.commands.command_files import check_files
from tunefarm.tuner.commands.command_line import show
from tunefarm.tuner.commands.options import (
    INPUT_FORM,
    FunctionsOption,
    JsonOption,
    ShapeOption,
    ThreadsOption,
    UsageError,
    argument,
    files_of,
    named_values,
    option,
    shapes_of,
)

_CHECKS = ("onnxruntime", "reference", "build", "stages")
_FUNCTION = re.compile(r"(.+\.py):\w+")


# Long: one parameter for each option.
def reduce(
    model: Annotated[str, argument("MODEL", "ONNX model that fails.")],
    check: Annotated[
        str,
        option(
            "--check CHECK",
            "onnxruntime, reference: the outputs differ from those of onnxruntime, of ONNX's "
            "reference evaluator. build: the build fails. stages: graph optimization changes the "
            "result. Or FILE.py:FUNCTION, which gets the model's path and its inputs and returns "
            "True, or a command, which gets both files and exits with 0, if the model still fails.",
        ),
    ],
    output: Annotated[
        str | None, option("--output -o FILE", "Reduced model [default: MODEL_reduced.onnx].")
    ] = None,
    input: Annotated[
        list[str] | None,
        option(
            "--input NAME=VALUE|NAME=FILE.npy|FILE.npz",
            "An input, or several of them (repeatable); others are random.",
        ),
    ] = None,
    shape: ShapeOption = None,
    tolerance: Annotated[
        float,
        option(
            "--tolerance T",
            "Outputs differ from here on: maximum error over maximum value.",
            min=0.0,
        ),
    ] = 1e-3,
    seconds: Annotated[float, option("--seconds S", "Maximum time of one check.", min=1.0)] = 300.0,
    db: Annotated[
        str | None, option("--db FILE|URL", "Build with the schedules of this database.")
    ] = None,
    threads: ThreadsOption = None,
    precision: Annotated[
        str, option("--precision NAME", "Of the build: strict, default, bf16 or fp16.")
    ] = "default",
    functions: FunctionsOption = None,
    json: JsonOption = None,
) -> None:
    """Reduce a model that fails a check to the smallest part that still fails.

    Writes that part and, next to it, its inputs (.npz). Exits with 1 if the model does not fail.
    """
    load_modules(functions or ())
    shapes, numerics = shapes_of(shape), Numerics.of(precision).name
    check = _known(check)
    archives = [text for text in input or () if "=" not in text and text.endswith(".npz")]
    if len(archives) > 1:
        raise UsageError(f"--input {archives[1]}: give one .npz file")
    single = [text for text in input or () if text not in archives]
    given = named_values(single, "--input", f"{INPUT_FORM}, or FILE.npz")
    from tunefarm.tuner.commands.reduce_check import Check
    from tunefarm.tuner.commands.reduce_model import ReduceRequest, default_outputs, reduce_model

    outputs = default_outputs(model, output)
    check_files(writes=[*outputs, json], reads=[*archives, *files_of(given)], model=model)
    request = ReduceRequest(
        model,
        Check(check, tolerance, threads or 1, numerics, db, shapes_to_json(shapes)),
        *outputs,
        arrays=archives[0] if archives else "",
        given=given,
        seconds=seconds,
    )
    found = reduce_model(request, lambda text: print(text, file=sys.stderr))
    again = ["tune", "reduce", found.model, "--check", check, "--input", found.inputs]
    given = {"--tolerance": tolerance, "--threads": threads, "--db": db, "--precision": precision}
    usual = {"--tolerance": 1e-3, "--precision": "default"}
    for name, value in given.items():
        if value is not None and value != usual.get(name):
            again += [name, str(value)]
    again += [word for text in shape or () for word in ("--shape", text)]
    again += [word for text in functions or () for word in ("--functions", text)]
    lines = [
        f"{found.model}: {len(found.nodes)} of {found.nodes_before} nodes still fail "
        f"({found.checks} checks): {found.text}",
        f"nodes: {', '.join(found.nodes)}",
        f"inputs: {found.inputs}",
        f"to reproduce: {shlex.join(again)}",
    ]
    show(json, found.to_json(), "\n".join(lines))


def _known(check: str) -> str:
    """The check, its file or program being there. Raises UsageError."""
    if check in _CHECKS:
        return check
    if found := _FUNCTION.fullmatch(check):
        if os.path.isfile(found[1]):
            return check
        raise UsageError(f"--check {check}: there is no file {found[1]}")
    try:
        words = shlex.split(check)
    except ValueError as error:
        raise UsageError(f"--check {check}: {error}") from None
    if words and shutil.which(words[0]):
        return check
    known = ", ".join(_CHECKS)
    raise UsageError(f"--check {check}: give {known}, FILE.py:FUNCTION or a command")
