"""`tune run`, `tune generate` and `tune bench`: commands that run a compiled model."""

from __future__ import annotations

import re
import sys
import time
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from tunefarm.compiler.errors import SettingsError
from tunefarm.compiler.function_modules import load_modules
from tunefarm.tuner.commands.command_files import check_files
from tunefarm.tuner.commands.command_line import prepare, show, write_json
from tunefarm.tuner.commands.options import (
    ADVANCED,
    DETERMINISTIC,
    INPUT_FORM,
    MODEL,
    DbOption,
    FunctionsOption,
    JsonOption,
    ModelOption,
    QuietOption,
    ThreadsOption,
    UntunedOption,
    UsageError,
    VerboseOption,
    argument,
    files_of,
    model_command,
    model_shapes,
    named_values,
    numbers_of,
    option,
    settings_of,
)
from tunefarm.tuner.commands.verbosity import LOG, is_quiet, note, set_verbosity

if TYPE_CHECKING:
    from tunefarm.compiler.generation import Generator, Sampling
    from tunefarm.compiler.runtime.execution.executable import Executable
    from tunefarm.tuner.building.request import BuildRequest
    from tunefarm.tuner.commands.bench import SizedBench


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


# `tune generate`: a compiled decoder and a prompt in, tokens out as they are drawn.


_TOKENIZER = "tokenizer.json"


# Long: one parameter for each option.
def generate(
    artifact: Annotated[str, argument("FILE", "Artifact of tune build.")],
    prompt_ids: Annotated[
        list[str] | None,
        option(
            "--prompt-ids 1,15,7",
            "A prompt as token ids; several (repeatable) must have equally many.",
        ),
    ] = None,
    prompt: Annotated[
        list[str] | None,
        option("--prompt TEXT", "A prompt as text, for a --tokenizer (repeatable)."),
    ] = None,
    tokenizer: Annotated[
        str | None,
        option(
            "--tokenizer FILE",
            "Tokenizer of the package tokenizers [default: tokenizer.json next to FILE].",
        ),
    ] = None,
    max_tokens: Annotated[
        int, option("--max-tokens N", "Maximum number of tokens to generate.", min=1)
    ] = 128,
    temperature: Annotated[
        float, option("--temperature T", "Of sampling; 0 takes the likeliest token.", min=0.0)
    ] = 0.0,
    top_k: Annotated[
        int, option("--top-k K", "Sample from the K likeliest tokens; 0: all.", min=0)
    ] = 0,
    top_p: Annotated[
        float,
        option("--top-p P", "Sample from the likeliest tokens that have probability P together."),
    ] = 1.0,
    seed: Annotated[int, option("--seed S", "Seed of sampling.", min=0)] = 0,
    stop: Annotated[
        list[int] | None, option("--stop ID", "Stop after this token id (repeatable).")
    ] = None,
    threads: ThreadsOption = None,
    functions: FunctionsOption = None,
    json: JsonOption = None,
) -> None:
    """Generate tokens with a compiled decoder, printed as they are drawn."""
    load_modules(functions or ())
    if bool(prompt) == bool(prompt_ids):
        raise UsageError("give either --prompt-ids or --prompt")
    file = tokenizer or str(Path(artifact).with_name(_TOKENIZER)) if prompt else None
    check_files(reads=[artifact], writes=[json])
    from tunefarm.compiler.generation import Generator, Sampling

    reader = None if file is None else _tokenizer(file)
    prompts = [_ids(text) for text in prompt_ids or ()]
    prompts += [reader.encode(text).ids for text in prompt or ()] if reader else []
    generator = Generator(artifact, threads)
    result = _stream(
        generator,
        prompts,
        reader,
        max_tokens,
        Sampling(temperature, top_k, top_p, seed),
        stop or (),
        shown=json != "-",
    )
    write_json(json, result)
    if not is_quiet():
        print(
            f"{result['prompt_tokens']} tokens of the prompt in {result['first_s']:.3f} s, then "
            f"{result['tokens_per_s']:.1f} tokens a second",
            file=sys.stderr,
        )


def _stream(
    generator: Generator,
    prompts: Sequence[Sequence[int]],
    reader: Any,
    max_tokens: int,
    sampling: Sampling,
    stop: Sequence[int],
    *,
    shown: bool,
) -> dict[str, Any]:
    """Generate; a single prompt's tokens are printed one by one, those of several at the end."""
    found: list[list[int]] = [[] for _ in prompts]
    printed, times = "", [time.perf_counter()]
    for tokens in generator.stream(prompts, max_tokens, sampling, stop):
        times.append(time.perf_counter())
        for row, token in zip(found, tokens, strict=True):
            if token is not None:
                row.append(token)
        if shown and len(found) == 1:
            text = _text(found[0], reader)
            if not text.endswith("\N{REPLACEMENT CHARACTER}"):  # more tokens complete a character
                print(text.removeprefix(printed), end="", flush=True)
                printed = text
    texts = [_text(row, reader) for row in found]
    if shown:
        rest = texts[0].removeprefix(printed) if len(texts) == 1 else "\n".join(texts)
        print(rest, flush=True)  # before the times, which go to stderr
    steps = len(times) - 2
    return {
        "tokens": found,
        **({} if reader is None else {"texts": texts}),
        "prompt_tokens": sum(map(len, prompts)),
        "first_s": times[1] - times[0],
        "tokens_per_s": len(found) * steps / (times[-1] - times[1]) if steps else 0.0,
    }


def _text(tokens: Sequence[int], reader: Any) -> str:
    """Tokens as they are printed."""
    if reader is None:
        return ",".join(map(str, tokens))
    text: str = reader.decode(tokens)
    return text


def _ids(text: str) -> list[int]:
    if not re.fullmatch(r"\s*\d{1,9}\s*(,\s*\d{1,9}\s*)*", text):
        raise UsageError(f"--prompt-ids {text}: give token ids separated by commas, as in 1,15,7")
    return [int(part) for part in text.split(",")]


def _tokenizer(file: str) -> Any:
    """The tokenizer of a file. Raises SettingsError where the package or the file is missing."""
    try:
        from tokenizers import Tokenizer
    except ImportError:
        raise SettingsError(
            "--prompt needs the package tokenizers, which is not installed",
            hint="pip install tokenizers, or give --prompt-ids",
        ) from None
    check_files(reads=[file])
    try:
        return Tokenizer.from_file(file)
    except Exception as error:  # the package raises nothing more precise
        raise SettingsError(f"{file} is no tokenizer: {error}") from error


# `tune bench`: a model and other engines in, the latency of each out.


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
