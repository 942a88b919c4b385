"""`tune run`: a compiled model in, its outputs and latency out."""

from __future__ import annotations

from typing import Annotated

from tunefarm.compiler.function_modules import load_modules
from tunefarm.tuner.commands.command_files import check_files
from tunefarm.tuner.commands.command_line import show
from tunefarm.tuner.commands.options import (
    INPUT_FORM,
    FunctionsOption,
    JsonOption,
    ThreadsOption,
    argument,
    files_of,
    named_values,
    numbers_of,
    option,
)


# Long: one parameter for each option.
def run(
    artifact: Annotated[str, argument("FILE", "Artifact of tune build.")],
    input: Annotated[
        list[str] | None,
        option("--input NAME=VALUE|FILE.npy", "An input (repeatable) [default: random values]."),
    ] = None,
    output: Annotated[
        str | None, option("--output -o FILE.npz", "Write the outputs to this file.")
    ] = None,
    repeat: Annotated[
        int | None, option("--repeat N", "Timed runs [default: 1, with --profile 20].", min=1)
    ] = None,
    profile: Annotated[bool, option("--profile", "Also time each kernel on its own.")] = False,
    fallback: Annotated[
        bool, option("--fallback", "Run the variant for CPUs without the target's features.")
    ] = False,
    threads: ThreadsOption = None,
    shape: Annotated[
        list[str] | None,
        option(
            "--shape NAME=2,128",
            "For a model with dynamic shapes, the shape of a random input or the size of a "
            "dynamic dimension: batch=2 (repeatable) [default: the middle of the range].",
        ),
    ] = None,
    functions: FunctionsOption = None,
    seed: Annotated[int, option("--seed S", "Seed of random inputs.", min=0)] = 0,
    json: JsonOption = None,
) -> None:
    """Run a compiled model and time it."""
    load_modules(functions or ())
    shapes = numbers_of(shape)
    given = named_values(input, "--input", INPUT_FORM)
    check_files(writes=[output, json], reads=[artifact, *files_of(given)])
    from tunefarm import compiler
    from tunefarm.compiler.runtime.artefact.array_files import write_outputs
    from tunefarm.tuner.commands.run_model import run_model, run_parts

    executable = compiler.load(artifact, threads, fallback=fallback)
    outputs, result = run_model(
        executable, given, shapes=shapes, repeat=repeat, seed=seed, profile=profile
    )
    if output is not None:
        write_outputs(outputs, output)
    show(json, result.to_json(), *run_parts(result))
