"""Prompts of a decoder with weights of 4 bits, next to onnxruntime and OpenVINO.

    python -m tests.benchmarks.prefill [--lengths 64,512,2000] [--threads T] [--precisions P,Q]
        [--layers 4] [--block 32] [--pairs 10] [--cpu-time]

One build of ours for all lengths in each precision, the first of which is the base of all ratios.
Engines run interleaved; printed are medians, medians of ratios of neighbours, and the largest error
of the logits against ours in the precision `default`, relative to the largest logit. OpenVINO has
the decoder without GroupQueryAttention, with the same weights, and rounds activations to 8 bits in
groups of 32. `--cpu-time` takes the process's time, for a loaded machine and one thread.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
import time
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from statistics import median

import numpy as np
import numpy.typing as npt
import onnx

from tests.compiler.decoders import Sizes, decoder
from tunefarm import compiler
from tunefarm.compiler.runtime.execution.executable import Executable
from tunefarm.compiler.types.extents import Given
from tunefarm.tuner.confirm.latency import pinned

Logits = npt.NDArray[np.float32]
Feed = Mapping[str, npt.NDArray[np.generic]]
Run = Callable[[Feed], Logits]
EXACT = "default"


def sizes_of(layers: int, block: int, positions: int) -> Sizes:
    """14 heads in 2 groups, 896 features."""
    return Sizes(layers, 14, 2, 64, 2432, 8192, positions, block)


def prompt(sizes: Sizes, length: int) -> Feed:
    """The inputs of the first step, of so many tokens."""
    tokens = np.random.default_rng(1).integers(0, sizes.words, (1, length))
    caches = {
        f"past_key_values.{layer}.{kind}": np.zeros((1, sizes.groups, 0, sizes.width), np.float32)
        for layer in range(sizes.layers)
        for kind in ("key", "value")
    }
    places = np.arange(length, dtype=np.int64)[None]
    mask = np.ones((1, length), np.int64)
    return {"input_ids": tokens, "attention_mask": mask, "position_ids": places, **caches}


def ours(path: Path, longest: int, threads: int, precision: str) -> Run:
    """Our build for all lengths."""
    shapes: dict[str, tuple[Given, ...]] = {
        "batch_size": (1,),
        "sequence_length": (f"1|2..{longest}",),
        "past_sequence_length": ("0..16",),
        "total_sequence_length": (f"1..{longest + 16}",),
    }
    built: Executable = compiler.build(path, shapes=shapes, threads=threads, precision=precision)
    return lambda feed: built.run(feed)["logits"]


def onnxruntime_run(path: Path, threads: int) -> Run:
    """onnxruntime with the same file, which asks for accuracy level 4."""
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = threads
    session = onnxruntime.InferenceSession(str(path), options, ["CPUExecutionProvider"])
    return lambda feed: np.asarray(session.run(["logits"], dict(feed))[0])


def openvino_run(path: Path, threads: int) -> Run:
    """OpenVINO with the decoder in plain operators."""
    import openvino

    options = {
        "INFERENCE_NUM_THREADS": threads,
        "INFERENCE_PRECISION_HINT": "f32",
        "DYNAMIC_QUANTIZATION_GROUP_SIZE": 32,
        "PERFORMANCE_HINT": "LATENCY",
    }
    compiled = openvino.Core().compile_model(path, "CPU", options)
    request, output = compiled.create_infer_request(), compiled.output("logits")
    return lambda feed: np.array(request.infer(dict(feed))[output])


def report(runs: Mapping[str, Run], feed: Feed, pairs: int, clock: Callable[[], float]) -> None:
    """Print a line for each engine at one length."""
    logits = {name: run(feed) for name, run in runs.items()}
    exact = logits[EXACT]
    seconds: dict[str, list[float]] = {name: [] for name in runs}
    for _ in range(pairs):
        for name, run in runs.items():
            start = clock()
            run(feed)
            seconds[name].append(clock() - start)
    base = next(iter(runs))
    for name, taken in seconds.items():
        ratio = median(one / own for one, own in zip(taken, seconds[base], strict=True))
        error = np.abs(logits[name] - exact).max() / np.abs(exact).max()
        print(
            f"{exact.shape[1]:5} tokens  {name:18} {median(taken) * 1e3:8.1f} ms"
            f"   {base} is {ratio:5.2f} times as fast   error {error:.1e}"
        )


def main(arguments: list[str] | None = None) -> int:
    """The command of this module."""
    parser = argparse.ArgumentParser(prog="python -m tests.benchmarks.prefill")
    parser.add_argument("--lengths", default="64,512,2000")
    parser.add_argument("--precisions", default=f"int8-activations,{EXACT}")
    parser.add_argument("--cpu-time", action="store_true")
    for name, default in (("threads", 1), ("layers", 4), ("block", 32), ("pairs", 10)):
        parser.add_argument(f"--{name}", type=int, default=default)
    options = parser.parse_args(arguments)
    lengths = [int(length) for length in options.lengths.split(",")]
    precisions = options.precisions.split(",")
    if EXACT not in precisions:
        parser.error(f"errors are against the precision {EXACT}: it has to be in --precisions")
    sizes = sizes_of(options.layers, options.block, 2 * max(lengths))
    clock = time.process_time if options.cpu_time else time.perf_counter
    with tempfile.TemporaryDirectory() as folder, pinned(options.threads):
        grouped, plain = Path(folder, "grouped.onnx"), Path(folder, "plain.onnx")
        onnx.save(decoder("gqa", sizes), grouped)
        onnx.save(decoder("concat", sizes), plain)
        build = partial(ours, grouped, max(lengths), options.threads)
        runs = {name: build(name) for name in precisions}
        runs["onnxruntime"] = onnxruntime_run(grouped, options.threads)
        runs["OpenVINO"] = openvino_run(plain, options.threads)
        for length in lengths:
            report(runs, prompt(sizes, length), options.pairs, clock)
    return 0


if __name__ == "__main__":
    sys.exit(main())
