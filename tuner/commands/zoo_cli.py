"""`tune zoo`: the name of a network in, an ONNX file out."""

from __future__ import annotations

import shlex
from pathlib import Path
from typing import Annotated

import typer

from tunefarm.tuner.commands.command_files import check_files
from tunefarm.tuner.commands.options import UsageError


def zoo(
    name: Annotated[
        str | None,
        typer.Argument(metavar="NAME", help="Which network; all are listed without."),
    ] = None,
    output: Annotated[
        str | None, typer.Option(metavar="FILE", help="Where the ONNX file goes.")
    ] = None,
    quantised: Annotated[
        bool, typer.Option("--quantised", help="In 8 bits, as onnxruntime writes it.")
    ] = False,
    form: Annotated[
        str, typer.Option(metavar="FORM", help="Of --quantised: qdq or qoperator.")
    ] = "qdq",
    dynamic: Annotated[
        bool, typer.Option("--dynamic", help="With sizes that are known at run time only.")
    ] = False,
) -> None:
    """Write a well-known network with seeded random weights as an ONNX file."""
    check_files(writes=[output])
    from tunefarm import compiler
    from tunefarm.compiler.frontend.zoo import build_model, dynamic_shapes, model_names, write_model
    from tunefarm.compiler.frontend.zoo.models import check_form

    check_form(form)
    if name is None:
        print("\n".join(model_names()))
        return
    if output is None:
        if name not in model_names():
            build_model(name)  # says which there are
        raise UsageError(f"say where the file goes: tune zoo {name} --output {name}.onnx")
    prepare = (lambda graph: compiler.build(graph).run) if quantised else None
    write_model(name, Path(output), prepare=prepare, form=form, dynamic=dynamic)
    print(output)
    shapes = dynamic_shapes(name).items() if dynamic else ()
    bounds = [word for symbol, (text,) in shapes for word in ("--shape", f"{symbol}={text}")]
    print(f"next: {shlex.join(['tune', '--model', output, *bounds, '--config', 'quick'])}")
