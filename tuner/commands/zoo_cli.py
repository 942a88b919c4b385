"""`tune zoo`: the name of a network in, an ONNX file out."""

from __future__ import annotations

import shlex
from pathlib import Path
from typing import Annotated

import typer

from tunefarm.tuner.commands.command_files import check_files
from tunefarm.tuner.commands.command_line import show
from tunefarm.tuner.commands.options import JsonOption, OutputOption, UsageError


def zoo(
    name: Annotated[
        str | None,
        typer.Argument(metavar="NAME", help="A network [default: list all]."),
    ] = None,
    output: OutputOption = None,
    quantized: Annotated[
        bool, typer.Option("--quantized", help="Quantize to int8, in onnxruntime's format.")
    ] = False,
    form: Annotated[
        str, typer.Option(metavar="qdq|qoperator", help="Quantization format of --quantized.")
    ] = "qdq",
    dynamic: Annotated[bool, typer.Option("--dynamic", help="Use dynamic shapes.")] = False,
    json: JsonOption = None,
) -> None:
    """Write a well-known network with seeded random weights as an ONNX file."""
    check_files(writes=[output, json])
    from tunefarm import compiler
    from tunefarm.compiler.frontend.zoo import build_model, dynamic_shapes, model_names, write_model
    from tunefarm.compiler.frontend.zoo.models import check_form

    check_form(form)
    if name is None:
        listed = [{"name": each, "dynamic_shapes": dynamic_shapes(each)} for each in model_names()]
        show(json, listed, *model_names())
        return
    if output is None:
        if name not in model_names():
            build_model(name)  # says which there are
        raise UsageError(f"no output file is given: tune zoo {name} --output {name}.onnx")
    prepare = (lambda graph: compiler.build(graph).run) if quantized else None
    write_model(name, Path(output), prepare=prepare, form=form, dynamic=dynamic)
    shapes = dynamic_shapes(name).items() if dynamic else ()
    bounds = [word for symbol, (text,) in shapes for word in ("--shape", f"{symbol}={text}")]
    command = shlex.join(["tune", output, *bounds, "--config", "quick"])
    show(json, {"name": name, "output": output, "next": command}, output, f"next: {command}")
