"""`tunefarm-run`: run a built model where only what runs models is installed, and time it.

    tunefarm-run resnet18.tuned --input input=image.npy --output scores.npz --repeat 20

It needs NumPy and llvmlite alone, of what `tune run` needs, and prints no tables.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Mapping, Sequence
from statistics import median

import numpy as np

from tunefarm import compiler
from tunefarm.compiler.errors import InputError, TunefarmError, with_count
from tunefarm.compiler.runtime.artefact.array_files import read_input, write_outputs
from tunefarm.compiler.runtime.execution.executable import Executable
from tunefarm.compiler.runtime.spec.ports import AnyArray
from tunefarm.compiler.types.sizes import Size
from tunefarm.compiler.types.structure import plain
from tunefarm.compiler.types.tensor_type import Array


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line; the exit code."""
    options = _parser().parse_args(arguments)
    try:
        run(options)
    except TunefarmError as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    return 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser("tunefarm-run", description="Run a built model and time it.")
    parser.add_argument("artefact", metavar="FILE", help="Built model.")
    parser.add_argument(
        "--input",
        metavar="NAME=VALUE|FILE.npy",
        action="append",
        default=[],
        type=_named,
        help="An input (repeatable); inputs that are not given are zeros.",
    )
    parser.add_argument("--output", metavar="FILE.npz", help="Write the outputs there.")
    parser.add_argument("--repeat", metavar="N", type=int, default=1, help="Timed runs.")
    parser.add_argument("--threads", metavar="T", type=int, help="Threads of the kernels.")
    return parser


def _named(text: str) -> tuple[str, str]:
    name, equals, value = text.partition("=")
    if not equals or not name or not value:
        raise argparse.ArgumentTypeError(f"{text}: give it as NAME=16000, or NAME=FILE.npy")
    return name, value


def run(options: argparse.Namespace) -> None:
    """Run as the options say, and print what came out. Raises TunefarmError."""
    if options.repeat < 1:
        raise InputError(f"--repeat {options.repeat}: it must be 1 or more")
    if options.threads is not None and options.threads < 1:
        raise InputError(f"--threads {options.threads}: it must be 1 or more")
    executable = compiler.load(options.artefact, options.threads)
    types = executable.inputs
    inputs = {name: read_input(text, types.get(name)) for name, text in options.input}
    inputs |= zeros(executable, inputs)
    outputs = plain(executable.run(inputs))
    samples = []
    for _ in range(options.repeat):
        start = time.perf_counter()
        executable.run(inputs)
        samples.append(time.perf_counter() - start)
    for name, array in outputs.items():
        print(_printable(f"{name}: {array.dtype}{list(array.shape)}"))
    print(
        f"latency: median {1e3 * median(samples):.3f} ms, fastest {1e3 * min(samples):.3f} ms "
        f"({with_count(len(samples), 'run')}, {with_count(executable.threads, 'thread')})"
    )
    if options.output is not None:
        write_outputs(outputs, options.output)


def zeros(executable: Executable, given: Mapping[str, Array]) -> dict[str, AnyArray]:
    """Arrays for the inputs that are not given, at the sizes that the others have."""
    signature, sizes = executable.signature, dict[str, int]()
    for port in signature.inputs:
        shape = given[port.name].shape if port.name in given else ()
        for extent, size in zip(port.shape, shape, strict=False):  # what fits is seen by the run
            if isinstance(extent, Size) and extent.symbol is not None:
                sizes[extent.symbol.name] = size
    types = executable.inputs_at(sizes)
    missing = {name: type for name, type in types.items() if name not in given}
    return {name: np.zeros(type.shape, type.dtype.numpy) for name, type in missing.items()}


def _printable(text: str) -> str:
    """The text with controls, also those of the direction of text, as escapes: they are seen."""
    return "".join(c if c.isprintable() else repr(c)[1:-1] for c in text)


if __name__ == "__main__":
    sys.exit(main())
