"""The shape of the kernels that operators build: stages, axes, and padding only where needed."""

from __future__ import annotations

import pytest

from tunefarm.compiler.expr.nodes import Binary, Index, Load, Select
from tunefarm.compiler.expr.walk import postorder
from tunefarm.compiler.kernels.kernel import FusedKernel
from tunefarm.compiler.kernels.stage import Stage
from tunefarm.compiler.operators.evaluate_node import node_kernel
from tunefarm.compiler.types.dtypes import DType
from tunefarm.compiler.types.node import Node
from tunefarm.compiler.types.tensor_type import Attribute, TensorType


def _kernel(operator: str, *shapes: tuple[int, ...], **attributes: Attribute) -> FusedKernel:
    names = tuple(f"x{i}" for i in range(len(shapes)))
    types = tuple(TensorType(DType.F32, shape) for shape in shapes)
    return node_kernel(Node(operator, names, "y", attributes), types)


def _outline(kernel: FusedKernel) -> list[str]:
    def axes(stage: Stage) -> str:
        outer = ",".join(axis.name for axis in stage.axes)
        inner = ",".join(axis.name for axis in stage.reduce_axes)
        return f"{stage.name}[{outer}]" + (f" {stage.combiner}[{inner}]" if inner else "")

    return [axes(stage) for stage in kernel.stages]


def test_convolution_without_padding_is_one_stage() -> None:
    kernel = _kernel("conv", (1, 3, 7, 7), (4, 3, 3, 3))
    assert _outline(kernel) == ["conv[n,oc,oh,ow] sum[ic,kh,kw]"]
    assert kernel.anchor == "conv"


def test_convolution_with_padding_and_bias_has_a_stage_for_each() -> None:
    kernel = _kernel("conv", (1, 3, 7, 7), (4, 3, 3, 3), (4,), pads=(1, 1, 1, 1))
    assert _outline(kernel) == [
        "pad[n,ic,ih,iw]",
        "conv[n,oc,oh,ow] sum[ic,kh,kw]",
        "bias[n,oc,oh,ow]",
    ]
    assert kernel.stage("pad").shape == (1, 3, 9, 9)


def test_padding_that_no_window_reads_is_not_made() -> None:
    kernel = _kernel("conv", (1, 3, 8, 8), (4, 3, 3, 3), strides=(2, 2), pads=(1, 1, 1, 1))
    assert kernel.stage("pad").shape == (1, 3, 9, 9)
    kernel = _kernel("conv", (1, 3, 8, 8), (4, 3, 2, 2), strides=(2, 2), pads=(0, 0, 1, 1))
    assert _outline(kernel) == ["conv[n,oc,oh,ow] sum[ic,kh,kw]"]


def test_depthwise_convolution_sums_over_no_channel() -> None:
    kernel = _kernel("conv", (1, 6, 7, 7), (6, 1, 3, 3), groups=6)
    assert _outline(kernel) == ["conv[n,oc,oh,ow] sum[kh,kw]"]
    channels = [load.indices[1] for load in _loads(kernel) if load.buffer == "in0"]
    assert [channel.name for channel in channels if isinstance(channel, Index)] == ["oc"]


def test_blocked_convolutions_use_the_axes_of_their_layout() -> None:
    blocked = _kernel("conv", (1, 2, 7, 7, 8), (16, 16, 3, 3), layout="NCHWc")
    assert _outline(blocked) == ["conv[n,ocb,oh,ow,oci] sum[icb,ici,kh,kw]"]
    depthwise = _kernel("conv", (1, 2, 7, 7, 8), (16, 1, 3, 3), groups=13, layout="NCHWc")
    assert _outline(depthwise) == ["conv[n,ocb,oh,ow,oci] sum[kh,kw]"]
    first = _kernel("conv", (1, 3, 7, 7), (16, 3, 3, 3), layout="NCHW->NCHWc", block=8)
    assert _outline(first) == ["conv[n,ocb,oh,ow,oci] sum[ic,kh,kw]"]


def test_spatial_axes_of_one_and_three_dimensions() -> None:
    assert _outline(_kernel("conv", (1, 3, 7), (4, 3, 3))) == ["conv[n,oc,ow] sum[ic,kw]"]
    assert _outline(_kernel("conv", (1, 3, 7, 7, 7), (4, 3, 3, 3, 3))) == [
        "conv[n,oc,od,oh,ow] sum[ic,kd,kh,kw]"
    ]


def test_matmul_has_batch_axes_then_m_n_and_reduces_k() -> None:
    assert _outline(_kernel("matmul", (2, 3, 7, 5), (5, 4))) == ["matmul[b0,b1,m,n] sum[k]"]


def test_average_pool_multiplies_by_a_constant_where_no_window_is_cut() -> None:
    kernel = _kernel("average_pool", (1, 2, 7, 7), kernel=(3, 3), shape=(5, 5))
    assert _outline(kernel) == ["pool[n,c,oh,ow] sum[kh,kw]", "average_pool[n,c,oh,ow]"]
    assert _operations(kernel.output) == {"mul"}


def test_average_pool_counts_only_along_axes_with_cut_windows() -> None:
    kernel = _kernel("average_pool", (1, 2, 7, 7), kernel=(3, 3), shape=(5, 7), pads=(0, 1, 0, 1))
    body = kernel.output.body
    counted = {node.name for node in _counts(body) if isinstance(node, Index)}
    assert counted == {"ow"}


def _counts(body: object) -> list[object]:
    assert isinstance(body, Binary)
    assert body.op == "div"
    return list(postorder(body.right))


def test_softmax_reduces_its_axis_and_keeps_the_others() -> None:
    assert _outline(_kernel("softmax", (2, 7, 3), axis=1)) == [
        "max[i0,i2] max[i1]",
        "exp[i0,i1,i2]",
        "sum[i0,i2] sum[i1]",
        "softmax[i0,i1,i2]",
    ]


def test_layer_norm_takes_two_passes() -> None:
    assert _outline(_kernel("layer_norm", (2, 7, 3), (3,), axis=2)) == [
        "sum[i0,i1] sum[i2]",
        "square_sum[i0,i1] sum[i2]",
        "inverse_deviation[i0,i1]",
        "layer_norm[i0,i1,i2]",
    ]


@pytest.mark.parametrize("count", [2, 64, 500])
def test_depth_of_a_concatenation_grows_slowly(count: int) -> None:
    kernel = _kernel("concat", *[(2, 3)] * count, axis=0)
    assert _select_depth(kernel.output.body) == (count - 1).bit_length()


def _select_depth(body: object) -> int:
    if not isinstance(body, Select):
        return 0
    return 1 + max(_select_depth(body.then), _select_depth(body.otherwise))


def _loads(kernel: FusedKernel) -> list[Load]:
    nodes = (node for stage in kernel.stages for node in postorder(stage.body))
    return [node for node in nodes if isinstance(node, Load)]


def _operations(stage: Stage) -> set[str]:
    return {node.op for node in postorder(stage.body) if isinstance(node, Binary)}
