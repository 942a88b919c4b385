"""Kernels by name: each gives what it gives within the model, for arrays of one's own."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tunefarm import compiler
from tunefarm.compiler.errors import ArtefactError, InputError
from tunefarm.compiler.graph.ir import Graph
from tunefarm.compiler.runtime.execution.executable import Executable
from tunefarm.compiler.runtime.spec.executable_spec import CallStep, Place
from tunefarm.compiler.types.dtypes import DType
from tunefarm.compiler.types.node import Node
from tunefarm.compiler.types.tensor_type import TensorType

RNG = np.random.default_rng(3)
ROWS, WIDTH = 7, 33


def layers(count: int, dtype: DType = DType.F32) -> Graph:
    """x -> tanh(x w) -> ..., layers of one shape, then a softmax."""
    type = TensorType(dtype, (ROWS, WIDTH))
    nodes, types, constants = [], {"x": type}, {}
    last = "x"
    for number in range(count):
        weight, product, layer = f"w{number}", f"p{number}", f"t{number}"
        constants[weight] = RNG.standard_normal((WIDTH, WIDTH)).astype(dtype.numpy) / 4
        constants[weight].flags.writeable = False
        types |= {weight: TensorType(dtype, (WIDTH, WIDTH)), product: type, layer: type}
        nodes += [Node("matmul", (last, weight), product), Node("tanh", (product,), layer)]
        last = layer
    types["y"] = type
    nodes.append(Node("softmax", (last,), "y", {"axis": 1}))
    return Graph("layers", ("x",), ("y",), tuple(nodes), types, constants)


def walked(executable: Executable, inputs: list[Any]) -> Any:
    """The model's result, kernel by kernel through the functions."""
    spec = executable.spec
    functions = {f.symbol: f for f in executable.functions.values()}
    made: dict[str, Any] = {}
    seen: dict[str, int] = {}
    result = None
    for step in spec.steps:
        assert isinstance(step, CallStep)
        function, number = functions[step.symbol], seen.get(step.symbol, 0)
        seen[step.symbol] = number + 1
        given = []
        for place in step.buffers[:-1]:
            if place.place is Place.INPUT:
                given.append(inputs[place.number])
            elif place.place is not Place.CONSTANT:
                given.append(made[str(place)])
        result = made[str(step.buffers[-1])] = function(*given, call=number)
    return result


@pytest.mark.parametrize("threads", [1, 2])
def test_kernels_by_name_make_the_model(threads: int, tmp_path: Path) -> None:
    graph = layers(3)
    built = compiler.build(graph, threads=threads)
    built.save(tmp_path / "m.tuned")
    x = RNG.standard_normal((ROWS, WIDTH)).astype(np.float32)
    for executable in (built, compiler.load(tmp_path / "m.tuned")):
        functions = executable.functions
        assert len(functions) == len(executable.kernels)
        for name, report in zip(functions, executable.kernels, strict=True):
            assert name.startswith(report.name) and name.endswith(report.key[:8])
        shared = next(f for f in functions.values() if f.calls == 3)
        assert str(shared.inputs[0]) == f"f32[{ROWS}, {WIDTH}]" and shared.constants
        np.testing.assert_array_equal(walked(executable, [x]), executable.run({"x": x})["y"])


def test_arrays_that_lie_elsewhere_and_results_in_given_ones() -> None:
    executable = compiler.build(layers(1))
    first, last = executable.functions.values()
    x = RNG.standard_normal((WIDTH, ROWS)).astype(np.float32).T  # is copied
    middle = np.empty((ROWS, WIDTH), np.float32)
    assert first(x, out=middle) is middle
    y = executable.run({"x": np.ascontiguousarray(x)})["y"]
    np.testing.assert_array_equal(last(middle), y)


def test_sizes_are_an_operand_like_others() -> None:
    import onnx

    from tunefarm.compiler.frontend.import_onnx import import_model_proto

    proto = onnx.parser.parse_model(
        '<ir_version: 8, opset_import: ["" : 17]>'
        "g (float[N, 12] x) => (float[N, 12] y) { y = Softmax <axis = -1> (x) }"
    )
    executable = compiler.build(import_model_proto(proto, {"N": ("1..9",)}))
    (function,) = executable.functions.values()
    assert [str(type) for type in function.inputs] == ["f32[9, 12]", "i64[1]"]
    x = RNG.standard_normal((9, 12)).astype(np.float32)
    part = function(x, np.array([5]))
    np.testing.assert_array_equal(part[:5], executable.run({"x": x[:5]})["y"])


def test_what_does_not_fit_is_refused_with_what_would() -> None:
    executable = compiler.build(layers(2))
    function = next(iter(executable.functions.values()))
    x = np.zeros((ROWS, WIDTH), np.float32)
    with pytest.raises(InputError, match="takes 1 arrays, not 2") as refused:
        function(x, x)
    assert str(function) in (refused.value.hint or "")
    with pytest.raises(InputError, match=f"{function.name}: .* has the shape"):
        function(x[1:])
    with pytest.raises(InputError, match="elements of type f64"):
        function(x.astype(np.float64))
    with pytest.raises(InputError, match="shares memory"):
        function(x, out=x)
    with pytest.raises(InputError, match="none of the number 2"):
        function(x, call=2)
    old = Executable(replace(executable.spec, operands=()))
    with pytest.raises(ArtefactError, match="kept no types"):
        _ = old.functions
