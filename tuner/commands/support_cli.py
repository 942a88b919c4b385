"""`tune zoo`, `tune doctor`, `tune docs`: a network to try, this machine checked, the
documentation.
"""

from __future__ import annotations

import shlex
import sys
from pathlib import Path
from typing import Annotated

import typer

from tunefarm.tuner.commands.command_files import check_files
from tunefarm.tuner.commands.command_line import show, write_file, write_json
from tunefarm.tuner.commands.completion import network_values, page_values
from tunefarm.tuner.commands.options import (
    ConfigOption,
    DbOption,
    JsonOption,
    OutputOption,
    UsageError,
    argument,
    option,
)
from tunefarm.tuner.reports.terminal import console


def zoo(
    name: Annotated[
        str | None,
        argument("NAME", "A network [default: list all].", autocompletion=network_values),
    ] = None,
    output: OutputOption = None,
    quantized: Annotated[bool, option("--quantized", "Quantize to int8, by onnxruntime.")] = False,
    form: Annotated[
        str, option("--form qdq|qoperator", "Quantization format of --quantized.")
    ] = "qdq",
    dynamic: Annotated[bool, option("--dynamic", "Use dynamic shapes.")] = False,
    json: JsonOption = None,
) -> None:
    """Write a well-known network with seeded random weights as an ONNX file."""
    check_files(writes=[output, json])
    from tunefarm.compiler.frontend.zoo import build_model, dynamic_shapes, model_names, save_model
    from tunefarm.compiler.frontend.zoo.network import Size
    from tunefarm.tuner.commands.engines import QUANTIZED_FORMS, quantized_by_onnxruntime

    if form not in QUANTIZED_FORMS:
        forms = ", ".join(QUANTIZED_FORMS)
        raise UsageError(f"there is no form {form!r} of quantized models: {forms}")
    if name is None:
        listed = [{"name": each, "dynamic_shapes": dynamic_shapes(each)} for each in model_names()]
        show(json, listed, *model_names())
        return
    if output is None:
        if name not in model_names():
            build_model(name)  # says which there are
        raise UsageError(f"no output file is given: tune zoo {name} --output {name}.onnx")
    if quantized and dynamic:
        raise UsageError("--quantized models have no form with dynamic shapes")
    content = build_model(name, size=Size(dynamic=dynamic)).SerializeToString()
    save_model(quantized_by_onnxruntime(content, form) if quantized else content, Path(output))
    shapes = dynamic_shapes(name).items() if dynamic else ()
    bounds = [word for symbol, (text,) in shapes for word in ("--shape", f"{symbol}={text}")]
    command = shlex.join(["tune", output, *bounds, "--config", "quick"])
    show(json, {"name": name, "output": output, "next": command}, output, f"next: {command}")


_WIDTH = 100  # columns of a page, at most


def doctor(
    db: DbOption = None,
    config: ConfigOption = None,
    seconds: Annotated[
        float, option("--seconds S", "Seconds of measuring noise; 0: do not.", min=0.0, max=3600.0)
    ] = 60.0,
    calibrate: Annotated[
        bool,
        option(
            "--calibrate",
            "Instead measure the bandwidths, latencies and rates of this CPU, in about a "
            "minute, for --machine of tune and tune build.",
        ),
    ] = False,
    output: OutputOption = None,
    json: JsonOption = None,
) -> None:
    """Check that this machine, its libraries and your files are ready for tuning, and say how to
    fix what is not.

    Each finding begins with ok, warning or problem; the lines below it say how to fix it. Exits
    with 1 if there is a problem.
    """
    check_files(writes=[output, json])
    if output is not None and not calibrate:
        raise UsageError("--output is the file of --calibrate: give both")
    if calibrate:
        _calibrate(output, json)
        return
    from tunefarm.tuner.doctor.checkup import (
        Finding,
        Grade,
        Question,
        checkup,
        report_json,
        summary,
        worst,
    )

    noise = f", measuring noise for {seconds:g} s" if seconds else ""
    print(f"checking this machine{noise}", file=sys.stderr)
    findings: list[Finding] = []
    for finding in checkup(Question(config, db, seconds)):
        findings.append(finding)
        if json != "-":
            print("\n".join(finding.lines()), flush=True)
    write_json(json, report_json(findings))
    if json != "-":
        print(summary(findings))
    if worst(findings) is Grade.PROBLEM:
        raise typer.Exit(1)


def _calibrate(output: str | None, json: str | None) -> None:
    from tunefarm.compiler.target import host_target
    from tunefarm.configs.settings import MachineFile
    from tunefarm.measure.worker.calibrate import calibrate

    target = host_target()
    print(f"measuring {target.cpu} for about a minute", file=sys.stderr)
    machine = calibrate(target)
    file = MachineFile(version=1, target=target.key, machine=machine)
    if output is not None:
        write_file(output, file.to_toml())
    said = {**file.model_dump(mode="json"), "digest": machine.digest}
    if output is None:
        show(json, said, file.to_toml().rstrip())
    else:
        show(json, said, output, f"next: tune MODEL --machine {shlex.quote(output)}")


def docs(
    page: Annotated[
        str | None,
        argument("PAGE", "A page [default: list all].", autocompletion=page_values),
    ] = None,
    json: JsonOption = None,
) -> None:
    """Read the documentation: a page in the terminal. Needs no network."""
    if page is not None and json is not None:
        raise UsageError("a page and --json exclude each other: give one of them")
    check_files(writes=[json])
    from rich.markdown import Markdown

    from tunefarm.tuner.docs.pages import Pages, find_page

    pages = Pages()
    if page is None:
        width = max(map(len, pages))
        titles = {path: pages.title(path) for path in pages}
        listed = [{"page": path, "title": title} for path, title in titles.items()]
        show(json, listed, *(f"{path:{width}}  {title}" for path, title in titles.items()))
        return
    text = pages[find_page(pages, page)]
    terminal = console()
    terminal.print(Markdown(text, hyperlinks=False), width=min(terminal.width, _WIDTH))
