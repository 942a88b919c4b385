"""Inputs whose value a build fixes: what follows from them is folded, and they may still be fed."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx.parser import parse_model

import tunefarm
from tests.onnxruntime_session import exact_session
from tunefarm import compiler
from tunefarm.compiler.errors import ImportModelError, InputError, ShapeError
from tunefarm.compiler.frontend.import_onnx import import_model_proto
from tunefarm.compiler.types.extents import FixedInput, shapes_from_json, shapes_to_json, with_fixed

TEXT = """<ir_version: 8, opset_import: ["" : 17]>
g (float[2, 6] x, int64 sr, float[1] gain) => (float[p, q] y)
<int64 rate = {16000}, int64[2] wide = {3, 4}, int64[2] tall = {4, 3}> {
    is = Equal (sr, rate)
    a = If (is) <then_branch = t () => (float[p, q] u) { u = Reshape (x, wide) },
                 else_branch = e () => (float[p, q] v) { v = Reshape (x, tall) }>
    y = Mul (a, gain)
}"""
X = np.arange(12, dtype=np.float32).reshape(2, 6)
GAIN = np.array([2], np.float32)


@pytest.fixture
def path(tmp_path: Path) -> Path:
    onnx.save(parse_model(TEXT), tmp_path / "m.onnx")
    return tmp_path / "m.onnx"


@pytest.mark.parametrize(("rate", "shape"), [(16000, (3, 4)), (8000, (4, 3))])
def test_what_an_input_decides_is_folded(path: Path, rate: int, shape: tuple[int, int]) -> None:
    executable = compiler.build(path, inputs={"sr": rate})
    assert list(executable.inputs) == ["x", "gain"]
    feed = {"x": X, "gain": GAIN}
    found = executable.run(feed)["y"]
    (expected,) = exact_session(path).run(None, {**feed, "sr": np.array(rate)})
    assert found.shape == expected.shape == shape
    np.testing.assert_array_equal(found, expected)


def test_a_fixed_input_may_be_fed_its_value_and_no_other(path: Path, tmp_path: Path) -> None:
    compiler.build(path, inputs={"sr": 16000}).save(tmp_path / "m.tuned")
    loaded = tunefarm.load(tmp_path / "m.tuned")
    feed = {"x": X, "gain": GAIN}
    np.testing.assert_array_equal(
        loaded.run({**feed, "sr": np.array(16000)})["y"], loaded.run(feed)["y"]
    )
    bound = loaded.bind({**feed, "sr": np.array(16000)})
    bound.run()
    for wrong in (np.array(8000), np.array([16000]), 16000.5):
        with pytest.raises(InputError, match=r"'sr' is .* the model was built for 16000"):
            loaded.run({**feed, "sr": wrong})
        with pytest.raises(InputError, match="'sr'"):
            loaded.bind({**feed, "sr": wrong})


def test_several_inputs_and_arrays(path: Path) -> None:
    executable = compiler.build(path, inputs={"sr": np.int32(16000), "gain": 0.5})
    np.testing.assert_array_equal(executable.run({"x": X})["y"], X.reshape(3, 4) / 2)
    whole = compiler.build(path, inputs={"sr": 16000, "gain": [1.0], "x": X})
    np.testing.assert_array_equal(whole.run({})["y"], X.reshape(3, 4))


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"sr": 1.5}, "'sr' is of i64, and 1.5 is no value of it"),
        ({"sr": "fast"}, "'sr' is of i64, and fast is no value of it"),
        ({"sr": 2**70}, "no value"),
        ({"x": np.zeros((3, 6))}, r"shape \[2, 6\], and the value given has \[3, 6\]"),
        ({"rate": 1}, "no input 'rate' to fix"),
        ({"nosuch": 1}, "no input 'nosuch' to fix"),
    ],
)
def test_values_that_cannot_be_are_refused(given: dict[str, object], message: str) -> None:
    with pytest.raises(ImportModelError, match=message):
        import_model_proto(parse_model(TEXT), with_fixed(None, given))


def test_a_value_and_a_shape_of_one_input_are_refused() -> None:
    with pytest.raises(ShapeError, match="'x' is given a value and a shape"):
        with_fixed({"x": [2, 6]}, {"x": X})


def test_values_of_text() -> None:
    text = """<ir_version: 8, opset_import: ["" : 17, "ai.onnx.ml" : 3]>
    g (string[2] words) => (int64[2] y) {
        y = ai.onnx.ml.LabelEncoder <keys_strings = ["a", "b"], values_int64s = [3, 5]> (words)
    }"""
    executable = compiler.build(
        import_model_proto(parse_model(text), with_fixed({}, {"words": ["b", "a"]}))
    )
    assert executable.run({})["y"].tolist() == [5, 3]


@pytest.mark.parametrize("value", [16000, [[1.5, -2.0]], True, ["a", "longer"], 2**63 - 1])
def test_values_go_through_json(value: object) -> None:
    given: dict[str, FixedInput | tuple[str, ...]] = {"v": FixedInput.of(value), "x": ("n:1..4",)}
    read = shapes_from_json(json.loads(json.dumps(shapes_to_json(given))))
    assert read["x"] == ("n:1..4",)
    found = read["v"]
    assert isinstance(found, FixedInput) and found.array.tolist() == np.asarray(value).tolist()


LOGITS = """<ir_version: 8, opset_import: ["" : OPSET]>
g (float[b, s, 3] x) => (float[b, s, 2] NAME, float[b, s, 3] other)
<float[3, 2] w = {1, 2, 3, 4, 5, 6}> {
    NAME = MatMul (x, w)
    other = Relu (x)
}"""


def logits_model(opset: int = 17, name: str = "logits") -> onnx.ModelProto:
    return parse_model(LOGITS.replace("OPSET", str(opset)).replace("NAME", name))


@pytest.mark.parametrize("opset", [9, 17])
@pytest.mark.parametrize("sizes", [{"b": 2, "s": 4}, {"b": "1..2", "s": "1..4"}])
@pytest.mark.parametrize("keep", [1, 3])
def test_logits_to_keep_are_the_last_ones(
    tmp_path: Path, opset: int, sizes: dict[str, int | str], keep: int
) -> None:
    shapes = {name: (size,) for name, size in sizes.items()}
    onnx.save(logits_model(opset), tmp_path / "m.onnx")
    executable = compiler.build(tmp_path / "m.onnx", shapes=shapes, inputs={"logits_to_keep": keep})
    assert list(executable.inputs) == ["x"]
    for rows in (4,) if sizes["s"] == 4 else (1, 2, 4):
        x = np.random.default_rng(rows).standard_normal((2, rows, 3)).astype(np.float32)
        found = executable.run({"x": x})
        logits, other = exact_session(logits_model()).run(None, {"x": x})
        np.testing.assert_allclose(found["logits"], logits[:, -keep:], rtol=1e-5)
        np.testing.assert_array_equal(found["other"], other)


def test_logits_to_keep_need_logits_and_a_number(tmp_path: Path) -> None:
    shapes = {"b": (1,), "s": (4,)}
    onnx.save(logits_model(), tmp_path / "m.onnx")
    onnx.save(logits_model(name="y"), tmp_path / "unnamed.onnx")
    for wrong in (0, -1, 1.5, [1, 2]):
        with pytest.raises(ImportModelError, match="logits_to_keep is a number of positions"):
            compiler.build(tmp_path / "m.onnx", shapes=shapes, inputs={"logits_to_keep": wrong})
    with pytest.raises(ImportModelError, match="no output that is named logits"):
        compiler.build(tmp_path / "unnamed.onnx", shapes=shapes, inputs={"logits_to_keep": 1})


def test_an_input_of_the_model_goes_before(tmp_path: Path) -> None:
    """As transformers.js has it: what is kept is the model's own affair."""
    proto = parse_model(
        """<ir_version: 8, opset_import: ["" : 17]>
        g (float[1, 4, 3] x, int64 logits_to_keep) => (float[1, n, 3] logits)
        <int64[1] end = {9223372036854775807}, int64[1] axis = {1}, int64[1] one = {1}> {
            negative = Neg (logits_to_keep)
            start = Reshape (negative, one)
            logits = Slice (x, start, end, axis)
        }"""
    )
    x = np.arange(12, dtype=np.float32).reshape(1, 4, 3)
    onnx.save(proto, tmp_path / "m.onnx")
    executable = compiler.build(tmp_path / "m.onnx", inputs={"logits_to_keep": 2})
    np.testing.assert_array_equal(executable.run({"x": x})["logits"], x[:, -2:])
