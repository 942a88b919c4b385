"""What precisions cost of the outputs: bf16, f16 and calibrated int8 against f32, model by model.

    python -m tests.benchmarks.precisions [MODEL ...] [--numerics bf16,int8] [--inputs 200]

A model is a file or a name of the zoo; without one all of the zoo run. Inputs are drawn by seed,
with `--noise` white noise, else of more spread: images whose brightness, contrast and colours
change from one to the next, words of the whole table. int8 is calibrated with `--calibrated` other
ones; contractions that 8 bits are too few for are in bf16, as in a build, or with `--all` in int8.

    error    max|y - f32| / max|f32| of the worst output of the worst input
    rms      the root of mean squares of all differences over that of all f32 outputs
    top 1    rows of scores with the same best class, top 5 with the same five in the same order
    classes  how many classes are best for some input: with a single one top 1 says nothing
    centred  top 1 of the scores less their means over all inputs: what is said of *this* input

The model that is compared is f32 with default schedules; outputs that are no scores have `-`.
Prints JSON with `--json`.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import asdict, dataclass
from pathlib import Path
from time import perf_counter

import numpy as np

from tunefarm import compiler
from tunefarm.compiler.errors import TunefarmError
from tunefarm.compiler.frontend.import_onnx import import_onnx
from tunefarm.compiler.frontend.zoo import model_names, write_model
from tunefarm.compiler.graph.ir import Graph
from tunefarm.compiler.plan.apply_precisions import apply_precisions, prepare
from tunefarm.compiler.plan.precision.contractions import contractions
from tunefarm.compiler.runtime.execution.executable import Executable
from tunefarm.compiler.types.precision import Precision, PrecisionPlan
from tunefarm.compiler.types.tensor_type import Array
from tunefarm.tuner.calibration.collect import calibrate, too_sensitive
from tunefarm.tuner.calibration.data import SampleForm, Samples
from tunefarm.tuner.calibration.ranges import METHODS, Method
from tunefarm.tuner.commands.bench import error_of
from tunefarm.tuner.confirm.drawn_inputs import seeded_inputs

FIRST_CALIBRATED = 100_000
"""The seed of the first input that ranges are of."""

Outputs = dict[str, Array]


@dataclass(frozen=True, slots=True)
class Row:
    """What one precision costs of a model; shares are None where no output is one of scores."""

    model: str
    numerics: str
    inputs: int
    error: float
    rms: float
    top1: float | None
    top5: float | None
    centred: float | None
    classes: int


class Drawn:
    """Inputs of a model by seed."""

    def __init__(self, graph: Graph, noise: bool) -> None:
        self.types = {name: graph.types[name] for name in graph.inputs}
        self.noise = noise
        self.words = {
            node.inputs[1]: graph.types[node.inputs[0]].shape[0]
            for node in graph.nodes
            if node.operator == "gather" and node.inputs[0] in graph.constants
        }

    def inputs(self, seed: int) -> Outputs:
        """The arrays of one run."""
        drawn = seeded_inputs(self.types, seed)
        if self.noise:
            return drawn
        rng = np.random.default_rng((seed, 1))
        for name, array in drawn.items():
            if array.dtype.kind == "i" and name in self.words:
                drawn[name] = rng.integers(0, self.words[name], array.shape, array.dtype)
            elif array.dtype == np.float32 and array.ndim == 4 and array.shape[0] == 1:
                drawn[name] = _image(rng, array)
            elif array.dtype == np.float32:
                spread = np.exp(0.25 * rng.standard_normal(array.shape[-1:]))
                drawn[name] = (array * spread).astype(np.float32)
        return drawn


def _image(rng: np.random.Generator, noise: Array) -> Array:
    """Patches of all sizes, in colours and at a contrast of its own, and noise."""
    channels, rows, columns = noise.shape[1:]
    image = rng.standard_normal((channels, 1, 1)) + 0.3 * rng.uniform() * noise[0]
    cells = 2
    while cells <= min(rows, columns):
        coarse = rng.standard_normal((channels, cells, cells)) * rng.uniform()
        row, column = (np.arange(extent) * cells // extent for extent in (rows, columns))
        image = image + coarse[:, row[:, None], column[None, :]]
        cells *= 2
    contrast = np.exp(0.25 * rng.standard_normal())
    result: Array = (contrast * image / image.std()).astype(np.float32)[None]
    return result


def lowered_model(
    graph: Graph, numerics: str, drawn: Drawn, options: argparse.Namespace
) -> Executable:
    """An imported model in this precision."""
    if numerics != Precision.INT8:
        return compiler.build(graph, numerics=numerics)
    prepared = prepare(graph)
    seeds = range(FIRST_CALIBRATED, FIRST_CALIBRATED + options.calibrated)
    samples = Samples.of([drawn.inputs(seed) for seed in seeds], SampleForm(graph.signature))
    method = Method.of(options.method)
    calibration = calibrate(prepared, samples, method, compiler.build)
    able = (item.identity for item in contractions(prepared) if item.quantisable)
    precisions = dict.fromkeys(able, Precision.INT8)
    if not options.all:
        for item in too_sensitive(prepared, calibration, samples, compiler.build):
            precisions[item.identity] = Precision.BF16
    lowered, planned = apply_precisions(prepared, PrecisionPlan(precisions, calibration))
    return compiler.build(lowered, numerics=planned)


def rows_of(path: Path, options: argparse.Namespace) -> list[Row]:
    """A row for each of the numerics that the options name."""
    graph = import_onnx(path)
    drawn = Drawn(graph, options.noise)
    reference = compiler.build(graph)
    end, expected = perf_counter() + options.seconds, []
    for seed in range(options.inputs):
        expected.append(_run(reference, drawn.inputs(seed)))
        if perf_counter() > end:
            break
    rows = []
    for numerics in options.numerics.split(","):
        try:
            lowered = lowered_model(graph, numerics, drawn, options)
        except TunefarmError as error:
            print(f"{path.stem} in {numerics}: {error}", file=sys.stderr)
            continue
        found = [_run(lowered, drawn.inputs(seed)) for seed in range(len(expected))]
        rows.append(compared(path.stem, numerics, found, expected))
    return rows


def compared(
    model: str, numerics: str, found: Sequence[Outputs], expected: Sequence[Outputs]
) -> Row:
    """How far outputs of several runs are from those expected."""
    errors = [
        error_of(run[name], array)
        for run, wanted in zip(found, expected, strict=True)
        for name, array in wanted.items()
    ]
    scores = [name for name, array in expected[0].items() if _are_scores(array)]
    name = scores[0] if scores else ""
    top1 = top5 = centred = None
    classes = 0
    if name:
        actual, wanted = (_rows([run[name] for run in runs]) for runs in (found, expected))
        orders = [np.flip(np.argsort(array, axis=-1), axis=-1) for array in (actual, wanted)]
        top1 = float((orders[0][:, 0] == orders[1][:, 0]).mean())
        top5 = float((orders[0][:, :5] == orders[1][:, :5]).all(axis=-1).mean())
        mean = wanted.mean(axis=0)
        best = [(array - mean).argmax(axis=-1) for array in (actual, wanted)]
        centred = float((best[0] == best[1]).mean())
        classes = len(np.unique(orders[1][:, 0]))
    return Row(
        model,
        numerics,
        len(found),
        max(errors),
        _rms(found, expected),
        top1,
        top5,
        centred,
        classes,
    )


def _rms(found: Sequence[Outputs], expected: Sequence[Outputs]) -> float:
    """Of the worst output, over all runs."""
    shares = []
    for name, first in expected[0].items():
        if first.dtype.kind != "f":
            continue
        wanted = np.stack([run[name] for run in expected]).astype(np.float64)
        differences = np.stack([run[name] for run in found]).astype(np.float64) - wanted
        scale = np.sqrt(np.square(wanted).mean())
        shares.append(float(np.sqrt(np.square(differences).mean()) / scale) if scale else 0.0)
    return max(shares, default=0.0)


def _are_scores(array: Array) -> bool:
    """[N, classes], with no axes behind that have more than one element."""
    if array.dtype.kind != "f" or array.ndim < 2:
        return False
    return array.shape[1] > 1 and all(extent == 1 for extent in array.shape[2:])


def _rows(arrays: Sequence[Array]) -> Array:
    joined: Array = np.concatenate([array.reshape(array.shape[0], -1) for array in arrays])
    return joined.astype(np.float64)


def _run(executable: Executable, inputs: Mapping[str, Array]) -> Outputs:
    return {name: array.copy() for name, array in executable.run(dict(inputs)).items()}


def _show(row: Row) -> None:
    shares = (row.top1, row.top5, row.centred)
    told = "".join(f"{'-' if share is None else f'{share:.1%}':>9}" for share in shares)
    print(
        f"{row.model:16} {row.numerics:5}{row.inputs:5d}{row.error:10.2%}{row.rms:9.2%}"
        f"{told}{row.classes or '-':>8}",
        flush=True,
    )


def main(arguments: list[str]) -> int:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument(
        "models", nargs="*", help=f"ONNX files, or {', '.join(model_names())}; default: these"
    )
    parser.add_argument("--numerics", default="bf16,int8", help="with commas between (bf16,int8)")
    parser.add_argument("--inputs", type=int, default=200, help="at most, of a model (200)")
    parser.add_argument("--seconds", type=float, default=30.0, help="of f32 runs, at most (30)")
    parser.add_argument("--calibrated", type=int, default=64, help="inputs for ranges (64)")
    parser.add_argument("--method", default="minmax", help=f"of ranges: {', '.join(METHODS)}")
    parser.add_argument("--all", action="store_true", help="int8 for sensitive contractions, too")
    parser.add_argument("--noise", action="store_true", help="inputs of white noise")
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args(arguments)
    rows = []
    if not options.json:
        heads = ("error", "rms", "top 1", "top 5", "centred", "classes")
        widths = (10, 9, 9, 9, 9, 8)
        names = "".join(f"{name:>{width}}" for name, width in zip(heads, widths, strict=True))
        print(f"{'model':16} {'':5}{'runs':>5}{names}")
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        for model in options.models or model_names():
            path = Path(model)
            if not path.exists():
                path = write_model(model, folder / f"{model}.onnx")
            for row in rows_of(path, options):
                rows.append(row)
                if not options.json:
                    _show(row)
    if options.json:
        print(json.dumps([asdict(row) for row in rows]))
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
