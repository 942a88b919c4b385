"""The onnx package's own backend tests with open sizes, and anything in their padding.

    python -m tests.onnx_backend.sizes [--match resize] [--expanded] [--json FILE]

Of each case there are several models: one for each extent that axes of its inputs have, with a
symbol in all these axes, and one for each axis alone. Each is called with the case's data, and with
parts and repetitions of it where onnxruntime can be asked what comes of that. A model is passed,
fixed, refused, WRONG or CRASHED, as in `tests.onnx_backend.scoreboard`; axes that an operator wants
to be of one size are refused, and rightly so: what counts is the share of the models that
onnxruntime runs at another size than that of the data. Graphs are evaluated node by node in NumPy.
The exit status is 1 if any is WRONG or CRASHED.
"""

from __future__ import annotations

import argparse
import collections
import json
import sys
import traceback
import warnings
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

import numpy as np
import onnx
from onnx.backend.test.case.test_case import TestCase

from tests.compiler.frontend.sized_models import called
from tests.onnx_backend.scoreboard import (
    RANDOM,
    Result,
    build_and_run,
    compare,
    data_sets,
    inputs_to_fix,
    load_cases,
    reason_class,
    run_compiled,
    run_numpy,
)
from tests.onnxruntime_session import exact_session
from tunefarm.compiler.errors import ImportModelError
from tunefarm.compiler.frontend.import_onnx import import_model_proto
from tunefarm.compiler.graph.ir import Graph
from tunefarm.compiler.operators.loop import INDEX, RESULT, STATE
from tunefarm.compiler.types.extents import with_fixed
from tunefarm.compiler.types.tensor_type import Array

MORE = 3
"""By which the bounds of a symbol go beyond what the data has."""
LOOPS = (STATE, INDEX, RESULT)
Axes = frozenset[tuple[str, int]]


@dataclass(frozen=True, slots=True)
class OpenResult(Result):
    """How a model ended, and whether onnxruntime runs it at another size than that of the data."""

    is_open: bool = False


@dataclass(frozen=True, slots=True)
class OpenCase:
    """A case with a symbol in some axes, all of one extent."""

    case: TestCase
    model: onnx.ModelProto
    inputs: Mapping[str, Array]
    outputs: Sequence[Array]
    axes: Axes

    @property
    def name(self) -> str:
        told = " ".join(f"{name}[{axis}]" for name, axis in sorted(self.axes))
        return f"{self.case.name.removeprefix('test_')} {told}"

    @property
    def extent(self) -> int:
        """What the symbol is in the case's data."""
        name, axis = min(self.axes)
        return int(self.inputs[name].shape[axis])

    def opened(self) -> onnx.ModelProto:
        """The model, of whose shapes only those of its inputs are known."""
        model = onnx.ModelProto()
        model.CopyFrom(self.model)
        del model.graph.value_info[:]
        for info in model.graph.output:
            if info.type.WhichOneof("value") == "tensor_type":
                info.type.tensor_type.ClearField("shape")
        for info in model.graph.input:
            for axis, dimension in enumerate(info.type.tensor_type.shape.dim):
                if (info.name, axis) in self.axes:
                    dimension.dim_param = "n"
        return model

    def call(self, extent: int) -> dict[str, Array]:
        """The data with so many elements in the open axes: some of them, or some of them again."""
        found = dict(self.inputs)
        for name, axis in self.axes:
            places = np.arange(extent) % self.extent
            found[name] = np.ascontiguousarray(np.take(found[name], places, axis=axis))
        return found


def open_cases(case: TestCase) -> Iterator[OpenCase]:
    """The models of a case, none twice."""
    for model, values, outputs in data_sets(case):
        names = [info.name for info in model.graph.input]
        inputs = dict(zip(names, values, strict=False))
        plain = all(
            isinstance(value, np.ndarray)
            and value.dtype.kind not in "OUS"
            and "e5m2" not in str(value.dtype)
            for value in (*values, *outputs)
        )
        if (
            not plain
            or len(names) != len(values)
            or case.name.startswith((*RANDOM, "test_training"))
        ):
            return
        every = [(n, axis, v.shape[axis]) for n, v in inputs.items() for axis in range(v.ndim)]
        extents = {extent for _, _, extent in every if extent > 1}
        found = [frozenset((n, a) for n, a, own in every if own == extent) for extent in extents]
        found += [frozenset([(name, axis)]) for name, axis, extent in every if extent > 0]
        for axes in dict.fromkeys(sorted(found, key=lambda axes: (-len(axes), sorted(axes)))):
            yield OpenCase(case, model, inputs, outputs, axes)
        return


def run_open(item: OpenCase) -> OpenResult:
    """Import the model and call it at some sizes."""
    model = item.opened()
    others = {
        extent: _expected(model, item.call(extent), item)
        for extent in (item.extent - 1, item.extent + 2)
    }
    result = _run(item, model, others)
    is_open = any(expected is not None for expected in others.values())
    return OpenResult(result.name, result.kind, result.status, result.reason, is_open)


def _run(
    item: OpenCase, model: onnx.ModelProto, others: Mapping[int, Sequence[Array] | None]
) -> Result:
    """Call the model with its own data, and with `others` of which the outputs are known."""
    status = "passed"
    try:
        most = item.extent + MORE
        shapes = {
            name: tuple(
                f"n:{max(1, item.extent - 1)}..{most}" if (name, axis) in item.axes else extent
                for axis, extent in enumerate(value.shape)
            )
            for name, value in item.inputs.items()
        }
        graph, fixed = _imported(model, shapes, item)
        status = "fixed" if fixed else status
        if graph.is_fixed or not graph.signature.inputs:
            return Result(item.name, "sizes", status, "nothing is open")
        for extent, expected in {item.extent: item.outputs, **others}.items():
            call = item.call(extent)
            if expected is None:
                continue
            given = {name: array for name, array in call.items() if name not in fixed}
            try:
                found = _called(graph, given)
            except AssertionError as error:  # sizes that must be equal, as a run would say
                if extent == item.extent > 1:
                    return Result(item.name, "sizes", "WRONG", f"n = {extent}: {error}")
                continue
            difference = _compare(found, expected, item.case)
            if not difference and extent == item.extent:
                difference = _compare(_called(graph, given, repeats=True), expected, item.case)
            if difference and extent != item.extent:
                difference = _compare(found, _of_known_sizes(model, call), item.case)
            if difference:
                return Result(item.name, "sizes", "WRONG", f"n = {extent}: {difference}")
    except ImportModelError as error:
        return Result(item.name, "sizes", "refused", f"{type(error).__name__}: {error}")
    except Exception as error:  # noqa: BLE001  # any other exception is what the board must show
        last = traceback.extract_tb(error.__traceback__)[-1]
        where = f"{Path(last.filename).name}:{last.lineno}"
        reason = f"{type(error).__name__} at {where}: {error}"
        return Result(item.name, "sizes", "CRASHED", reason)
    return Result(item.name, "sizes", status)


def _imported(
    model: onnx.ModelProto, shapes: Mapping[str, tuple[int | str, ...]], item: OpenCase
) -> tuple[Graph, Mapping[str, Array]]:
    fixed: dict[str, Array] = {}
    while True:
        try:
            given = {name: shape for name, shape in shapes.items() if name not in fixed}
            return import_model_proto(model, with_fixed(given, fixed)), fixed
        except ImportModelError as error:
            sized = {name for name, _ in item.axes}
            able = {name: v for name, v in item.inputs.items() if name not in sized}
            wanted = inputs_to_fix(str(error), able, fixed)
            if not wanted:
                raise
            fixed.update({name: item.inputs[name] for name in wanted})


def _expected(
    model: onnx.ModelProto, call: Mapping[str, Array], item: OpenCase
) -> Sequence[Array] | None:
    """What onnxruntime makes of a call; None where it refuses it."""
    import onnxruntime

    if not min(call[name].size for name in call):
        return None
    options = onnxruntime.SessionOptions()
    options.log_severity_level = 4
    options.intra_op_num_threads = 1
    try:
        session = exact_session(model, options)
        found: list[Array] = session.run(None, dict(call))
    except Exception:  # noqa: BLE001  # of onnxruntime's own types
        return None
    return found


def _called(graph: Graph, given: Mapping[str, Array], *, repeats: bool = False) -> Sequence[Array]:
    """The outputs by NumPy, of a model with loops by machine code."""
    if not any(node.operator in LOOPS for node in graph.nodes):
        return called(graph, given, repeats=repeats)
    outputs = run_compiled(graph, given)
    return [outputs[name] for name in outputs]


def _of_known_sizes(model: onnx.ModelProto, call: Mapping[str, Array]) -> Sequence[Array]:
    """What the graph for just these sizes makes of them, where onnxruntime computes otherwise."""
    outputs, _ = build_and_run(fixed_shapes(model, call), list(call.values()), run_numpy)
    return outputs


def fixed_shapes(model: onnx.ModelProto, call: Mapping[str, Array]) -> onnx.ModelProto:
    """The model with the shapes of these inputs."""
    fixed = onnx.ModelProto()
    fixed.CopyFrom(model)
    for info in fixed.graph.input:
        for extent, dim in zip(call[info.name].shape, info.type.tensor_type.shape.dim, strict=True):
            dim.dim_value = extent
    return fixed


def _compare(found: Sequence[Array], expected: Sequence[Array], case: TestCase) -> str:
    return compare(found, expected, max(case.rtol, 1e-3), max(case.atol, 1e-4), rounds=True)


def report(results: Sequence[OpenResult]) -> str:
    """The counts, the classes of refusals, and every wrong or crashed model."""
    lines = [_counts(results)]
    able = [result for result in results if result.is_open]
    if able:
        right = sum(result.status == "passed" for result in able) / len(able)
        lines.append(f"of {len(able)} that onnxruntime runs at other sizes {right:.1%} passed: ")
        lines[-1] += _counts(able)
    refused = [result for result in able if result.status == "refused"]
    classes = collections.Counter(reason_class(result.reason) for result in refused)
    first = {reason_class(result.reason): result.name for result in reversed(refused)}
    lines += [f"{count:6}  {reason}  [{first[reason]}]" for reason, count in classes.most_common()]
    bad = [result for result in results if result.status in ("WRONG", "CRASHED")]
    return "\n".join([*lines, *(f"{r.status} {r.name}: {r.reason}" for r in bad)])


def _counts(results: Sequence[OpenResult]) -> str:
    counts = collections.Counter(result.status for result in results)
    return ", ".join(f"{count} {status}" for status, count in counts.items())


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.onnx_backend.sizes")
    parser.add_argument("--match", default="", help="only cases whose name contains this")
    parser.add_argument("--expanded", action="store_true", help="operators as ONNX spells them")
    parser.add_argument("--part", default="0/1", help="every second from the first: 0/2")
    parser.add_argument("--json", type=Path, help="write every result to this file")
    options = parser.parse_args(arguments)
    warnings.simplefilter("ignore")
    np.seterr(all="ignore")
    number, parts = map(int, options.part.split("/"))
    cases = [
        case
        for case in load_cases(("node",), options.match)
        if case.name.endswith("_expanded") is options.expanded
    ]
    results = [run_open(item) for case in cases[number::parts] for item in open_cases(case)]
    if options.json:
        options.json.write_text(json.dumps([asdict(result) for result in results], indent=1))
    print(report(results))
    return int(any(result.status in ("WRONG", "CRASHED") for result in results))


if __name__ == "__main__":
    sys.exit(main())
