"""Sessions beside onnxruntime's: the same names, order, types, shapes, values, and refusals."""

from __future__ import annotations

import warnings
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime
import pytest
from onnx import TensorProto, helper

from tests.end_to_end.tiny_model import tiny_model
from tests.onnxruntime_session import exact_session
from tunefarm import compiler
from tunefarm.compiler import InferenceSession, SessionOptions
from tunefarm.compiler.errors import (
    ArtefactError,
    ImportModelError,
    InputError,
    SettingsError,
    UntunedWarning,
)

ML = "ai.onnx.ml"
X, Y = (np.random.default_rng(seed).standard_normal((2, 3)).astype(np.float32) for seed in (1, 2))


def model_of(
    nodes: list[onnx.NodeProto],
    inputs: list[onnx.ValueInfoProto],
    outputs: list[onnx.ValueInfoProto],
) -> onnx.ModelProto:
    graph = helper.make_graph(nodes, "g", inputs, outputs)
    opsets = [helper.make_opsetid("", 21), helper.make_opsetid(ML, 3)]
    return helper.make_model(graph, opset_imports=opsets, ir_version=10)


def arithmetic() -> onnx.ModelProto:
    """Inputs and outputs whose order is neither that of names nor that of nodes."""
    tensor, node = helper.make_tensor_value_info, helper.make_node
    inputs = [tensor(name, TensorProto.FLOAT, ["batch", 3]) for name in ("y", "x")]
    return model_of(
        [
            node("Add", ["y", "x"], ["sum"]),
            node("Cast", ["x"], ["half"], to=TensorProto.FLOAT16),
            node("Greater", ["y", "x"], ["larger"]),
            node("Shape", ["x"], ["extents"]),
        ],
        inputs,
        [
            tensor("larger", TensorProto.BOOL, ["batch", 3]),
            tensor("sum", TensorProto.FLOAT, ["batch", 3]),
            tensor("extents", TensorProto.INT64, [2]),
            tensor("half", TensorProto.FLOAT16, ["batch", 3]),
        ],
    )


def lists() -> onnx.ModelProto:
    """A list before a tensor, and rows as dictionaries behind it."""
    tensor, node = helper.make_tensor_value_info, helper.make_node
    value = helper.make_tensor_type_proto(TensorProto.FLOAT, [2, 1])
    single = helper.make_tensor_type_proto(TensorProto.FLOAT, [])
    maps = helper.make_sequence_type_proto(helper.make_map_type_proto(TensorProto.STRING, single))
    return model_of(
        [
            node("SplitToSequence", ["x"], ["parts"], axis=1),
            node("Neg", ["x"], ["negative"]),
            node("ZipMap", ["x"], ["maps"], domain=ML, classlabels_strings=["a", "b", "c"]),
            node(
                "LabelEncoder",
                ["words"],
                ["numbers"],
                domain=ML,
                keys_strings=["cat", "dog"],
                values_int64s=[3, 5],
            ),
        ],
        [tensor("x", TensorProto.FLOAT, [2, 3]), tensor("words", TensorProto.STRING, [2])],
        [
            helper.make_value_info("parts", helper.make_sequence_type_proto(value)),
            helper.make_value_info("maps", maps),
            tensor("negative", TensorProto.FLOAT, [2, 3]),
            tensor("numbers", TensorProto.INT64, [2]),
        ],
    )


class Pair:
    """One model in a session of ours and in one of onnxruntime."""

    def __init__(self, model: onnx.ModelProto, path: Path, **options: Any) -> None:
        onnx.save(model, path.with_suffix(".onnx"))
        compiler.build(str(path.with_suffix(".onnx")), **options).save(path)
        self.ours = InferenceSession(path)
        self.other = exact_session(str(path.with_suffix(".onnx")))

    def check_ports(self) -> None:
        for method in ("get_inputs", "get_outputs", "get_overridable_initializers"):
            ours, theirs = (getattr(session, method)() for session in (self.ours, self.other))
            assert [(a.name, a.type, a.shape) for a in ours] == [
                (a.name, a.type, a.shape) for a in theirs
            ]
            assert [str(a) for a in ours] == [str(a).strip() for a in theirs]

    def check_run(self, names: list[str] | None, feed: Mapping[str, Any]) -> list[Any]:
        ours, theirs = (session.run(names, feed) for session in (self.ours, self.other))
        assert [type(value) for value in ours] == [type(value) for value in theirs]
        for value, expected in zip(ours, theirs, strict=True):
            _assert_same(value, expected)
        return ours

    def check_refused(self, names: Any, feed: Any) -> str:
        with pytest.raises(Exception):  # noqa: B017 - of a dozen classes
            self.other.run(names, feed)
        with pytest.raises(InputError) as refused:
            self.ours.run(names, feed)
        return refused.value.message


def _assert_same(value: Any, expected: Any) -> None:
    if isinstance(value, np.ndarray):
        assert (value.dtype, value.shape) == (expected.dtype, expected.shape)
        np.testing.assert_allclose(value, expected, rtol=1e-5, atol=1e-6)
    elif isinstance(value, dict):
        assert value == pytest.approx(expected)
    else:
        for item, other in zip(value, expected, strict=True):
            _assert_same(item, other)


@pytest.fixture(scope="module")
def sized(tmp_path_factory: pytest.TempPathFactory) -> Pair:
    path = tmp_path_factory.mktemp("sized") / "sized.tuned"
    return Pair(arithmetic(), path, shapes={"batch": ("1..4",)})


@pytest.fixture(scope="module")
def fixed(tmp_path_factory: pytest.TempPathFactory) -> Pair:
    return Pair(lists(), tmp_path_factory.mktemp("fixed") / "lists.tuned")


def test_ports_are_those_of_onnxruntime(sized: Pair, fixed: Pair) -> None:
    sized.check_ports()
    fixed.check_ports()


@pytest.mark.parametrize(
    "names", [None, [], ["sum"], ["half", "larger"], ["sum", "sum"], ("extents",)]
)
def test_outputs_come_in_the_order_that_is_asked_for(sized: Pair, names: list[str] | None) -> None:
    sized.check_run(names, {"x": X, "y": Y})
    sized.check_run(names, {"y": Y[:1], "x": X[:1]})


def test_lists_of_numbers_and_foreign_orders_are_read(sized: Pair) -> None:
    sized.check_run(None, {"x": X.tolist(), "y": np.asfortranarray(Y)})


def test_lists_dictionaries_and_texts_come_as_they_do_there(fixed: Pair) -> None:
    words = np.array(["dog", "cat"], object)
    parts, _, _, numbers = fixed.check_run(None, {"x": X, "words": words})
    assert [part.shape for part in parts] == [(2, 1)] * 3 and numbers.tolist() == [5, 3]
    fixed.check_run(["negative", "maps"], {"x": X, "words": words})


@pytest.mark.parametrize(
    ("names", "feed", "message"),
    [
        (None, {"x": X}, "input 'y' is missing; the model's inputs are 'y', 'x'"),
        (None, {"x": X, "y": Y, "u": X}, "the model has no input 'u'"),
        (None, {"x": X, "y": Y.astype(np.float64)}, "input 'y' has elements of type f64"),
        (None, {"x": X, "y": Y[:, :2]}, "input 'y' has the shape [2, 2]"),
        (None, {"x": [["a"]], "y": Y}, "input 'x' cannot be read as f32"),
        (None, [X, Y], "inputs are given by name, as a dict, not as list"),
        (["summ"], {"x": X, "y": Y}, "the model has no output 'summ'"),
        ("sum", {"x": X, "y": Y}, "outputs are a list of names, or None"),
    ],
)
def test_what_onnxruntime_refuses_is_refused(
    sized: Pair, names: Any, feed: Any, message: str
) -> None:
    assert message in sized.check_refused(names, feed)


def test_an_onnx_file_is_built_untuned_and_that_is_said(tmp_path: Path) -> None:
    path = tmp_path / "tiny.onnx"
    onnx.save(tiny_model("batch"), path)
    with pytest.warns(UntunedWarning, match=r"tiny.onnx is built untuned") as caught:
        session = InferenceSession(path, shapes={"batch": ("1..2",)})
    assert caught[0].filename == __file__
    assert session.get_inputs()[0].shape == ["batch", 3, 12, 12]
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        session.executable.save(path)  # what it is says the content, not the name
        again = InferenceSession(str(path))
        same = InferenceSession(again.executable)
    assert again.get_modelmeta().graph_name == "tiny" and same.executable is again.executable
    pixels = np.ones((2, 3, 12, 12), np.float32)
    (first,), (second,) = (each.run(None, {"x": pixels}) for each in (session, again))
    np.testing.assert_array_equal(first, second)


def test_files_that_cannot_be_are_refused(tmp_path: Path) -> None:
    with pytest.raises(ImportModelError, match=r"no\.onnx"):
        InferenceSession(tmp_path / "no.onnx")
    with pytest.raises(ArtefactError, match=r"no\.tuned"):
        InferenceSession(str(tmp_path / "no.tuned"))
    with pytest.raises(ArtefactError, match="not of its bytes"):
        InferenceSession(tiny_model().SerializeToString())


def test_options_of_either_kind_say_how_many_threads(sized: Pair, tmp_path: Path) -> None:
    sized.ours.executable.save(tmp_path / "m.tuned")
    theirs = onnxruntime.SessionOptions()
    theirs.intra_op_num_threads = 2
    for options in (SessionOptions(intra_op_num_threads=2), theirs):
        session = InferenceSession(tmp_path / "m.tuned", options)
        assert session.executable.threads == 2 and session.get_session_options() is options
    unsaid = InferenceSession(tmp_path / "m.tuned", onnxruntime.SessionOptions())
    assert unsaid.executable.threads == 1


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"enable_profiling": True}, "no enable_profiling .*executable.profile"),
        ({"optimized_model_filepath": "m.onnx"}, "no optimized_model_filepath"),
        ({"inter_op_num_threads": 2}, "kernels run one after another"),
        ({"intra_op_num_threads": -1}, "it must be 0 or more"),
    ],
)
def test_options_that_cannot_be_are_errors(
    sized: Pair, options: dict[str, Any], message: str
) -> None:
    with pytest.raises(SettingsError, match=message):
        InferenceSession(sized.ours.executable, SessionOptions(**options))


def test_threads_and_shapes_come_too_late_for_an_executable(sized: Pair) -> None:
    with pytest.raises(SettingsError, match="loaded for 1 thread"):
        InferenceSession(sized.ours.executable, SessionOptions(intra_op_num_threads=2))
    with pytest.raises(SettingsError, match="shapes and threads"):
        InferenceSession(sized.ours.executable, shapes={"batch": (1,)})


def test_the_cpu_is_the_one_provider(sized: Pair) -> None:
    executable = sized.ours.executable
    cuda, cpu = "CUDAExecutionProvider", "CPUExecutionProvider"
    session = InferenceSession(executable, providers=[(cuda, {"device_id": 0}), cpu])
    assert session.get_providers() == compiler.get_available_providers() == [cpu]
    assert session.get_provider_options() == {cpu: {}}
    with pytest.raises(SettingsError, match=f"no provider {cuda}: .*add {cpu}"):
        InferenceSession(executable, providers=[cuda])
    with pytest.raises(SettingsError, match=f"{cpu} has no option a"):
        InferenceSession(executable, providers=[(cpu, {"a": 1})])
    with pytest.raises(SettingsError, match=f"{cpu} has no option b"):
        InferenceSession(executable, None, [cuda, cpu], [{"a": 1}, {"b": 1}])


def test_what_sessions_have_and_these_have_not_is_named(sized: Pair) -> None:
    """All that onnxruntime's session has is there, or its absence is explained."""
    public = [name for name in dir(sized.other) if not name.startswith("_")]
    for name in public:
        if not hasattr(sized.ours, name):
            with pytest.raises(AttributeError, match=f"InferenceSession has no {name}"):
                getattr(sized.ours, name)
    with pytest.raises(AttributeError, match=r"no io_binding: executable.bind"):
        sized.ours.io_binding()  # type: ignore[attr-defined]
    options = onnxruntime.RunOptions()
    assert len(sized.ours.run(None, {"x": X, "y": Y}, options)) == 4
    options.terminate = True
    with pytest.raises(SettingsError, match="terminate"):
        sized.ours.run(None, {"x": X, "y": Y}, options)
    told = {name for name in dir(sized.other.get_modelmeta()) if not name.startswith("_")}
    assert told <= set(dir(sized.ours.get_modelmeta()))


def test_sizes_of_one_name_must_be_equal(sized: Pair) -> None:
    """Where onnxruntime spreads one sentence over two if the operators happen to allow it."""
    with pytest.raises(InputError, match="batch"):
        sized.ours.run(None, {"x": X, "y": Y[:1]})
