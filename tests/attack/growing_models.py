"""Small files that ask for much: memory, nodes, dimensions, or time."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from random import Random
from typing import Any

import numpy as np
import onnx
from onnx import TensorProto, helper

from tests.compiler.frontend.onnx_models import BOOL, integers, model, tensor

node = helper.make_node
_X = tensor("x", [4])
_SIZES = (2, 30, 64, 65, 1000, 5000, 2**20, 2**27, 2**31, 2**40, 2**62)


def growing_model(random: Random) -> tuple[str, onnx.ModelProto]:
    """One of them, and what it is called."""
    name = random.choice(sorted(_MAKERS))
    return name, _MAKERS[name](random)


def _large(random: Random) -> int:
    return random.choice(_SIZES)


def _doubling_concats(random: Random) -> onnx.ModelProto:
    return _chain(lambda a, b: node("Concat", [a, a], [b], axis=0), random.choice((8, 20, 28, 45)))


def _doubling_constants(random: Random) -> onnx.ModelProto:
    """Concat of a constant and its negative: no operand is read twice."""
    nodes, last = [], "one"
    for step in range(random.choice((10, 20, 30, 45))):
        nodes.append(node("Neg", [last], [f"n{step}"]))
        nodes.append(node("Concat", [last, f"n{step}"], [f"c{step}"], axis=0))
        last = f"c{step}"
    nodes += [node("ReduceSum", [last], ["s"]), node("Add", ["x", "s"], ["y"])]
    return model(nodes, [_X], constants={"one": np.ones(random.choice((2, 2000)), np.float32)})


def _doubling_sums(random: Random) -> onnx.ModelProto:
    operator = random.choice(("Add", "Mul", "Max", "Sub"))
    return _chain(lambda a, b: node(operator, [a, a], [b]), random.choice((11, 60, 400)))


def _mixed_dag(random: Random) -> onnx.ModelProto:
    """Each value is made of the two before it: Fibonacci numbers of paths."""
    names, nodes = ["x", "x"], []
    for step in range(random.choice((12, 60, 400))):
        operator = random.choice(("Add", "Mul", "Max", "Div", "Where", "Pow"))
        inputs = random.sample(names[-3:], 2)
        if operator == "Where":
            nodes.append(node("Greater", inputs, [f"g{step}"]))
            inputs = [f"g{step}", *inputs]
        nodes.append(node(operator, inputs, [f"v{step}"]))
        names.append(f"v{step}")
    return model(nodes, [_X], [names[-1]])


def _wide_functions(random: Random) -> onnx.ModelProto:
    """Operators that read their operand several times, one after the other."""
    operator = random.choice(("Gelu", "HardSwish", "Mish", "Selu", "Celu", "Softplus", "Elu"))
    return _chain(lambda a, b: node(operator, [a], [b]), random.choice((6, 12, 40)), opset=22)


def _chain(
    step: Callable[[str, str], onnx.NodeProto],
    count: int,
    *,
    constants: Any = None,
    opset: int = 18,
    reduce: bool = False,
) -> onnx.ModelProto:
    names = ["x", *(f"v{number}" for number in range(count))]
    nodes = [step(before, after) for before, after in itertools.pairwise(names)]
    return model(nodes, [_X], [names[-1]], constants, opset=opset)


def _long_chain(random: Random) -> onnx.ModelProto:
    operator = random.choice(("Relu", "Softmax", "Identity", "Abs"))
    return _chain(lambda a, b: node(operator, [a], [b]), random.choice((100, 1000, 5000, 30_000)))


def _views(random: Random) -> onnx.ModelProto:
    count = random.choice((10, 1000, 5000))
    return _chain(
        lambda a, b: node("Reshape", [a, "s" if int(b[1:]) % 2 else "t"], [b]),
        count,
        constants={"s": integers(4), "t": integers(2, 2)},
    )


def _transposes(random: Random) -> onnx.ModelProto:
    nodes, last = [], "x"
    for step in range(random.choice((5, 50, 500))):
        nodes.append(node("Transpose", [last], [f"t{step}"], perm=random.sample(range(4), 4)))
        nodes.append(node("Relu", [f"t{step}"], [f"r{step}"]))
        last = f"r{step}"
    return model(nodes, [tensor("x", [2, 3, 4, 5])], [last])


def _expand(random: Random) -> onnx.ModelProto:
    shape = [_large(random) for _ in range(random.randrange(1, 4))]
    return _with_shape("Expand", "x", shape)


def _tile(random: Random) -> onnx.ModelProto:
    return _with_shape("Tile", "x", [_large(random)])


def _with_shape(operator: str, data: str, shape: list[int]) -> onnx.ModelProto:
    return model([node(operator, [data, "s"], ["y"])], [_X], constants={"s": integers(*shape)})


def _constant_of_shape(random: Random) -> onnx.ModelProto:
    shape = [_large(random) for _ in range(random.randrange(1, 70))]
    if random.random() < 0.3:
        shape[0] = 0
    nodes = [
        node("ConstantOfShape", ["s"], ["c"]),
        node("ReduceSum", ["c"], ["r"], keepdims=0),
        node("Add", ["x", "r"], ["y"]),
    ]
    return model(nodes, [_X], constants={"s": integers(*shape)})


def _range(random: Random) -> onnx.ModelProto:
    nodes = [
        node("Range", ["a", "b", "c"], ["r"]),
        node("ReduceSum", ["r"], ["s"], keepdims=0),
        node("Cast", ["s"], ["f"], to=TensorProto.FLOAT),
        node("Add", ["x", "f"], ["y"]),
    ]
    values = {"a": 0, "b": _large(random), "c": random.choice((1, -1, 1000))}
    constants = {name: integers(value).reshape(()) for name, value in values.items()}
    return model(nodes, [_X], constants=constants)


def _one_hot(random: Random) -> onnx.ModelProto:
    nodes = [node("OneHot", ["x", "d", "v"], ["y"])]
    constants = {"d": integers(_large(random)), "v": np.array([0, 1], np.float32)}
    return model(nodes, [_X], constants=constants)


def _resize(random: Random) -> onnx.ModelProto:
    mode = random.choice(("nearest", "linear", "cubic"))
    antialias = int(mode != "nearest" and random.random() < 0.3)
    scales = [random.choice((1, 1e-6, 1e3, 1e6, 2.0**28)) for _ in range(4)]
    return model(
        [node("Resize", ["x", "", "s"], ["y"], mode=mode, antialias=antialias)],
        [tensor("x", [1, 1, 8, random.choice((8, 100_000))])],
        constants={"s": np.array(scales, np.float32)},
    )


def _pad(random: Random) -> onnx.ModelProto:
    mode = random.choice(("constant", "reflect", "edge", "wrap"))
    pads = integers(_large(random), _large(random))
    return model([node("Pad", ["x", "p"], ["y"], mode=mode)], [_X], constants={"p": pads})


def _rank(random: Random) -> onnx.ModelProto:
    """Many dimensions, by reshaping or from the beginning."""
    rank = random.choice((30, 63, 64, 65, 100, 5000))
    operator = random.choice(("Relu", "ReduceSum", "Softmax", "Transpose", "Concat", "Shape"))
    inputs = ["r", "r"] if operator == "Concat" else ["r"]
    attributes: dict[str, Any] = {"axis": 0} if operator == "Concat" else {}
    nodes = [node("Reshape", ["x", "s"], ["r"]), node(operator, inputs, ["y"], **attributes)]
    constants = {"s": integers(*(1,) * (rank - 1), 4)}
    if random.random() < 0.5:
        nodes, constants = [node(operator, ["r", *inputs[1:]], ["y"], **attributes)], {}
        return model(nodes, [tensor("r", [1] * (rank - 1) + [4])])
    return model(nodes, [_X], constants=constants)


def _einsum(random: Random) -> onnx.ModelProto:
    letters = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ"
    count = random.choice((3, 10, 26, 52))
    left, right = letters[:count], letters[count // 2 : count]
    result = "".join(random.sample(left, random.randrange(count + 1)))
    extent = random.choice((1, 2, 3))
    return model(
        [node("Einsum", ["x", "z"], ["y"], equation=f"{left},{right}->{result}")],
        [tensor("x", [extent] * len(left)), tensor("z", [extent] * len(right))],
    )


def _nested_loops(random: Random) -> onnx.ModelProto:
    depth, trips = random.choice((1, 3, 10, 60)), random.choice((1, 2, 100, 1024, 2**40))

    def body(level: int) -> onnx.GraphProto:
        inner = (
            [node("Relu", [f"a{level}"], [f"r{level}"])]
            if level == depth
            else [node("Loop", ["n", "t", f"a{level}"], [f"r{level}"], body=body(level + 1))]
        )
        return helper.make_graph(
            [*inner, node("Identity", [f"g{level}"], [f"o{level}"])],
            f"body{level}",
            [
                tensor(f"i{level}", [], TensorProto.INT64),
                tensor(f"g{level}", [], BOOL),
                tensor(f"a{level}", [4]),
            ],
            [tensor(f"o{level}", [], BOOL), tensor(f"r{level}", [4])],
        )

    return model(
        [node("Loop", ["n", "t", "x"], ["y"], body=body(1))],
        [_X],
        constants={"n": integers(trips).reshape(()), "t": np.array(True)},
    )


def _doubling_functions(random: Random) -> onnx.ModelProto:
    """A billion laughs: each function calls the one before it twice."""
    opsets = [helper.make_opsetid("", 18), helper.make_opsetid("local", 1)]
    functions = [
        helper.make_function("local", "F0", ["a"], ["r"], [node("Relu", ["a"], ["r"])], opsets)
    ]
    depth = random.choice((4, 10, 30, 39, 100))
    for level in range(1, depth):
        inner = f"F{level - 1}"
        calls = [
            node(inner, ["a"], ["m"], domain="local"),
            node(inner, ["m"], ["r"], domain="local"),
        ]
        functions.append(helper.make_function("local", f"F{level}", ["a"], ["r"], calls, opsets))
    return model(
        [node(f"F{depth - 1}", ["x"], ["y"], domain="local")],
        [_X],
        functions=functions,
        domains={"local": 1},
    )


def _many_operands(random: Random) -> onnx.ModelProto:
    """One node that reads very much, all of it different or all the same."""
    count = random.choice((10, 300, 3000, 10_000))
    operator = random.choice(("Concat", "Sum", "Max"))
    attributes: dict[str, Any] = {"axis": 0} if operator == "Concat" else {}
    if random.random() < 0.5:
        return model([node(operator, ["x"] * count, ["y"], **attributes)], [_X])
    nodes = [node("Softmax", ["x"], [f"v{number}"], axis=0) for number in range(count)]
    nodes.append(node(operator, [f"v{number}" for number in range(count)], ["y"], **attributes))
    return model(nodes, [_X])


def _many_outputs(random: Random) -> onnx.ModelProto:
    count = random.choice((10, 300, 3000))
    names = [f"y{number}" for number in range(count)]
    sizes = {"s": integers(*(1,) * count)}
    return model([node("Split", ["x", "s"], names)], [tensor("x", [count])], names, sizes)


def _many_inputs(random: Random) -> onnx.ModelProto:
    count = random.choice((10, 300, 3000))
    inputs = [tensor(f"x{number}", [2]) for number in range(count)]
    nodes = [node("Relu", [f"x{number}"], [f"y{number}"]) for number in range(count)]
    return model(nodes, inputs, [f"y{number}" for number in range(count)])


def _long_names(random: Random) -> onnx.ModelProto:
    name = random.choice(("n", "\n", "%s{}", '"', "é")) * random.choice((100, 100_000, 2_000_000))
    operator = random.choice(("Relu", "NoSuchOperator", "Unique"))
    source = random.choice(("x", name + "!"))
    return model([node(operator, [source], [name], name=name)], [_X], [name])


def _many_unknown(random: Random) -> onnx.ModelProto:
    """Nodes that cannot be converted, or read what is not there."""
    count = random.choice((10, 1000, 5000))
    operator = random.choice(("NoSuchOperator", "Relu"))
    source = "x" if operator == "NoSuchOperator" else "nothing"
    nodes = [
        node(operator, [f"{source}{number or ''}" if operator == "Relu" else "x"], [f"v{number}"])
        for number in range(count)
    ]
    return model(nodes, [_X], [f"v{count - 1}"])


def _matrix_products(random: Random) -> onnx.ModelProto:
    """Products of constants that take long to fold."""
    extent = random.choice((2, 100, 1500, 6000))
    nodes = [
        node("Expand", ["one", "s"], ["a"]),
        node("MatMul", ["a", "a"], ["p"]),
        node("ReduceSum", ["p"], ["r"], keepdims=0),
        node("Add", ["x", "r"], ["y"]),
    ]
    constants = {"s": integers(extent, extent), "one": np.ones((1, 1), np.float32)}
    return model(nodes, [_X], constants=constants)


def _windows(random: Random) -> onnx.ModelProto:
    """Kernels, strides, dilations and paddings out of proportion."""
    kernel = [random.choice((1, 3, 100, 2**20, 2**31)) for _ in range(2)]
    operator = random.choice(("MaxPool", "AveragePool", "LpPool"))
    attributes: dict[str, Any] = {"kernel_shape": kernel}
    if random.random() < 0.7:
        attributes["pads"] = [random.choice((0, 1, size // 2, size)) for size in (*kernel, *kernel)]
    if random.random() < 0.3:
        attributes["dilations"] = [random.choice((1, 2, 2**31)) for _ in range(2)]
    return model([node(operator, ["x"], ["y"], **attributes)], [tensor("x", [1, 2, 8, 8])])


def _recurrent(random: Random) -> onnx.ModelProto:
    steps, hidden = random.choice((1, 50, 1024, 2**31)), random.choice((1, 4, 2**20))
    weights = tensor("w", [1, hidden, 2]), tensor("r", [1, hidden, hidden])
    return model(
        [node("RNN", ["x", "w", "r"], ["y"], hidden_size=hidden)],
        [tensor("x", [steps, 1, 2]), *weights],
    )


def _declared(random: Random) -> onnx.ModelProto:
    """Inputs of any shape."""
    shape = [random.choice((*_SIZES, 0, -1, 1)) for _ in range(random.randrange(6))]
    operator = random.choice(("Relu", "Softmax", "ReduceSum", "CumProd", "Trilu", "NonZero"))
    return model([node(operator, ["x"], ["y"])], [tensor("x", shape)])


def _hollow_constant(random: Random) -> onnx.ModelProto:
    """A constant without elements, or with more than it says."""
    dims = random.choice(([0, 2**62], [2**62, 0, 2**62], [2**32, 2**32], [-1, 4], [4] * 70, [2, 3]))
    made = model([node("Concat", ["x", "c"], ["y"], axis=0)], [_X], constants={"c": np.ones(4)})
    constant = made.graph.initializer[0]
    constant.data_type = random.choice(list(TensorProto.DataType.values()))
    constant.dims[:] = dims
    if random.random() < 0.5:
        constant.ClearField("raw_data")
        getattr(constant, random.choice(("float_data", "int32_data", "int64_data"))).append(1)
    else:
        constant.raw_data = bytes(random.choice((0, 4, 16)))
    return made


_MAKERS: dict[str, Callable[[Random], onnx.ModelProto]] = {
    function.__name__.removeprefix("_"): function
    for function in (
        _constant_of_shape,
        _declared,
        _doubling_concats,
        _doubling_constants,
        _doubling_functions,
        _doubling_sums,
        _einsum,
        _expand,
        _hollow_constant,
        _long_chain,
        _long_names,
        _many_inputs,
        _many_operands,
        _many_outputs,
        _many_unknown,
        _matrix_products,
        _mixed_dag,
        _nested_loops,
        _one_hot,
        _pad,
        _range,
        _rank,
        _recurrent,
        _resize,
        _tile,
        _transposes,
        _views,
        _wide_functions,
        _windows,
    )
}
