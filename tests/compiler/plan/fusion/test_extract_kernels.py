from __future__ import annotations

import numpy as np

from tests.compiler.graph.graph_helpers import GraphMaker, extracted, kernel_names
from tunefarm.compiler.expr.nodes import Const
from tunefarm.compiler.expr.walk import postorder
from tunefarm.compiler.kernels.kernel import KernelCall, KernelProgram, ViewCall
from tunefarm.compiler.plan.fusion.extract_kernels import extract_kernels


def kernel_calls(program: KernelProgram) -> list[KernelCall]:
    return [call for call in program.calls if isinstance(call, KernelCall)]


def roots(program: KernelProgram) -> list[str]:
    """The value whose memory each output is."""
    views = {call.output: call.input for call in program.calls if isinstance(call, ViewCall)}
    found = []
    for name in program.outputs:
        while name in views:
            name = views[name]
        found.append(name)
    return found


def assert_outputs_are_own_memory(program: KernelProgram) -> None:
    computed = {call.output for call in kernel_calls(program)}
    assert len(set(program.outputs)) == len(program.outputs)
    assert len(set(roots(program))) == len(program.outputs)
    assert set(roots(program)) <= computed


def test_call_names_its_kernel_values_and_sources() -> None:
    maker = GraphMaker()
    x = maker.input(1, 3, 6, 6)
    y = maker.node("conv", x, maker.weights(4, 3, 3, 3), maker.weights(4), pads=(1, 1, 1, 1))
    y = maker.node("relu", maker.node("add", y, maker.input(1, 4, 6, 6)))
    (call,) = kernel_calls(extracted(maker.graph(y)))
    assert call.kernel.name == "conv_add_relu"
    assert call.operators == ("conv", "add", "relu")
    assert call.sources == ("onnx_conv_0", "onnx_add_1", "onnx_relu_2")
    assert call.inputs == ("x0", "c0", "c1", "x1")
    assert [buffer.constant for buffer in call.kernel.inputs] == [False, True, True, False]
    assert [stage.name for stage in call.kernel.stages] == ["pad", "conv", "relu"]
    assert call.kernel.anchor == "conv"
    assert [axis.name for axis in call.kernel.output.axes] == ["n", "oc", "oh", "ow"]


def test_equal_layers_have_equal_keys_whatever_their_values_are_called() -> None:
    maker = GraphMaker()
    y = maker.input(4, 4)
    for _ in range(3):
        product = maker.node("matmul", y, maker.weights(4, 4))
        # The operands of an addition may come in either order.
        operands = (y, product) if y == "x0" else (product, y)
        y = maker.node("add", *operands)
    calls = kernel_calls(extracted(maker.graph(y)))
    assert len({call.key for call in calls}) == 1
    assert calls[0].kernel == calls[1].kernel


def test_scalar_constants_become_literals() -> None:
    maker = GraphMaker()
    x = maker.input(3)
    y = maker.node("add", maker.node("mul", x, maker.scalar(0.25)), maker.weights(3))
    (call,) = kernel_calls(extracted(maker.graph(y)))
    assert call.inputs == ("x0", "c1")
    literals = [n.value for n in postorder(call.kernel.output.body) if isinstance(n, Const)]
    assert literals == [0.25]


def test_weight_of_one_element_stays_an_input_of_its_contraction() -> None:
    maker = GraphMaker()
    y = maker.node("conv", maker.input(1, 1, 5, 5), maker.weights(1, 1, 1, 1))
    (call,) = kernel_calls(extracted(maker.graph(y)))
    assert call.inputs == ("x0", "c0")


def test_value_that_is_read_twice_is_one_input() -> None:
    maker = GraphMaker()
    x = maker.input(3)
    (call,) = kernel_calls(extracted(maker.graph(maker.node("mul", x, x))))
    assert call.inputs == ("x0",)


def test_views_are_no_kernels() -> None:
    maker = GraphMaker()
    x = maker.node("reshape", maker.input(2, 6), shape=(3, 4))
    y = maker.node("reshape", maker.node("exp", x), shape=(12,))
    program = extracted(maker.graph(y))
    assert [type(call).__name__ for call in program.calls] == ["ViewCall", "KernelCall", "ViewCall"]
    assert_outputs_are_own_memory(program)


def test_output_that_is_an_input_is_copied() -> None:
    maker = GraphMaker()
    x = maker.input(2, 3)
    program = extracted(maker.graph(x, maker.node("exp", x)))
    assert program.outputs == ("x0_output", "exp_0")
    assert kernel_names(program) == ["exp", "copy"]
    assert_outputs_are_own_memory(program)


def test_output_that_is_a_constant_is_copied_and_keeps_its_name() -> None:
    maker = GraphMaker()
    x, c = maker.input(3), maker.weights(3)
    program = extracted(maker.graph(c, maker.node("add", x, c)))
    assert program.outputs == ("c0", "add_0")
    assert list(program.constants) == ["c0_value"]
    assert_outputs_are_own_memory(program)


def test_outputs_that_are_views_of_inputs_constants_or_each_other_are_copied() -> None:
    maker = GraphMaker()
    x, c = maker.input(2, 3), maker.constant(np.arange(6, dtype=np.float32))
    y = maker.node("exp", x)
    graph = maker.graph(
        maker.node("reshape", x, shape=(6,)),
        maker.node("identity", c),
        maker.node("reshape", y, shape=(6,)),
        y,
        maker.node("identity", y),
        y,
    )
    program = extracted(graph)
    assert program.outputs == (*graph.outputs[:5], f"{y}_copy")
    assert kernel_names(program).count("copy") == 5
    assert_outputs_are_own_memory(program)


def test_only_the_view_that_owns_the_result_is_not_copied() -> None:
    maker = GraphMaker()
    y = maker.node("exp", maker.input(2, 3))
    first = maker.node("reshape", y, shape=(6,))
    second = maker.node("reshape", first, shape=(3, 2))
    program = extracted(maker.graph(second, first))
    assert kernel_names(program).count("copy") == 1
    assert_outputs_are_own_memory(program)


def test_copied_output_may_be_read_by_other_kernels() -> None:
    maker = GraphMaker()
    flat = maker.node("reshape", maker.input(2, 3), shape=(6,))
    program = extracted(maker.graph(flat, maker.node("exp", flat)))
    assert kernel_names(program) == ["copy", "exp"]


def test_scalars_have_kernels_without_axes() -> None:
    maker = GraphMaker()
    program = extracted(maker.graph(maker.node("exp", maker.input())))
    assert kernel_calls(program)[0].kernel.output.axes == ()


def test_program_holds_only_what_is_read() -> None:
    maker = GraphMaker()
    x = maker.input(3)
    y = maker.node("mul", maker.node("exp", x), maker.scalar(2))
    program = extract_kernels(maker.graph(y))
    assert set(program.types) == {x, y}
    assert program.constants == {}
