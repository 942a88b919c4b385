"""`tune bench --generate P,N`: a prompt of P tokens and N more, next to other engines.

Engines run one after the other in each round, and the median of the rounds counts. A step reads
all weights but tables of which it takes a row, and the caches: over the bytes a second that the
same threads read in sums (`measure_read`, in the same run) that is the share of the bandwidth.
"""

from __future__ import annotations

import json
import re
import shutil
import subprocess
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from statistics import median
from typing import Any, TypeAlias

import numpy as np
from rich.table import Table

from tunefarm.compiler.errors import MeasureError, SettingsError, with_count
from tunefarm.compiler.generation import Generator
from tunefarm.compiler.runtime.execution.executable import Executable
from tunefarm.compiler.runtime.spec.executable_spec import CallStep, Place
from tunefarm.measure.worker.roof import measure_read
from tunefarm.tuner.commands.bench import OURS
from tunefarm.tuner.confirm.latency import pinned
from tunefarm.tuner.reports.report import format_seconds, format_share

ROUNDS = 5
_GATHER = "gather"
_GENAI, _LLAMA = "onnxruntime-genai", "llama.cpp"
_PATIENCE = 600.0  # seconds for another program
Prompt: TypeAlias = list[int]


@dataclass(frozen=True, slots=True)
class Timed:
    """One generation: seconds to the first token and of all others, and the tokens."""

    first: float
    others: float
    tokens: tuple[int, ...]


Loop: TypeAlias = Callable[[Prompt, int], Timed]
TokenStream: TypeAlias = Callable[[Prompt, int], Iterator[int]]
"""The tokens after a prompt, each as soon as it is known."""


@dataclass(frozen=True, slots=True)
class GenerateTimes:
    """Medians of one engine; `share` is ours of the read bandwidth (None: another engine, whose
    bytes are not known), `same` how many tokens are
    ours before the first that is not (None: the engine does not say)."""

    engine: str
    first_s: float
    prefill_per_s: float
    decode_per_s: float
    share: float | None
    same: int | None


@dataclass(frozen=True, slots=True)
class GenerateBench:
    """Engines, ours first. `step_bytes` are read by a step in the middle of the generation."""

    model: str
    threads: int
    prompt: int
    tokens: int
    step_bytes: int
    read_bytes_per_s: float
    engines: tuple[GenerateTimes, ...]

    def to_json(self) -> dict[str, Any]:
        """The result as JSON values."""
        return asdict(self)


def parse_lengths(text: str) -> tuple[int, int]:
    """Tokens of the prompt and to generate of `P,N`. Raises SettingsError."""
    found = re.fullmatch(r"\s*(\d{1,7})\s*,\s*(\d{1,7})\s*", text)
    prompt, tokens = (int(found[1]), int(found[2])) if found else (0, 0)
    if prompt < 1 or tokens < 2:
        raise SettingsError(
            f"--generate {text}: give tokens of the prompt, 1 or more, and tokens to generate, 2 "
            "or more",
            hint="for example --generate 128,64",
        )
    return prompt, tokens


def bench_generate(
    model: str, ours: Executable, prompt: int, tokens: int, rounds: int = ROUNDS
) -> GenerateBench:
    """Time a generation by ours, by onnxruntime, and by those that are installed and have the model
    in their form next to the file.

    Raises InputError for a model that is no decoder or has no room for so many tokens,
    SettingsError where onnxruntime is not installed, MeasureError where its first token is another.
    """
    generator = Generator(ours)
    words = ours.outputs[generator.ports.logits].shape[-1]
    ids = [int(word) for word in np.random.default_rng(0).integers(words, size=prompt)]
    threads = ours.threads
    with pinned(threads):
        streams = token_streams(model, generator)
        loops: dict[str, Loop] = {name: partial(timed, found) for name, found in streams.items()}
        loops |= _llama(model, threads)
        for loop in loops.values():
            loop(ids, 2)  # memory is mapped, threads are started
        runs: dict[str, list[Timed]] = {name: [] for name in loops}
        for _ in range(rounds):
            for name, loop in loops.items():
                runs[name].append(loop(ids, tokens))
        read = measure_read(ours.spec.target, threads)
    bytes = round(step_bytes(generator, prompt + tokens / 2))
    expected = runs[OURS][0].tokens
    engines = tuple(
        _times(name, found, prompt, bytes / read, expected) for name, found in runs.items()
    )
    for engine in engines:
        if engine.same == 0:
            raise MeasureError(
                f"the first token of {engine.engine} differs from ours",
                hint="compare the models' outputs first: tune verify",
            )
    return GenerateBench(model, threads, prompt, tokens, bytes, read, engines)


def _times(
    name: str, runs: Sequence[Timed], prompt: int, step: float, expected: Sequence[int]
) -> GenerateTimes:
    """Of some runs; a step takes `step` seconds at the bandwidth's rate."""
    first, others = (median(getattr(run, part) for run in runs) for part in ("first", "others"))
    decode = (len(expected) - 1) / others
    found = runs[0].tokens
    pairs = zip(found, expected, strict=False)
    same = next((n for n, (a, b) in enumerate(pairs) if a != b), len(expected))
    share = decode * step if name == OURS else None
    return GenerateTimes(name, first, prompt / first, decode, share, same if found else None)


def timed(
    stream: TokenStream, ids: Prompt, count: int, clock: Callable[[], float] = time.perf_counter
) -> Timed:
    """A generation of so many tokens."""
    times, tokens = [clock()], []
    for token in stream(ids, count):
        times.append(clock())
        tokens.append(token)
    return Timed(times[1] - times[0], times[-1] - times[1], tuple(tokens))


def token_streams(model: str, generator: Generator) -> dict[str, TokenStream]:
    """Ours, onnxruntime's, and onnxruntime-genai's where it is installed and has its configuration
    next to the model.

    Raises SettingsError where onnxruntime is not installed.
    """
    streams: dict[str, TokenStream] = {
        OURS: partial(_ours, generator),
        "onnxruntime": _onnxruntime(model, generator, generator.executable.threads),
    }
    return {**streams, **_genai(model)}


def _ours(generator: Generator, ids: Prompt, count: int) -> Iterator[int]:
    generator.clear()
    for (token,) in generator.stream([ids], count):
        yield token or 0


def step_bytes(generator: Generator, positions: float) -> float:
    """What a step reads with so many tokens before it: weights, and caches, which hold some."""
    ours = generator.executable
    types = ours.inputs_at(generator.sizes_of_step())
    step = ours.program_for_shapes({name: type.shape for name, type in types.items()})
    return _weight_bytes(step) + generator.cache_bytes * positions / generator.cached


def _weight_bytes(program: Executable) -> int:
    """Of the constants that a run reads as a whole: not of tables that rows are taken of."""
    symbols = [part.symbol for part in program.spec.objects]
    operators = dict(zip(symbols, (kernel.operators for kernel in program.kernels), strict=True))
    read = {
        buffer.number
        for step in program.spec.steps
        if isinstance(step, CallStep) and _GATHER not in operators[step.symbol]
        for buffer in step.buffers
        if buffer.place is Place.CONSTANT
    }
    return sum(program.spec.constants[number].nbytes for number in read)


def _onnxruntime(model: str, generator: Generator, threads: int) -> TokenStream:
    """Values are bound, so that caches are not copied out and in."""
    try:
        import onnxruntime as ort
    except ImportError:
        raise SettingsError(
            "onnxruntime is not installed", hint="pip install onnxruntime"
        ) from None
    options = ort.SessionOptions()
    options.intra_op_num_threads, options.inter_op_num_threads = threads, 1
    options.log_severity_level = 3
    session = ort.InferenceSession(model, options, providers=["CPUExecutionProvider"])
    ports, types = generator.ports, {item.name: item for item in session.get_inputs()}
    outputs = [item.name for item in session.get_outputs()]
    fixed = types[ports.ids].shape[-1]
    part = fixed if isinstance(fixed, int) else 0  # tokens that each run takes

    def feed(past: int, tokens: np.ndarray[Any, Any]) -> Mapping[str, np.ndarray[Any, Any]]:
        count = len(tokens)
        given = {
            ports.ids: tokens[None],
            ports.mask: np.ones((1, past + count)),
            ports.positions: np.arange(past, past + count)[None],
            **{name: np.ones(1, np.bool_) for name in ports.flags},
        }
        return {
            name: array.astype(np.int32 if "int32" in types[name].type else np.int64)
            if array.dtype != np.bool_
            else array
            for name, array in given.items()
            if name in types
        }

    def stream(ids: Prompt, count: int) -> Iterator[int]:
        empty = generator.empty_caches()
        caches = {n: ort.OrtValue.ortvalue_from_numpy(array) for n, array in empty.items()}
        left, past = np.array(ids, np.int64), 0
        while count:
            tokens, left = np.split(left, [part or len(left)])
            binding = session.io_binding()
            for name, array in feed(past, tokens).items():
                binding.bind_cpu_input(name, array)
            for name, value in caches.items():
                binding.bind_ortvalue_input(name, value)
            for name in outputs:
                binding.bind_output(name, "cpu")
            session.run_with_iobinding(binding)
            values = dict(zip(outputs, binding.get_outputs(), strict=True))
            past += len(tokens)
            caches = {name: values[output] for output, name in ports.caches.items()}
            if not len(left):
                logits = values[ports.logits].numpy()
                left = logits.reshape(-1, logits.shape[-1])[-1:].argmax(-1)
                count -= 1
                yield int(left[0])

    return stream


def _genai(model: str) -> dict[str, TokenStream]:
    """Its threads are those of the configuration."""
    folder = Path(model).parent
    try:
        import onnxruntime_genai as genai
    except ImportError:
        return {}
    if not (folder / "genai_config.json").exists():
        return {}
    loaded = genai.Model(str(folder))

    def stream(ids: Prompt, count: int) -> Iterator[int]:
        parameters = genai.GeneratorParams(loaded)
        length = len(ids) + count
        parameters.set_search_options(do_sample=False, min_length=length, max_length=length)
        generator = genai.Generator(loaded, parameters)
        generator.append_tokens(np.array([ids], np.int32))
        for _ in range(count):
            generator.generate_next_token()
            yield int(generator.get_next_tokens()[0])

    return {_GENAI: stream}


def _llama(model: str, threads: int) -> dict[str, Loop]:
    """llama.cpp, where its llama-bench is installed and one file of its form lies next to the
    model; it says how fast it is, and no tokens."""
    program = shutil.which("llama-bench")
    files = sorted(Path(model).parent.glob("*.gguf"))
    if program is None or len(files) != 1:
        return {}

    def loop(ids: Prompt, count: int) -> Timed:
        sizes = ["-p", str(len(ids)), "-n", str(count - 1), "-t", str(threads), "-r", "1"]
        done = subprocess.run(
            [program, "-m", str(files[0]), *sizes, "-o", "json"],
            capture_output=True,
            text=True,
            check=False,
            timeout=_PATIENCE,
        )
        if done.returncode:
            raise MeasureError(f"llama-bench failed: {done.stderr.strip()[-200:]}")
        rows = json.loads(done.stdout)
        first, others = (
            next(row[part] / row["avg_ts"] for row in rows if row[part])
            for part in ("n_prompt", "n_gen")
        )
        return Timed(first, others, ())

    return {_LLAMA: loop}


def generate_table(result: GenerateBench) -> Table:
    """A row per engine."""
    caption = (
        f"{with_count(result.threads, 'thread')}, {result.prompt} tokens of the prompt and "
        f"{result.tokens} more; our step reads {result.step_bytes / 2**20:.1f} MiB, and "
        f"these threads read {result.read_bytes_per_s / 1e9:.1f} GB/s"
    )
    table = Table(header_style="bold", caption=caption)
    table.add_column("engine")
    for name in ("first token", "prefill tokens/s", "decode tokens/s", "of bandwidth", "same"):
        table.add_column(name, justify="right")
    for engine in result.engines:
        table.add_row(
            engine.engine,
            format_seconds(engine.first_s),
            f"{engine.prefill_per_s:.1f}",
            f"{engine.decode_per_s:.1f}",
            "-" if engine.share is None else format_share(engine.share),
            "-" if engine.same is None else f"{engine.same}/{result.tokens}",
        )
    return table


def generate_line(result: GenerateBench) -> str:
    """The result in one line."""
    ours, *others = result.engines
    ratios = [f"{ours.decode_per_s / e.decode_per_s:.2f} times {e.engine}" for e in others]
    return f"{result.model}: {ours.decode_per_s:.1f} tokens a second, {', '.join(ratios)}"
