"""Models with dynamic shapes: what is there is right, whatever padding holds."""

from __future__ import annotations

import re
from math import prod

import numpy as np
import onnx
import pytest

from tests.compiler.frontend.onnx_models import model, tensor
from tests.compiler.frontend.sized_cases import CASES
from tests.compiler.frontend.sized_cases import case as sized
from tests.compiler.frontend.sized_model_cases import MORE_CASES
from tests.compiler.frontend.sized_models import check_sizes
from tests.compiler.frontend.sized_move_cases import MOVE_CASES
from tests.compiler.frontend.sized_piece_cases import PIECE_CASES
from tests.compiler.frontend.sized_place_cases import PLACE_CASES
from tests.compiler.frontend.sized_shape_cases import SHAPE_CASES
from tunefarm import compiler
from tunefarm.compiler.errors import ShapeError
from tunefarm.compiler.frontend.import_onnx import import_model_proto
from tunefarm.compiler.kernels.kernel import KernelCall
from tunefarm.compiler.pipeline import compile_model, kernels_of
from tunefarm.compiler.types.tensor_type import Array


def floats(*shape: int) -> Array:
    return np.random.default_rng(sum(shape)).standard_normal(shape).astype(np.float32)


ALL_CASES = CASES | MORE_CASES | PLACE_CASES | MOVE_CASES | PIECE_CASES | SHAPE_CASES


@pytest.mark.parametrize("name", ALL_CASES)
def test_operators_give_what_is_there(name: str) -> None:
    case = ALL_CASES[name]
    check_sizes(case.proto, case.shapes, case.calls())


@pytest.mark.parametrize(
    ("name", "recognised"),
    [
        ("attention of pixels", True),
        ("attention of pixels in planes", True),
        ("attention of few queries", True),
        ("channels mixed by what pixels make of them", False),
    ],
)
def test_pixels_of_any_image_lie_in_one_piece_as_keys_alone(name: str, recognised: bool) -> None:
    case = ALL_CASES[name]
    program = kernels_of(import_model_proto(case.proto, case.shapes))
    called = [call for call in program.calls if isinstance(call, KernelCall)]
    operators = [operator for call in called for operator in call.operators]
    assert ("attention" in operators) == recognised
    assert "softmax" not in operators
    assert recognised or "gather" not in operators


def test_batches_of_two_inputs_are_taken_as_equal_and_checked() -> None:
    case = ALL_CASES["batch that another input names"]
    graph = import_model_proto(case.proto, case.shapes)
    (equality,) = graph.signature.equalities
    assert {str(equality.left), str(equality.right)} == {"b", "c"}


def test_windows_whose_padding_a_run_knows_hold_no_more_than_the_registers() -> None:
    pool = "MaxPool x kernel_shape=[3,3] strides=[2,2] auto_pad=SAME_UPPER"
    case = sized("x[1,4,h,w]", pool, "h 8..64: 8, w 8..64: 8")
    dumped: list[str] = []

    def keep(stage: str, text: str) -> None:
        if stage == "loops":
            dumped.append(text)

    graph = import_model_proto(case.proto, case.shapes)
    compile_model(graph, dump_after=keep)
    held = re.findall(r"register [^\[]+: f32\[([\d, ]+)\]", "\n".join(dumped))
    assert held
    assert max(prod(map(int, shape.split(","))) for shape in held) <= 32 * 16  # of AVX-512


@pytest.mark.parametrize(
    ("kernel", "stride", "auto_pad", "is_moved"),
    [
        (2, 2, "SAME_UPPER", False),
        (4, 2, "SAME_UPPER", False),
        (3, 2, "SAME_LOWER", False),
        (1, 2, "SAME_UPPER", False),
        (2, 3, "SAME_UPPER", False),
        (3, 2, "SAME_UPPER", True),
        (2, 2, "SAME_LOWER", True),
    ],
)
def test_data_is_moved_only_where_sizes_differ_in_the_padding_before_it(
    kernel: int, stride: int, auto_pad: str, is_moved: bool
) -> None:
    window = f"kernel_shape=[{kernel},{kernel}] strides=[{stride},{stride}] auto_pad={auto_pad}"
    # Windows further apart than they reach are refused by onnxruntime's pools.
    pools = ("MaxPool", "AveragePool") if kernel >= stride else ()
    case = sized(
        "x[1,4,h,w]",
        "".join(f"{name} = {name} x {window}; " for name in pools) + f"Conv = Conv x w {window}",
        "h 5..11: 5 8 11 10, w 5..12: 9 6 11 12",
        outputs=(*pools, "Conv"),
        w=floats(3, 4, kernel, kernel),
    )
    check_sizes(case.proto, case.shapes, case.calls())
    graph = import_model_proto(case.proto, case.shapes)
    assert ("shift" in {item.operator for item in graph.nodes}) == is_moved


def attention() -> onnx.ModelProto:
    """Attention as torch exports it, heads split and joined by shapes that are computed."""
    parts = (f"{part}0 = MatMul x w{part}; {part}1 = Reshape {part}0 split; " for part in "qkv")
    nodes = (
        "shape = Shape x; d0 = Gather shape 0 axis=0; d1 = Gather shape 1 axis=0; "
        "e0 = Unsqueeze d0 [0]; e1 = Unsqueeze d1 [0]; split = Concat e0 e1 [2,4] axis=0; "
        f"{''.join(parts)}"
        "q = Transpose q1 perm=[0,2,1,3]; k = Transpose k1 perm=[0,2,3,1]; "
        "v = Transpose v1 perm=[0,2,1,3]; scores = MatMul q k; scaled = Mul scores 0.5; "
        "weights = Softmax scaled axis=-1; context = MatMul weights v; "
        "turned = Transpose context perm=[0,2,1,3]; join = Concat e0 e1 [-1] axis=0; "
        "joined = Reshape turned join; LayerNormalization joined gain bias axis=-1"
    )
    constants = {f"w{part}": floats(8, 8) for part in "qkv"}
    constants |= {"gain": floats(8), "bias": floats(8)}
    return model(nodes, [tensor("x", ["batch", "seq", 8])], constants=constants)


def test_attention_over_sentences_of_any_length() -> None:
    calls = [{"x": floats(batch, words, 8)} for batch, words in ((1, 1), (2, 5), (3, 7))]
    graph = check_sizes(attention(), {"x": ("batch:1..3", "seq:1..7", 8)}, calls)
    assert [item.operator for item in graph.nodes].count("fill") == 2


@pytest.mark.parametrize("batch", [1, 3, 4])
def test_parts_of_fixed_axes_are_one_slice_whatever_the_batch(batch: int) -> None:
    proto = onnx.parser.parse_model(
        """<ir_version: 10, opset_import: ["" : 21]>
        parts (float[b,6,8] x) => (float[b,5,3] y, float[b,2,8] s, float[b,4,8] t)
        <int64[2] starts = {4, 1}, int64[2] ends = {-9, 7}, int64[2] axes = {1, 2},
         int64[2] steps = {-1, 2}, int64[2] sizes = {2, 4}> {
            y = Slice (x, starts, ends, axes, steps)
            s, t = Split <axis = 1> (x, sizes)
        }"""
    )
    graph = import_model_proto(proto, {"x": ("1..4", 6, 8)})
    assert [node.operator for node in graph.nodes] == ["slice"] * 3
    x = floats(batch, 6, 8)
    found = compiler.build(graph).run({"x": x})
    np.testing.assert_array_equal(found["y"], x[:, 4::-1, 1:7:2])
    np.testing.assert_array_equal(found["s"], x[:, :2])
    np.testing.assert_array_equal(found["t"], x[:, 2:])


@pytest.mark.parametrize("sizes", ["{2, 3}", "{7, -1}", "{6}"])
def test_parts_that_are_none_of_an_axis_are_refused_at_any_batch(sizes: str) -> None:
    count = sizes.count(",") + 1
    for batch in ("2", "b"):
        proto = onnx.parser.parse_model(
            f"""<ir_version: 10, opset_import: ["" : 21]>
            parts (float[{batch},6] x) => (float s, float t)
            <int64[{count}] sizes = {sizes}> {{ s, t = Split <axis = 1> (x, sizes) }}"""
        )
        with pytest.raises(ShapeError, match="does not split into"):
            import_model_proto(proto, {"x": ("1..4" if batch == "b" else 2, 6)})
