"""`tune bench`: a model and other engines in, the latency of each out."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Annotated

import typer

from tunefarm.tuner.commands.command_line import prepare, show
from tunefarm.tuner.commands.options import (
    ADVANCED,
    DETERMINISTIC,
    MODEL,
    DbOption,
    JsonOption,
    ModelOption,
    QuietOption,
    UntunedOption,
    VerboseOption,
    model_command,
    model_shapes,
    option,
    settings_of,
)
from tunefarm.tuner.commands.verbosity import LOG, note, set_verbosity

if TYPE_CHECKING:
    from tunefarm.compiler.runtime.execution.executable import Executable
    from tunefarm.tuner.building.request import BuildRequest
    from tunefarm.tuner.commands.bench import SizedBench


def default_build(request: BuildRequest) -> Executable | None:
    """The build of the default precision, which a deterministic one is compared with."""
    from tunefarm.tuner.building.flow import build_loaded

    settings = request.settings
    if settings.compile.numerics != DETERMINISTIC:
        return None
    compile = settings.compile.model_copy(update={"numerics": "default"})
    changed = settings.model_copy(update={"compile": compile})
    return build_loaded(replace(request, settings=changed))[0]


# Long: one parameter for each option.
@model_command
def bench(
    context: typer.Context,
    model: ModelOption,
    db: DbOption = None,
    against: Annotated[
        str,
        option(
            "--against onnxruntime|openvino,...",
            "Engines to compare with, separated by commas.",
            MODEL,
        ),
    ] = "onnxruntime",
    untuned: UntunedOption = False,
    generate: Annotated[
        str | None,
        option(
            "--generate P,N",
            "Time a decoder: a prompt of P tokens, then N generated tokens.",
            MODEL,
        ),
    ] = None,
    rounds: Annotated[int, option("--rounds N", "Samples of each engine.", ADVANCED, min=3)] = 15,
    json: JsonOption = None,
    verbose: VerboseOption = 0,
    quiet: QuietOption = False,
) -> None:
    """Compare the model's latency with other engines in interleaved runs.

    A deterministic build is compared with the default one too: that is its price. A model with
    dynamic shapes is timed at several sizes, a decoder also in a generation.
    """
    set_verbosity(quiet, verbose)
    shapes, settings = model_shapes(context.params), settings_of(context.params)
    prepare(settings, context.params["config"], model, [json])
    from tunefarm.tuner.building.flow import build_loaded
    from tunefarm.tuner.building.request import BuildRequest
    from tunefarm.tuner.commands import bench as benchmark
    from tunefarm.tuner.commands import bench_generate as generation

    lengths = None if generate is None else generation.parse_lengths(generate)
    engines = benchmark.parse_engines(against)
    request = BuildRequest(model, "", settings, shapes, untuned=untuned)
    ours, built = build_loaded(request)
    if lengths is not None:
        LOG.info("built the model; timing a generation")
        generated = generation.bench_generate(model, ours, *lengths)
        show(json, generated.to_json(), generation.generate_table(generated))
        if quiet and json != "-":
            print(generation.generate_line(generated))
        for text in built.notes:
            note(text)
        return
    benchmark.require_all_logits(ours, shapes)
    options = benchmark.bench_options(ours.threads, rounds)
    from tunefarm.tuner.commands.bench import (
        bench_sizes,
        has_sizes,
        record_bench,
        sized_line,
        sizes_table,
    )

    LOG.info("built the model; timing it against %s", ", ".join(engines))
    result: benchmark.BenchResult | SizedBench
    if has_sizes(ours):
        result = sized = bench_sizes(model, ours, engines, options)
        line = sized_line(sized)
        show(json, sized.to_json(), sizes_table(sized))
    else:
        default = default_build(request)
        result = fixed = benchmark.bench(model, ours, engines, options, default)
        line = benchmark.bench_line(fixed)
        show(json, fixed.to_json(), benchmark.bench_table(fixed))
    if quiet and json != "-":
        print(line)
    for text in built.notes:
        note(text)
    if not untuned and (text := record_bench(request, built, ours, result)):
        note(text)
