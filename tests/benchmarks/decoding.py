"""A decoder whose key-value cache grows, in one executable, beside builds for each length.

    python -m tests.benchmarks.decoding [--steps 200] [--at 1,50,100,199] [--threads T]

Runs the zoo's `decoder_step` token by token, each step's cache the next one's past. At the steps of
`--at` the same step runs in turns with a build for just this length, whose outputs must be equal.
Prints ours over the fixed build's time with 95 % intervals, and by how much the process grew from
the tenth step to the last.
"""

from __future__ import annotations

import argparse
import resource
import sys
import tempfile
from collections.abc import Iterator, Mapping
from functools import partial
from pathlib import Path
from statistics import median

import numpy as np

from tests.benchmarks.models import different
from tests.benchmarks.paired import compare_paired
from tunefarm import compiler
from tunefarm.compiler.frontend.zoo import write_model
from tunefarm.compiler.runtime.execution.executable import Executable
from tunefarm.compiler.types.extents import Given
from tunefarm.compiler.types.tensor_type import Array
from tunefarm.tuner.confirm.latency import LatencyOptions, interleaved_latencies, pinned

Bounds = dict[str, tuple[Given, ...]]
PAST, PRESENT = "past_key_values", "present"


def next_inputs(outputs: Mapping[str, Array], length: int) -> dict[str, Array]:
    """The inputs of the step that has `length` tokens behind it."""
    caches = {
        name.replace(PRESENT, PAST, 1): array
        for name, array in outputs.items()
        if name.startswith(PRESENT)
    }
    token = np.array([[length % 7]], np.int64)
    mask, position = np.ones((1, length + 1), np.int64), np.array([[length]], np.int64)
    return {"input_ids": token, "attention_mask": mask, "position_ids": position, **caches}


def first_inputs(executable: Executable) -> dict[str, Array]:
    """The inputs of the first step, whose caches are empty."""
    types = executable.inputs_at({"past_sequence_length": 0})
    empty = {
        name.replace(PAST, PRESENT, 1): np.zeros(type.shape, type.dtype.numpy)
        for name, type in types.items()
        if name.startswith(PAST)
    }
    return next_inputs(empty, 0)


def main(arguments: list[str] | None = None) -> int:
    """The command of this module."""
    parser = argparse.ArgumentParser(prog="python -m tests.benchmarks.decoding")
    parser.add_argument("--steps", type=int, default=200)
    parser.add_argument("--at", default="1,50,100,199")
    parser.add_argument("--threads", type=int, default=1)
    options = parser.parse_args(arguments)
    chosen = {int(step) for step in options.at.split(",")}
    with tempfile.TemporaryDirectory() as folder, pinned(options.threads):
        path = Path(folder, "decoder_step.onnx")
        write_model("decoder_step", path, dynamic=True)
        bounds: Bounds = {"batch": (1,), "past_sequence_length": (f"0..{options.steps - 1}",)}
        ours = compiler.build(path, shapes=bounds, threads=options.threads)
        at_tenth = 0
        for step, _ in _steps(ours, options.steps):
            if step == 10:
                at_tenth = _peak_bytes()
        print(f"the process grew by {(_peak_bytes() - at_tenth) / 2**20:.1f} MiB after ten steps")
        ratios = [
            _beside_fixed(path, step, ours, inputs, options.threads)
            for step, inputs in _steps(ours, options.steps)
            if step in chosen
        ]
    print(f"ours / fixed: median {median(ratios):.2f}, worst {max(ratios):.2f}")
    return 0


def _steps(executable: Executable, count: int) -> Iterator[tuple[int, dict[str, Array]]]:
    """Each step with its inputs."""
    inputs = first_inputs(executable)
    for step in range(count):
        yield step, inputs
        inputs = next_inputs(executable.run(inputs), step + 1)


def _peak_bytes() -> int:
    return 1024 * resource.getrusage(resource.RUSAGE_SELF).ru_maxrss


def _beside_fixed(
    path: Path, step: int, ours: Executable, inputs: Mapping[str, Array], threads: int
) -> float:
    shapes: Bounds = {"batch": (1,), "past_sequence_length": (step,)}
    fixed = compiler.build(path, shapes=shapes, threads=threads)
    dense = {name: np.ascontiguousarray(array) for name, array in inputs.items()}
    if wrong := different(ours.run(inputs), fixed.run(dense)):
        raise SystemExit(f"step {step}: outputs {wrong} differ from those of a fixed build")
    timing = LatencyOptions(25, 0.01, 5.0)
    runs = [partial(ours.run, inputs), partial(fixed.run, dense)]
    own, other = interleaved_latencies(runs, timing)
    ratio = compare_paired(own, other)
    print(
        f"step {step:4}  {1e3 * median(own):.3f} ms, over a fixed build's "
        f"{ratio.ratio:.2f} ({ratio.low:.2f} to {ratio.high:.2f})",
        flush=True,
    )
    return ratio.ratio


if __name__ == "__main__":
    sys.exit(main())
