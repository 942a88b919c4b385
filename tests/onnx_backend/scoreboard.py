"""Scoreboard of the onnx package's own backend tests.

    python -m tests.onnx_backend.scoreboard [--kind node] [--match resize] [--engine compiled]

Every case ends as one of:

    passed    the outputs agree within the case's tolerances
    fixed     passed, after inputs that shapes depend on were fixed to the case's values, because
              shapes must be known when a model is compiled
    refused   an ImportModelError said clearly what is not supported
    WRONG     the outputs differ
    CRASHED   another exception, a timeout, or the death of the process

The engine `numpy` evaluates the imported graph node by node; `compiled` builds and runs machine
code. Cases run in worker processes, so that a crash is a result. The exit status is 1 if any case
is WRONG or CRASHED. `--json FILE` writes every case's result; `--record` renews the list of the
cases that the tests require to pass.
"""

from __future__ import annotations

import argparse
import collections
import json
import multiprocessing
import re
import signal
import sys
import traceback
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from dataclasses import asdict, dataclass
from importlib import import_module
from pathlib import Path
from pkgutil import walk_packages
from typing import Any

import numpy as np
import onnx
from onnx import numpy_helper
from onnx.backend.test.case import node as node_cases
from onnx.backend.test.case.test_case import TestCase
from onnx.backend.test.loader import load_model_tests

from tests.compiler.frontend.sized_models import true_part
from tunefarm.compiler.errors import ImportModelError, InputError
from tunefarm.compiler.frontend.import_onnx import import_model_proto
from tunefarm.compiler.graph.evaluate_graph import evaluate_graph
from tunefarm.compiler.graph.ir import Graph
from tunefarm.compiler.strings.operators import PrefixRun
from tunefarm.compiler.types.extents import with_fixed
from tunefarm.compiler.types.signature import ResultSource
from tunefarm.compiler.types.structure import StringTable, WordTable, gathered, spread
from tunefarm.compiler.types.tensor_type import Array

KINDS = ("node", "simple", "pytorch-converted", "pytorch-operator")
NODE_CASES = f"{node_cases.__name__}."
STATUSES = ("passed", "fixed", "refused", "WRONG", "CRASHED")
RECORD = Path(__file__).with_name("passing_cases.txt")
TIMEOUT_SECONDS = 300
EXACT = ("test_cast", "test_quantizelinear", "test_dequantizelinear")
"""Cases of which every bit counts begin so."""
RANDOM = ("test_bernoulli",)
"""Cases whose outputs are random begin so: their types and shapes count."""
NOISE = {"test_dft_inverse": 1e-6}
"""Absolute tolerances of cases, by how they begin, whose expected zeros are not exact."""
ROUNDINGS = {"float16": (0.0025, 0.001), "bfloat16": (0.02, 0.01)}
"""(relative, absolute) tolerance of 16-bit floats, as onnxruntime's tests have it.

The expected outputs were rounded after every step of a sum or softmax; ours are rounded once.
"""
UNDEFINED = re.compile(r"test_cast(?:like)?_B?FLOAT\d*_TO_(U?)INT([24])(?:_expanded)?$", re.I)
"""Cases whose numbers beyond the type's range ONNX leaves open: ml_dtypes wraps or clamps them."""
_RUN_TIME_VALUE = re.compile(r"value '([^']*)'\) is computed at run time")

Engine = Callable[[Graph, Mapping[str, Any]], Mapping[str, Any]]


@dataclass(frozen=True, slots=True)
class Result:
    """How one case ended; `reason` is empty when it passed."""

    name: str
    kind: str
    status: str
    reason: str = ""


def run_numpy(graph: Graph, inputs: Mapping[str, Any]) -> Mapping[str, Any]:
    """The graph's outputs by NumPy, node by node through each node's tensor expression."""
    structure = graph.structure
    words = StringTable(WordTable(structure.words))
    inputs = PrefixRun(structure.prefix)(inputs)
    given = words.read(structure.texts, spread(structure.inputs, inputs))
    values = evaluate_graph(graph, given)
    for check in graph.signature.checks:
        if values[check.output].any():
            raise InputError(f"{check.operand!r} does not fit: {check.reason}")
    results = words.shown(structure.texts, _results(graph, values))
    return gathered(structure.outputs, results)


def _results(graph: Graph, values: Mapping[str, Array]) -> dict[str, Array]:
    """The outputs, of those whose sizes the graph computes as much as there is."""
    if graph.is_fixed:
        return {name: values[name] for name in graph.outputs}
    signature = graph.signature
    symbols = {
        source.symbol.name: int(values[source.output][source.position])
        for source in signature.sources
        if isinstance(source, ResultSource)
    }
    return {
        port.name: true_part(values[port.name], port.padded, symbols) for port in signature.outputs
    }


def run_compiled(graph: Graph, inputs: Mapping[str, Any]) -> Mapping[str, Any]:
    """The graph's outputs by machine code with default schedules."""
    from tunefarm import compiler

    return compiler.build(graph).run(dict(inputs))


ENGINES: dict[str, Engine] = {"numpy": run_numpy, "compiled": run_compiled}


def load_cases(kinds: Sequence[str] = KINDS, match: str = "", every: int = 1) -> list[TestCase]:
    """The cases of some kinds whose name contains `match`, in a fixed order.

    Of those of nodes only one file in `every` is loaded: that computes what they expect.
    """
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        files = sorted(file.name for file in walk_packages(node_cases.__path__, NODE_CASES))
        for file in files[every - 1 :: every] if every > 1 else ():
            import_module(file)
        loaded = {"node": node_cases._NodeTestCases} if every > 1 else {}
        found = [case for kind in kinds for case in loaded.get(kind) or load_model_tests(kind=kind)]
    order = {kind: position for position, kind in enumerate(KINDS)}
    return sorted(
        (case for case in found if match in case.name), key=lambda c: (order[c.kind], c.name)
    )


def build_and_run(
    model: onnx.ModelProto, inputs: Sequence[Any], engine: Engine
) -> tuple[Sequence[Any], bool]:
    """Import a model, run it on `inputs` (in the order of the model's), and return its outputs.

    The flag says whether inputs had to be fixed. Raises what the import and the engine raise.
    """
    initialized = {tensor.name for tensor in model.graph.initializer}
    names = [info.name for info in model.graph.input if info.name not in initialized]
    if len(names) != len(inputs):
        names = [info.name for info in model.graph.input]
    values = dict(zip(names, inputs, strict=False))
    graph, fixed = _import_fixing(model, values)
    given = {name: value for name, value in values.items() if name not in fixed}
    outputs = engine(graph, {name: _arrays(value) for name, value in given.items()})
    return [outputs[info.name] for info in model.graph.output], bool(fixed)


def _arrays(value: Any) -> Any:
    """A tensor as an array, a sequence as a list of them; an optional may be None."""
    if isinstance(value, list):
        return [np.asarray(item) for item in value]
    return None if value is None else np.asarray(value)


def _import_fixing(
    model: onnx.ModelProto, values: Mapping[str, Any]
) -> tuple[Graph, Mapping[str, Array]]:
    """Import, fixing inputs that must be known at compile time, as few as the errors ask for."""
    shapes = _symbolic_shapes(model, values)
    fixed: dict[str, Array] = {}
    while True:
        try:
            open_shapes = {name: shape for name, shape in shapes.items() if name not in fixed}
            return import_model_proto(model, with_fixed(open_shapes, fixed)), fixed
        except ImportModelError as error:
            wanted = inputs_to_fix(str(error), values, fixed)
            if not wanted:
                raise
            fixed.update({name: np.asarray(values[name]) for name in wanted})


def inputs_to_fix(message: str, values: Mapping[str, Any], fixed: Mapping[str, Array]) -> list[str]:
    arrays = {name: value for name, value in values.items() if isinstance(value, np.ndarray)}
    if "at run time" not in message and "constant inputs only" not in message:
        return []
    found = _RUN_TIME_VALUE.search(message)
    if found and found.group(1) in values and found.group(1) not in fixed:
        return [found.group(1)]
    return [
        name for name, value in arrays.items() if name not in fixed and value.dtype.kind in "biu"
    ]


def _symbolic_shapes(model: onnx.ModelProto, values: Mapping[str, Any]) -> dict[str, Any]:
    """Shapes of inputs with symbolic dimensions, and of sequences, from the case's data."""
    shapes: dict[str, Any] = {}
    for info in model.graph.input:
        value = values.get(info.name)
        if info.type.WhichOneof("value") != "tensor_type" and info.name in values:
            shapes.update(_structure(info.name, value))
        if isinstance(value, np.ndarray) and info.type.WhichOneof("value") == "tensor_type":
            tensor = info.type.tensor_type
            known = tensor.HasField("shape") and all(
                dimension.HasField("dim_value") for dimension in tensor.shape.dim
            )
            if not known:
                shapes[info.name] = value.shape
    return shapes


def _structure(name: str, value: Any) -> dict[str, Any]:
    """Length and shapes of a sequence; whether an optional is there."""
    if isinstance(value, list):
        found = {f"{name}[{number}]": np.shape(item) for number, item in enumerate(value)}
        return {**found, name: (len(value),)}
    return {name: None if value is None else np.shape(value)}


def run_case(case: TestCase, engine: Engine) -> Result:
    """Run all data sets of a case."""
    try:
        fixed = False
        for model, inputs, expected in data_sets(case):
            outputs, was_fixed = build_and_run(model, inputs, engine)
            fixed = fixed or was_fixed
            rounds = not case.name.startswith(EXACT)
            if case.name.startswith(RANDOM):
                outputs = [np.zeros_like(array) for array in outputs]
                expected = [np.zeros_like(array) for array in expected]
            if found := UNDEFINED.match(case.name):
                places = _in_range(np.asarray(inputs[0]), bool(found[1]), int(found[2]))
                outputs, expected = (
                    [np.where(places, np.asarray(array, np.int64), 0) for array in arrays]
                    for arrays in (outputs, expected)
                )
            noise = [bound for begin, bound in NOISE.items() if case.name.startswith(begin)]
            difference = compare(outputs, expected, case.rtol, max([case.atol, *noise]), rounds)
            if difference:
                return Result(case.name, case.kind, "WRONG", difference)
    except ImportModelError as error:
        return Result(case.name, case.kind, "refused", f"{type(error).__name__}: {error}")
    except Exception as error:  # noqa: BLE001  # any other exception is what the board must show
        last = traceback.extract_tb(error.__traceback__)[-1]
        where = f"{Path(last.filename).name}:{last.lineno}"
        reason = f"{type(error).__name__} at {where}: {error}"
        return Result(case.name, case.kind, "CRASHED", reason)
    return Result(case.name, case.kind, "fixed" if fixed else "passed")


def _in_range(data: Array, is_unsigned: bool, bits: int) -> Array:
    """Which floats are integers of so many bits once they are truncated."""
    low, high = (0, 2**bits - 1) if is_unsigned else (-(2 ** (bits - 1)), 2 ** (bits - 1) - 1)
    numbers = np.trunc(data.astype(np.float64))
    return np.asarray((low <= numbers) & (numbers <= high))


def data_sets(case: TestCase) -> Iterator[tuple[onnx.ModelProto, list[Any], list[Any]]]:
    if case.model is not None:
        for inputs, outputs in case.data_sets or []:
            yield case.model, [_value(v) for v in inputs], [_value(v) for v in outputs]
        return
    folder = Path(case.model_dir or "")
    model = onnx.load(folder / "model.onnx")
    for data_set in sorted(folder.glob("test_data_set*")):
        yield model, _load_all(data_set, "input"), _load_all(data_set, "output")


def _value(value: Any) -> Any:
    if isinstance(value, np.generic):
        return np.asarray(value)
    return numpy_helper.to_array(value) if isinstance(value, onnx.TensorProto) else value


def _load_all(folder: Path, what: str) -> list[Any]:
    """Tensors of a data set in order; other kinds of value come as None."""
    files = sorted(folder.glob(f"{what}_*.pb"), key=lambda file: int(file.stem.split("_")[-1]))
    values: list[Any] = []
    for file in files:
        tensor = onnx.TensorProto()
        try:
            tensor.ParseFromString(file.read_bytes())
            values.append(numpy_helper.to_array(tensor))
        except (TypeError, ValueError, onnx.checker.ValidationError):
            values.append(None)
    return values


def compare(
    outputs: Sequence[Any],
    expected: Sequence[Any],
    rtol: float,
    atol: float,
    rounds: bool = False,
) -> str:
    """The first difference, as the onnx package's runner checks it, or an empty text.

    With `rounds`, 16-bit floats may differ by their `ROUNDINGS`.
    """
    if len(outputs) != len(expected):
        return f"{len(outputs)} outputs instead of {len(expected)}"
    for position, (output, wanted) in enumerate(zip(outputs, expected, strict=True)):
        if output is None or wanted is None:
            if output is not wanted:
                return f"output {position}: {output} instead of {wanted}"
            continue
        if isinstance(output, list):
            difference = compare(output, wanted, rtol, atol, rounds)
            if difference:
                return f"output {position}, a sequence: {difference}"
            continue
        wanted = np.asarray(wanted)
        if output.shape != wanted.shape:
            return f"output {position}: shape {output.shape} instead of {wanted.shape}"
        if output.dtype != wanted.dtype:
            return f"output {position}: {output.dtype} instead of {wanted.dtype}"
        if wanted.dtype == object:  # strings
            if output.tolist() != wanted.tolist():
                return f"output {position}: {output.tolist()} instead of {wanted.tolist()}"
            continue
        least = ROUNDINGS.get(str(wanted.dtype), (0.0, 0.0)) if rounds else (0.0, 0.0)
        relative, absolute = max(rtol, least[0]), max(atol, least[1])
        try:
            np.testing.assert_allclose(output, wanted, rtol=relative, atol=absolute)
        except AssertionError as error:
            lines = [line.strip() for line in str(error).splitlines() if line.strip()]
            return f"output {position}: {'; '.join(lines[1:4])}"
    return ""


_CASES: list[TestCase] = []
"""What worker processes run: they are forked, and get numbers."""


def run_cases(cases: Sequence[TestCase], engine: str, workers: int = 1) -> Iterator[Result]:
    """Run cases in worker processes; one whose process dies, or takes too long, has crashed."""
    _CASES[:] = cases
    waiting = list(range(len(cases)))
    while waiting:
        with ProcessPoolExecutor(workers, multiprocessing.get_context("fork")) as pool:
            found = [pool.submit(_run, position, engine) for position in waiting]
            try:
                for future in found:
                    yield future.result()
                    waiting.pop(0)
            except BrokenProcessPool as error:  # by one worker it is known which case did it
                if workers == 1:
                    case = cases[waiting.pop(0)]
                    yield Result(case.name, case.kind, "CRASHED", str(error))
                workers = 1


def _run(position: int, engine: str) -> Result:
    signal.alarm(TIMEOUT_SECONDS)  # ends the process
    warnings.simplefilter("ignore")
    np.seterr(all="ignore")
    result = run_case(_CASES[position], ENGINES[engine])
    signal.alarm(0)
    return result


def report(results: Sequence[Result]) -> str:
    """The counts, the classes of refusals, and every wrong or crashed case."""
    lines = [f"{'kind':20}" + "".join(f"{status:>9}" for status in STATUSES) + f"{'all':>9}"]
    for kind in [*KINDS, "all"]:
        chosen = [r for r in results if kind in (r.kind, "all")]
        if not chosen:
            continue
        counts = collections.Counter(result.status for result in chosen)
        numbers = "".join(f"{counts[status]:9}" for status in STATUSES)
        lines.append(f"{kind:20}{numbers}{len(chosen):9}")
    classes = collections.Counter(
        reason_class(result.reason) for result in results if result.status == "refused"
    )
    if classes:
        lines += ["", "refused because of:"]
        lines += [f"{count:6}  {reason}" for reason, count in classes.most_common()]
    for result in results:
        if result.status in ("WRONG", "CRASHED"):
            lines.append(f"{result.status} {result.kind} {result.name}: {result.reason}")
    return "\n".join(lines)


def reason_class(reason: str) -> str:
    """A refusal's message without the names that differ from case to case."""
    reason = re.sub(r"\(nodes? [^)]*\)", "", reason)
    reason = re.sub(r"node '[^']*'", "node", reason)
    reason = re.sub(r"(input|output|value|initializer|attribute) '[^']*'", r"\1", reason)
    reason = re.sub(r"\([a-z]+: [^)]*\)", "", reason)
    return re.sub(r"-?\d+(, -?\d+)*", "N", reason)[:130].strip()


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.onnx_backend.scoreboard")
    parser.add_argument("--kind", choices=KINDS, action="append", help="default: all kinds")
    parser.add_argument("--match", default="", help="only cases whose name contains this")
    parser.add_argument("--engine", choices=tuple(ENGINES), default="compiled")
    parser.add_argument("--workers", type=int, default=1, help="processes")
    parser.add_argument("--json", type=Path, help="write every result to this file")
    parser.add_argument(
        "--record", action="store_true", help=f"write the cases that pass to {RECORD.name}"
    )
    options = parser.parse_args(arguments)
    cases = load_cases(options.kind or KINDS, options.match)
    results: list[Result] = []
    for result in run_cases(cases, options.engine, max(options.workers, 1)):
        results.append(result)
        if sys.stderr.isatty():
            print(f"\r{len(results)} of {len(cases)}", end="", file=sys.stderr)
    results.sort(key=lambda result: (KINDS.index(result.kind), result.name))
    if options.json:
        options.json.write_text(json.dumps([asdict(result) for result in results], indent=1))
    if options.record:
        lines = [
            f"{result.status} {result.kind} {result.name}\n"
            for result in results
            if result.status in ("passed", "fixed")
        ]
        RECORD.write_text("".join(lines))
    print(report(results))
    return int(any(result.status in ("WRONG", "CRASHED") for result in results))


if __name__ == "__main__":
    raise SystemExit(main())
