"""`tune bench`: a model and other engines in, how long each takes out."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Annotated

import typer

from tunefarm.compiler.function_modules import load_modules
from tunefarm.tuner.commands.command_line import prepare, show
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
    UntunedOption,
    shapes_of,
)

if TYPE_CHECKING:
    from tunefarm.tuner.commands.bench_sizes import SizedBench


def bench(
    model: ModelOption,
    db: DbOption = None,
    against: Annotated[
        str, typer.Option(metavar="ENGINES", help="Separated by commas.")
    ] = "onnxruntime",
    untuned: UntunedOption = False,
    rounds: Annotated[int, typer.Option(min=3, metavar="N", help="Samples of each.")] = 15,
    threads: ThreadsOption = None,
    numerics: NumericsOption = None,
    denormals: DenormalsOption = None,
    config: ConfigOption = None,
    shape: ShapeOption = None,
    input: InputOption = None,
    functions: FunctionsOption = None,
    json: JsonOption = None,
) -> None:
    """Time the built model against other engines in interleaved runs, at several sizes if open."""
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
    from tunefarm.tuner.building.flow import build_loaded
    from tunefarm.tuner.building.request import BuildRequest
    from tunefarm.tuner.commands import bench as benchmark

    engines = benchmark.parse_engines(against)
    request = BuildRequest(model, "", settings, shapes, untuned=untuned)
    ours, built = build_loaded(request)
    options = benchmark.bench_options(ours.threads, rounds)
    from tunefarm.tuner.commands.bench_record import record_bench
    from tunefarm.tuner.commands.bench_sizes import bench_sizes, has_sizes, sizes_table

    result: benchmark.BenchResult | SizedBench
    if has_sizes(ours):
        result = sized = bench_sizes(model, ours, engines, options)
        show(json, sized.to_json(), sizes_table(sized))
    else:
        result = fixed = benchmark.bench(model, ours, engines, options)
        show(json, fixed.to_json(), benchmark.bench_table(fixed))
    for note in built.notes:
        print(f"note: {note}", file=sys.stderr)
    if not untuned and (note := record_bench(request, built, ours, result)):
        print(f"note: {note}", file=sys.stderr)
